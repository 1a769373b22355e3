"""SentencePiece: training is lossless, deterministic and laid out like T5; decoding id by id."""

import hashlib
import itertools
import operator

import numpy as np
import pytest
import sentencepiece
from decoded_ids import AWKWARD, SOURCE, check_random_ids, decode_one_by_one

from anytime_jax.corpus.vocabulary_files import load_vocabulary
from anytime_jax.corpus.vocabulary_training import train_vocabulary
from anytime_jax.errors import InputError

FIRST_BYTE = 3  # of the vocabularies trained here
PARTS = [FIRST_BYTE + byte for byte in "é漢😀\ufffd".encode()]
CONTROL = [0, 1, 2]
# Long texts of runs of spaces, SentencePiece's own mark for a space, and characters that it lacks.
MIXED = [
    "".join(
        np.random.default_rng(seed).choice([*" \t\u2581\n漢", " = [", " is not None", "  a"], 2000)
    )
    for seed in range(5)
]
T5 = "t5_cc_all_32000_100extra.model"


def train_by_other_rules(path, rules):
    """Trains a vocabulary by rules other than those of `train_vocabulary`."""
    settings = {
        "vocab_size": 400,
        "normalization_rule_name": "identity",
        "add_dummy_prefix": False,
        "remove_extra_whitespaces": False,
        "allow_whitespace_only_pieces": True,
    }
    with path.open("wb") as model:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(SOURCE.splitlines()),
            model_writer=model,
            model_type="bpe",
            byte_fallback=True,
            pad_id=0,
            eos_id=1,
            unk_id=2,
            bos_id=-1,
            minloglevel=5,
            **(settings | rules),
        )


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "v.model"
    train_vocabulary([SOURCE], 400, path)
    return path


@pytest.fixture(scope="module")
def trained(path):
    return load_vocabulary(path)


@pytest.mark.parametrize("text", [SOURCE, AWKWARD, "", "  two  spaces  "])
def test_round_trip(trained, text):
    (ids,) = trained.encode([text])
    assert trained.decode(ids) == text
    given = decode_one_by_one(trained, ids)
    assert "".join(given) == text
    assert "\ufffd" not in "".join(given)
    assert given[-1] == ""


def test_training_is_deterministic_and_laid_out_like_t5(trained, path, tmp_path):
    again = train_vocabulary([SOURCE], 400, tmp_path / "v.model")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    special = (processor.pad_id(), processor.eos_id(), processor.unk_id(), processor.bos_id())
    assert special == (0, 1, 2, -1)
    assert (again.size, again.eos_id) == (400, 1)
    assert again.sha256 == hashlib.sha256(path.read_bytes()).hexdigest() == trained.sha256


def test_encoding_is_that_of_sentencepiece(trained, path):
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    texts = [SOURCE, "", AWKWARD, *MIXED]
    encoded = trained.encode(texts)
    assert [ids.tolist() for ids in encoded] == [processor.encode(text) for text in texts]
    assert len(encoded[0]) < 0.6 * len(SOURCE)
    assert trained.encode([]) == []


# Each would give other ids if a text were encoded in stretches.
@pytest.mark.parametrize(
    "rules",
    [
        {"split_by_whitespace": False, "vocab_size": 1000},
        {"add_dummy_prefix": True},
        {"remove_extra_whitespaces": True},
        {"treat_whitespace_as_suffix": True},
        {"normalization_rule_name": "nmt_nfkc"},
    ],
    ids=str,
)
def test_encoding_by_other_rules_is_that_of_sentencepiece(tmp_path, rules):
    path = tmp_path / "v.model"
    train_by_other_rules(path, rules)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    encoded = load_vocabulary(path).encode(MIXED)
    assert [ids.tolist() for ids in encoded] == [processor.encode(text) for text in MIXED]


def test_rare_characters_leave_room_for_pairs(tmp_path):
    texts = ["".join(map(chr, range(0x4E00, 0x5E00))), SOURCE]
    vocabulary = train_vocabulary(texts, 400, tmp_path / "v.model")
    for text in texts:
        assert vocabulary.decode(vocabulary.encode([text])[0]) == text
    assert len(vocabulary.encode([SOURCE])[0]) < 0.7 * len(SOURCE)


def test_sample_is_bounded(tmp_path):
    texts = itertools.repeat(SOURCE, 5_000_000 // len(SOURCE))
    train_vocabulary(texts, 300, tmp_path / "v.model")
    assert operator.length_hint(texts)


@pytest.mark.parametrize(
    ("texts", "size", "message"),
    [
        (["a few words"], 1000, "283"),
        ([SOURCE], 0, "259"),
        ([SOURCE], 10**11, "100000000000"),
        ([], 400, "text"),
    ],
)
def test_impossible_size_is_refused(tmp_path, capfd, texts, size, message):
    with pytest.raises(InputError, match=message):
        train_vocabulary(texts, size, tmp_path / "v.model")
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_vocabulary_of_t5_has_its_ids(c4_data):
    vocabulary = load_vocabulary(c4_data / T5)
    assert (vocabulary.size, vocabulary.eos_id) == (32_100, 1)
    assert vocabulary.encode(["Today is a fine"])[0].tolist() == [1960, 19, 3, 9, 1399]
    assert vocabulary.decode([1960, 19, 3, 9, 1399, 1, 0, 0]) == "Today is a fine"
    one_by_one = decode_one_by_one(vocabulary, [1960, 19, 3, 9, 1399, 1])
    assert one_by_one[:3] == ["Today", " is", " "]
    lone_space = 3
    check_random_ids(vocabulary, [[lone_space], CONTROL, range(3, 300)])


def test_character_in_bytes_comes_with_its_last_byte(trained):
    ids = [FIRST_BYTE + byte for byte in "a😀é".encode()]
    assert decode_one_by_one(trained, ids) == ["a", "", "", "", "😀", "", "é", ""]
    assert decode_one_by_one(trained, ids[:3]) == ["a", "", "", "\ufffd\ufffd"]
    after = decode_one_by_one(trained, [*ids[:3], ids[0]])
    assert after == ["a", "", "", "\ufffd\ufffda", ""]


def test_any_ids_decode_one_by_one_as_at_once(trained):
    (spaces,) = trained.encode(["  \t     "])
    check_random_ids(trained, [PARTS, PARTS, CONTROL, spaces.tolist()])


@pytest.mark.parametrize(("dummy_prefix", "remove_spaces"), [(False, True), (True, False)])
def test_other_rules_for_leading_spaces(tmp_path, dummy_prefix, remove_spaces):
    path = tmp_path / "v.model"
    rules = {"add_dummy_prefix": dummy_prefix, "remove_extra_whitespaces": remove_spaces}
    train_by_other_rules(path, rules)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    spaces = [i for i in range(400) if set(processor.id_to_piece(i)) == {"\u2581"}]
    check_random_ids(load_vocabulary(path), [PARTS, spaces, spaces + CONTROL])


def test_cost_of_an_id_does_not_grow(trained):
    decoder, longest = trained.incremental_decoder(), 0
    for ids in (PARTS, trained.encode([SOURCE])[0][:300]):
        for piece in [*ids] * 100:
            decoder.decode(int(piece))
            longest = max(longest, len(decoder._before) + len(decoder._pending))
    assert 0 < longest <= 30
