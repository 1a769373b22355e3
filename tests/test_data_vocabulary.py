"""Vocabularies: lossless on any text, deterministic, laid out like T5's."""

import argparse
import hashlib
import inspect

import numpy as np
import pytest
import sentencepiece

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
