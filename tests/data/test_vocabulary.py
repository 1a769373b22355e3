"""Vocabularies: lossless on any text, deterministic, laid out like T5's; public models' own."""

import argparse
import hashlib
import inspect
import io
import json
import random
import sys

import numpy as np
import pytest
import sentencepiece
import tokenizers
from byte_level_tokenizer import EOS, write_byte_level

from anytime_jax.data.vocabulary import load_vocabulary, train_vocabulary
from anytime_jax.errors import InputError

SOURCE = inspect.getsource(argparse)
AWKWARD = "\tif x:\r\n\t\t  return 'é漢😀'  \n\n\n\f<unk></s><0x41>\x00\x7f \u2028\u00a0 end  "


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train_vocabulary([SOURCE], 400, tmp_path_factory.mktemp("vocabulary") / "v.model")


@pytest.mark.parametrize("text", [SOURCE, AWKWARD, "", " ", "\n", "\t", "  two  spaces  "])
def test_round_trip(trained, text):
    (ids,) = trained.encode([text])
    assert trained.decode(ids) == text


def test_compresses_what_it_was_trained_on(trained):
    (ids,) = trained.encode([SOURCE])
    assert len(ids) < 0.6 * len(SOURCE)


def test_layout_is_that_of_t5(trained, tmp_path):
    path = tmp_path / "v.model"
    again = train_vocabulary([SOURCE], 400, path)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    special = (processor.pad_id(), processor.eos_id(), processor.unk_id(), processor.bos_id())
    assert special == (0, 1, 2, -1)
    assert (again.size, again.eos_id) == (400, 1)
    assert again.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert again == trained  # sha256 and all: training is deterministic


def test_encoding_is_sentencepiece(trained, tmp_path):
    path = tmp_path / "v.model"
    train_vocabulary([SOURCE], 400, path)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    texts = [SOURCE, "", AWKWARD]
    for ids, text in zip(trained.encode(texts), texts, strict=True):
        assert ids.tolist() == processor.encode(text)
    assert trained.encode([]) == []


def test_rare_characters_leave_room_for_pairs(tmp_path):
    texts = ["".join(map(chr, range(0x4E00, 0x5E00))), SOURCE]
    vocabulary = train_vocabulary(texts, 400, tmp_path / "v.model")
    for text in texts:
        assert vocabulary.decode(vocabulary.encode([text])[0]) == text
    assert len(vocabulary.encode([SOURCE])[0]) < 0.7 * len(SOURCE)


def test_sample_is_bounded(tmp_path):
    taken = 0

    def endless():
        nonlocal taken
        while True:
            taken += len(SOURCE)
            yield SOURCE

    train_vocabulary(endless(), 300, tmp_path / "v.model")
    assert taken < 5_000_000


def test_token_dtype(trained):
    assert trained.token_dtype == np.uint16


@pytest.mark.parametrize(
    ("texts", "size", "message"),
    [
        (["a few words"], 1000, "too high"),
        ([SOURCE], 0, "take 259 before"),
        ([], 400, "no text"),
    ],
)
def test_impossible_size_is_refused(tmp_path, capfd, texts, size, message):
    with pytest.raises(InputError, match=message) as error:
        train_vocabulary(texts, size, tmp_path / "v.model")
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("content", [None, b"", b"not a model", b"\x00" * 100])
def test_no_model_is_refused(tmp_path, capfd, content):
    path = tmp_path / "v.model"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"v\.model"):
        load_vocabulary(path)
    assert capfd.readouterr() == ("", "")


def test_t5(c4_data):
    vocabulary = load_vocabulary(c4_data / "t5_cc_all_32000_100extra.model")
    assert (vocabulary.size, vocabulary.eos_id) == (32_100, 1)
    assert vocabulary.encode(["Today is a fine"])[0].tolist() == [1960, 19, 3, 9, 1399]
    assert vocabulary.decode([1960, 19, 3, 9, 1399, 1, 0, 0]) == "Today is a fine"


# Text as it comes, id by id.


def pieces(vocabulary, ids):
    """What a terminal is given: the text after each id, and at the end."""
    stream = vocabulary.incremental_decoder()
    return [*(stream.decode(int(i)) for i in ids), stream.flush()]


def check_any_ids(vocabulary, awkward):
    """Ids in no sensible order, many of them awkward, against `decode` of them all."""
    rng = random.Random(0)
    for _ in range(400):
        pools = rng.choices([*awkward, range(vocabulary.size)], k=3)
        ids = [rng.choice(rng.choice(pools)) for _ in range(rng.randint(0, 30))]
        assert "".join(pieces(vocabulary, ids)) == vocabulary.decode(ids), ids


FIRST_BYTE = 3  # of the vocabularies trained here
PARTS = [FIRST_BYTE + byte for byte in "é漢😀\ufffd".encode()]
CONTROL = [0, 1, 2]


@pytest.mark.parametrize("text", [SOURCE[:2000], AWKWARD, "", "😀" * 5, "  a"])
def test_text_comes_whole_and_without_half_characters(trained, text):
    (ids,) = trained.encode([text])
    given = pieces(trained, ids)
    assert "".join(given) == text
    assert "\ufffd" not in "".join(given)
    assert given[-1] == ""


def test_a_character_in_bytes_comes_with_its_last_byte(trained):
    ids = [FIRST_BYTE + byte for byte in "a😀é".encode()]
    assert pieces(trained, ids) == ["a", "", "", "", "😀", "", "é", ""]
    assert pieces(trained, ids[:3]) == ["a", "", "", "\ufffd\ufffd"]
    # What can be no character any more is not held back, nor what an end of a document cuts off.
    assert pieces(trained, [*ids[:3], ids[0]]) == ["a", "", "", "\ufffd\ufffda", ""]
    assert pieces(trained, [*ids[:3], 1]) == ["a", "", "", "\ufffd\ufffd", ""]


def test_any_ids_read_as_if_decoded_at_once(trained):
    (spaces,) = trained.encode(["  \t     "])
    check_any_ids(trained, [PARTS, PARTS, CONTROL, spaces.tolist()])


@pytest.mark.parametrize("dummy_prefix", [False, True])
@pytest.mark.parametrize("remove_spaces", [False, True])
def test_other_rules_for_leading_spaces(tmp_path, dummy_prefix, remove_spaces):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SOURCE.splitlines()),
        model_writer=model,
        model_type="bpe",
        vocab_size=400,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        byte_fallback=True,
        add_dummy_prefix=dummy_prefix,
        remove_extra_whitespaces=remove_spaces,
        allow_whitespace_only_pieces=True,
        minloglevel=5,
    )
    path = tmp_path / "v.model"
    path.write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    spaces = [i for i in range(400) if set(processor.id_to_piece(i)) == {"\u2581"}]
    check_any_ids(load_vocabulary(path), [PARTS, spaces, spaces + CONTROL])


def test_an_id_costs_the_same_wherever_it_stands(trained, monkeypatch):
    longest = 0

    class Counting:
        def __init__(self, processor):
            self._processor = processor

        def __getattr__(self, name):
            return getattr(self._processor, name)

        def decode(self, ids):
            nonlocal longest
            longest = max(longest, len(ids))
            return self._processor.decode(ids)

    stream = trained.incremental_decoder()
    monkeypatch.setattr(stream, "_processor", Counting(stream._processor))
    (space,) = trained.encode([" "])[0].tolist()
    for ids in (CONTROL[:2], [space], PARTS, [PARTS[0]], trained.encode([SOURCE])[0][:300]):
        for _ in range(100):
            for piece in ids:
                stream.decode(int(piece))
    assert 0 < longest <= 6


def test_text_of_t5_as_it_comes(c4_data):
    vocabulary = load_vocabulary(c4_data / "t5_cc_all_32000_100extra.model")
    assert pieces(vocabulary, [1960, 19, 3, 9, 1399, 1])[:3] == ["Today", " is", " "]
    lone_space = 3
    check_any_ids(vocabulary, [[lone_space], CONTROL, range(3, 300)])


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory):
    return write_byte_level(tmp_path_factory.mktemp("hub") / "model", [SOURCE])


def test_byte_level_is_what_the_library_gives(byte_level):
    vocabulary = load_vocabulary(byte_level)
    oracle = tokenizers.Tokenizer.from_file(str(byte_level))
    assert oracle.encode(SOURCE).ids != oracle.encode(SOURCE, add_special_tokens=False).ids
    assert len(oracle.encode(SOURCE).ids) == 4  # what the file asks for
    oracle.no_truncation()
    oracle.no_padding()
    texts = [SOURCE, "", AWKWARD, "a   b", "    "]
    for ids, text in zip(vocabulary.encode(texts), texts, strict=True):
        assert ids.dtype == np.int32
        assert ids.tolist() == oracle.encode(text, add_special_tokens=False).ids
        assert vocabulary.decode(ids) == text
    assert vocabulary.encode([]) == []
    assert vocabulary.size == oracle.get_vocab_size(with_added_tokens=True) == 601
    assert vocabulary.eos_id == oracle.token_to_id(EOS) == 1
    assert vocabulary.token_dtype == np.uint16


def test_special_tokens_are_not_read_out_of_text_nor_written_into_it(byte_level):
    vocabulary = load_vocabulary(byte_level)
    (ids,) = vocabulary.encode([f"a {EOS} b"])
    assert vocabulary.eos_id not in ids
    assert vocabulary.decode(ids) == f"a {EOS} b"
    assert vocabulary.decode([*vocabulary.encode(["ab"])[0], vocabulary.eos_id, 0]) == "ab"


def test_all_of_a_tokenizer_is_one_file(byte_level, tmp_path):
    vocabulary = load_vocabulary(byte_level)
    path = tmp_path / "vocabulary.model"
    path.write_bytes(vocabulary.model)
    assert load_vocabulary(path) == vocabulary
    assert load_vocabulary(path).model == vocabulary.model
    assert vocabulary.sha256 == hashlib.sha256(vocabulary.model).hexdigest()
    other = write_byte_level(tmp_path / "other", [SOURCE], eos_token="<|padding|>")
    assert load_vocabulary(other).eos_id == 0
    assert load_vocabulary(other).sha256 != vocabulary.sha256


@pytest.mark.parametrize("token", [EOS, {"content": EOS, "__type": "AddedToken"}])
@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
def test_eos_is_named_beside_the_rules(byte_level, tmp_path, name, token):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(byte_level.read_bytes())
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": null}')
    (tmp_path / name).write_text(json.dumps({"eos_token": token}))
    assert load_vocabulary(path).eos_id == 1


@pytest.mark.parametrize(("words", "dtype"), [(2**16, np.uint16), (2**16 + 1, np.int32)])
def test_beyond_65536_tokens_are_wide(tmp_path, words, dtype):
    model = tokenizers.models.WordLevel({str(word): word for word in range(words)}, "0")
    tokenizers.Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "1"}')
    vocabulary = load_vocabulary(tmp_path / "tokenizer.json")
    assert (vocabulary.size, vocabulary.token_dtype) == (words, dtype)


def test_a_hole_among_the_ids_counts(tmp_path):
    model = tokenizers.models.WordLevel({"a": 0, "b": 7}, "a")
    tokenizers.Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "b"}')
    assert load_vocabulary(tmp_path / "tokenizer.json").size == 8


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", "", r"tokenizer\.json is not JSON"),
        ("tokenizer.json", '{"version": "1.0"', r"tokenizer\.json is not JSON"),
        ("tokenizer.json", "[]", r"tokenizer\.json is not a JSON object"),
        ("tokenizer.json", '{"model": {}}', r"is not a tokenizer that tokenizers .* can read"),
        ("tokenizer_config.json", "{", r"tokenizer_config\.json is not JSON"),
        ("tokenizer_config.json", "\udcff", r"tokenizer_config\.json is not JSON"),
        ("tokenizer_config.json", "{}", "no EOS token.*name one .*as eos_token"),
        ("tokenizer_config.json", '{"eos_token": "<eos>"}', "has no token '<eos>'"),
        ("special_tokens_map.json", "nothing", r"special_tokens_map\.json is not JSON"),
    ],
)
def test_broken_tokenizer_is_refused(byte_level, tmp_path, name, content, message):
    for file in byte_level.parent.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / name).write_text(content, "utf-8", errors="surrogateescape")
    with pytest.raises(InputError, match=message) as error:
        load_vocabulary(tmp_path / "tokenizer.json")
    assert "\n" not in str(error.value)


def test_missing_library_is_named(byte_level, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(InputError, match=r"pip install 'anytime_jax\[export\]'"):
        load_vocabulary(byte_level)


def test_text_of_a_byte_level_vocabulary_as_it_comes(byte_level):
    vocabulary = load_vocabulary(byte_level)
    for text in (SOURCE[:2000], AWKWARD, "", "😀" * 5, "  a"):
        (ids,) = vocabulary.encode([text])
        assert "".join(pieces(vocabulary, ids)) == text
    cut = vocabulary.encode(["a😀"])[0][:-1]
    assert "".join(pieces(vocabulary, cut)) == vocabulary.decode(cut)
