"""Written tokenizers give the ids of SentencePiece, up to the limits in docs/evidence/export.md."""

import io
import json
import math
import pathlib
import sysconfig

import pytest
import sentencepiece
import tokenizers
from byte_level_tokenizer import write_byte_level

from anytime_jax.corpus.vocabulary import load_vocabulary, train_vocabulary
from anytime_jax.errors import InputError, RunError
from anytime_jax.formats.sentencepiece_model import parse_sentencepiece
from anytime_jax.formats.tokenizer_writer import write_tokenizer

LIBRARY = pathlib.Path(sysconfig.get_path("stdlib"))
NAMES = ("argparse", "ast", "codecs", "datetime", "inspect", "textwrap", "typing", "uuid")
SOURCES = [(LIBRARY / f"{name}.py").read_text("utf-8") for name in NAMES]
SPACES = ["", " ", "  ", "\t", "\n", "\r\n", " \n ", "   a", "a   ", "a    b  c", "\u00a0a\u3000b"]
MARKS = ["▁", "▁a", "a▁", " ▁ a", "a ▁ ▁", "a▁▁b"]
RARE = [
    "é e\u0301 Å ﬁ ½ ™",
    "😀👩‍👩‍👧🇩🇪",
    "漢字かな한국어العربية",
    "\x00\x07\x7f\ufeff\ufffd",
    "𝔘𝔫𝔦",
]


def sentencepiece_model(folder, **options):
    """A model trained with options."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SOURCES[0].splitlines() * 2),
        model_writer=model,
        minloglevel=5,
        **{"vocab_size": 400, "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, **options},
    )
    path = folder / "other.model"
    path.write_bytes(model.getvalue())
    return path


def read_json(path):
    return json.loads(path.read_text("utf-8"))


def read(folder):
    """The tokenizer in a folder, with the effect of `split_special_tokens` in transformers."""
    config = read_json(folder / "tokenizer_config.json")
    read = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    read.encode_special_tokens = config["split_special_tokens"]
    return read


def both(path, folder):
    """A SentencePiece model and its translation."""
    write_tokenizer(path, folder, 128)
    return sentencepiece.SentencePieceProcessor(model_file=str(path)), read(folder)


def assert_same(processor, written, texts):
    for text in texts:
        ids = processor.encode(text)
        assert written.encode(text).ids == ids, text[:100]
        decoded = written.decode(ids, skip_special_tokens=False)
        # SentencePiece decodes the unknown piece as " ⁇ ".
        assert decoded == processor.decode(ids).replace(" ⁇ ", "<unk>"), text[:100]


def assert_tied(processor, written, texts):
    """Nearly all ids are equal, and the others have an equal score."""
    differing = 0
    for text in texts:
        ids, translated = processor.encode(text), written.encode(text).ids
        differing += ids != translated
        assert written.decode(translated) == written.decode(ids)
        sums = [math.fsum(map(processor.get_score, each)) for each in (translated, ids)]
        assert -1e-6 <= sums[0] - sums[1] <= 1e-6 * -sums[1], text[:100]
    assert differing <= 0.01 * len(texts)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "v.model"
    train_vocabulary(SOURCES, 2000, path)
    return path


@pytest.fixture(scope="module")
def t5(c4_data, tmp_path_factory):
    return both(c4_data / "t5_cc_all_32000_100extra.model", tmp_path_factory.mktemp("t5"))


@pytest.fixture(scope="module")
def documents(c4_data):
    lines = (c4_data / "c4_docs.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines]


def test_trained_vocabulary_has_the_same_ids(trained, tmp_path):
    processor, written = both(trained, tmp_path / "new" / "folder")
    special = ["</s>", "a<pad></s>b", "<unk>", "<0x41>", "<0xE9>"]
    assert_same(processor, written, [*SOURCES, *SPACES, *MARKS, *RARE, *special])
    for text in [*SOURCES, *SPACES, *RARE, *special]:
        assert written.decode(written.encode(text).ids) == text


def test_vocabularies_on_c4(trained, t5, documents, tmp_path):
    assert len(documents) > 200
    assert_same(*both(trained, tmp_path), documents)
    assert_same(*t5, documents)


def test_t5_on_rare_text(t5):
    sentinels = ["a <extra_id_0> b", "<extra_id_99>", "x<extra_id_1>y"]
    assert_same(*t5, [*SPACES, *MARKS, *RARE, *sentinels])


def test_t5_on_code(t5):
    """Limit: sums of scores in float32 break ties in another way."""
    processor, written = t5
    sources = SOURCES[:3]
    texts = [*sources, *(part for source in sources for part in source.split("\n\n"))]
    assert_tied(processor, written, texts)


@pytest.mark.parametrize(
    "options",
    [
        {"model_type": "unigram"},
        {"model_type": "unigram", "byte_fallback": True, "vocab_size": 600},
        {"model_type": "unigram", "add_dummy_prefix": False, "normalization_rule_name": "nfkc"},
        {"model_type": "bpe"},
        {"model_type": "bpe", "remove_extra_whitespaces": False, "byte_fallback": True,
         "vocab_size": 600, "normalization_rule_name": "identity"},
    ],
)  # fmt: skip
def test_options_of_the_trainer_keep_the_ids(tmp_path, options):
    processor, written = both(sentencepiece_model(tmp_path, **options), tmp_path)
    lines = SOURCES[1].split("\n\n")
    assert_same(processor, written, [*SPACES, *MARKS, *RARE])
    (assert_tied if options["model_type"] == "unigram" else assert_same)(processor, written, lines)


def test_files_for_transformers(trained, tmp_path):
    write_tokenizer(trained, tmp_path, 128)
    assert len(list(tmp_path.iterdir())) == 3
    special = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    assert read_json(tmp_path / "special_tokens_map.json") == special
    config = read_json(tmp_path / "tokenizer_config.json")
    fixed = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 128}
    assert config.items() >= {**special, **fixed}.items()
    assert not any("auto" in name for name in config)
    written = read(tmp_path)
    vocabulary = load_vocabulary(trained)
    assert written.get_vocab_size() == vocabulary.size
    assert written.decode([5, 1, 0, 0]) == written.decode([5])
    # The result is a vocabulary with the same ids.
    again = load_vocabulary(tmp_path / "tokenizer.json")
    assert (again.size, again.eos_id) == (vocabulary.size, vocabulary.eos_id)
    texts = SOURCES[:1]
    for ids, others in zip(again.encode(texts), vocabulary.encode(texts), strict=True):
        assert ids.tolist() == others.tolist()


def test_eos_pads_where_there_is_no_padding_piece(tmp_path):
    write_tokenizer(sentencepiece_model(tmp_path, pad_id=-1), tmp_path, 128)
    assert read_json(tmp_path / "tokenizer_config.json")["pad_token"] == "</s>"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_type": "word"}, "WORD model"),
        ({"model_type": "bpe", "user_defined_symbols": ["<sep>"]}, "BPE model .* USER_DEFINED"),
        ({"treat_whitespace_as_suffix": True}, "treat_whitespace_as_suffix"),
    ],
)
def test_unsupported_model_is_rejected(tmp_path, options, message):
    path = sentencepiece_model(tmp_path, **options)
    with pytest.raises(InputError, match=message):
        write_tokenizer(path, tmp_path / "output", 128)
    assert not (tmp_path / "output").exists()


def test_translation_with_other_ids_is_not_written(tmp_path):
    # The map of `tokenizers` gives one space for "\r\n", SentencePiece two.
    model = sentencepiece_model(tmp_path, remove_extra_whitespaces=False)
    with pytest.raises(RunError):
        write_tokenizer(model, tmp_path / "output", 128)
    assert not (tmp_path / "output").exists()


def test_schema_agrees_with_sentencepiece(tmp_path):
    # These classes import only under a protobuf as new as their compiler.
    theirs = pytest.importorskip("sentencepiece.sentencepiece_model_pb2").ModelProto()
    path = sentencepiece_model(tmp_path, add_dummy_prefix=False, byte_fallback=True, vocab_size=600)
    for model in (path.read_bytes(), b""):  # set fields, and defaults
        theirs.ParseFromString(model)
        ours = parse_sentencepiece(model)
        assert [(p.piece, p.score, p.type) for p in ours.pieces] == [
            (p.piece, p.score, p.type) for p in theirs.pieces
        ]
        for part in ("trainer_spec", "normalizer_spec"):
            for field in getattr(ours, part).DESCRIPTOR.fields:
                values = [getattr(getattr(each, part), field.name) for each in (ours, theirs)]
                assert values[0] == values[1], field.name


def test_hugging_face_tokenizer_comes_back_byte_for_byte(tmp_path):
    settings = {"model_max_length": 1000, "chat_template": "{{ x }}"}
    path = write_byte_level(tmp_path / "model", SOURCES[:1], **settings)
    path.with_name("special_tokens_map.json").write_text('{"eos_token":  "<|endoftext|>"}')
    files = {x.name: x.read_bytes() for x in path.parent.iterdir()}
    assert len(files) == 3
    bundle = tmp_path / "vocabulary.model"
    bundle.write_bytes(load_vocabulary(path).model)
    for number, vocabulary in enumerate((path, bundle)):
        output = tmp_path / f"output{number}"
        write_tokenizer(vocabulary, output, 77)
        assert {x.name: x.read_bytes() for x in output.iterdir()} == files


def test_hugging_face_tokenizer_is_completed(tmp_path):
    path = write_byte_level(tmp_path / "model", SOURCES[:1])
    write_tokenizer(path, tmp_path / "output", 77)
    assert (tmp_path / "output" / "tokenizer.json").read_bytes() == path.read_bytes()
    before = read_json(path.with_name("tokenizer_config.json"))
    after = read_json(tmp_path / "output" / "tokenizer_config.json")
    assert after == {**before, "model_max_length": 77}
    special = read_json(tmp_path / "output" / "special_tokens_map.json")
    assert special == {"eos_token": "<|endoftext|>"}
