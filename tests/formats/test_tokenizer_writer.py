"""Written tokenizers give the ids of SentencePiece."""

import io
import json
import pathlib
import sysconfig

import pytest
import sentencepiece
import tokenizers
from byte_level_tokenizer import write_byte_level

from anytime_jax.corpus.vocabulary_files import load_vocabulary
from anytime_jax.corpus.vocabulary_training import train_vocabulary
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
    write_tokenizer(load_vocabulary(path), folder, 128)
    return sentencepiece.SentencePieceProcessor(model_file=str(path)), read(folder)


def assert_same(processor, written, texts):
    for text in texts:
        ids = processor.encode(text)
        assert written.encode(text).ids == ids, text[:100]
        decoded = written.decode(ids, skip_special_tokens=False)
        # SentencePiece decodes the unknown piece as " ⁇ ".
        assert decoded == processor.decode(ids).replace(" ⁇ ", "<unk>"), text[:100]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "v.model"
    train_vocabulary(SOURCES, 2000, path)
    return path


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


def test_trained_vocabulary_on_c4(trained, documents, tmp_path):
    assert len(documents) > 200
    assert_same(*both(trained, tmp_path), documents)


@pytest.mark.parametrize(
    "options", [{"model_type": "unigram"}, {"model_type": "word"}, {"model_type": "bpe"}]
)
def test_model_from_elsewhere_is_copied(tmp_path, options):
    path = sentencepiece_model(tmp_path, **options)
    write_tokenizer(load_vocabulary(path), tmp_path / "output", 128)
    files = {x.name: x.read_bytes() for x in (tmp_path / "output").iterdir()}
    assert files["tokenizer.model"] == path.read_bytes()
    assert json.loads(files["tokenizer_config.json"])["eos_token"] == "</s>"
    assert len(files) == 2


def test_vocabulary_of_t5_is_copied(c4_data, tmp_path):
    vocabulary = load_vocabulary(c4_data / "t5_cc_all_32000_100extra.model")
    write_tokenizer(vocabulary, tmp_path, 128)
    assert (tmp_path / "tokenizer.model").read_bytes() == vocabulary.model


def test_files_for_transformers(trained, tmp_path):
    write_tokenizer(load_vocabulary(trained), tmp_path, 128)
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
        write_tokenizer(load_vocabulary(vocabulary), output, 77)
        assert {x.name: x.read_bytes() for x in output.iterdir()} == files
