"""Repeated runs of tokens, against sets of tuples, and the lines that they cover."""

import numpy as np
import pytest

from anytime_jax.corpus.vocabulary_training import train_vocabulary
from anytime_lab.package_text.repeated_text import (
    RUN,
    piece_bytes,
    remove_lines,
    repeated_tokens,
)

TEXT = "def f(x):\n    return x + 1\n\n\n# ä, 漢字, \U0001f600\r\nx = 'some words'\n" * 9


def find_in_sets(documents, groups):
    """Reads the documents group by group; returns a bool for each token of all."""
    earlier, own, repeated = set(), set(), []
    for number, document in enumerate(documents):
        if number and groups[number] != groups[number - 1]:
            earlier |= own
            own = set()
        is_repeated = [False] * len(document)
        for start in range(len(document) - RUN + 1):
            run = tuple(document[start : start + RUN])
            own.add(run)
            if run in earlier:
                is_repeated[start : start + RUN] = [True] * RUN
        repeated += is_repeated
    return repeated


def make_documents(rng):
    """Documents of few different ids, some of which have pieces of 20 to 60 tokens of others."""
    documents = [rng.integers(0, 5, rng.integers(1, 200)).tolist() for _ in range(30)]
    for document in documents:
        for _ in range(3):
            other = documents[rng.integers(len(documents))]
            start, place = rng.integers(len(other)), rng.integers(len(document) + 1)
            document[place:place] = other[start : start + rng.integers(20, 60)]
    return documents


@pytest.mark.parametrize(("seed", "grouped"), [(0, False), (1, True)])
def test_repeated_tokens_are_those_in_runs_of_earlier_documents(seed, grouped):
    rng = np.random.default_rng(seed)
    documents = make_documents(rng)
    groups = np.arange(30) // 15 if grouped else np.arange(30)
    tokens = np.concatenate(documents).astype(np.uint16)
    repeated = repeated_tokens(tokens, np.array([len(x) for x in documents]), groups)
    assert 100 < repeated.sum() < len(tokens)
    assert repeated.tolist() == find_in_sets(documents, groups)


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        ([list(range(31)), list(range(31))], 0),  # shorter than a run
        ([list(range(40)), list(range(32))], 32),
        ([list(range(20)), list(range(20, 40)), list(range(40))], 0),  # of two documents
        ([list(range(40)) * 2, [1]], 0),  # the same document
    ],
)
def test_runs_are_whole_and_within_one_document(documents, expected):
    lengths = np.array([len(x) for x in documents])
    tokens = np.concatenate(documents).astype(np.uint16)
    assert repeated_tokens(tokens, lengths, np.arange(len(documents))).sum() == expected


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return train_vocabulary([TEXT], 300, tmp_path_factory.mktemp("v") / "v.model")


def test_bytes_of_pieces_add_up_to_those_of_the_text(vocabulary):
    sizes = piece_bytes(vocabulary)
    for text in (TEXT, " a", "\n\n\tb \U0001f600", "\r\nä"):
        (ids,) = vocabulary.encode([text])
        assert sizes[ids].sum() == len(text.encode())


def test_only_lines_without_a_new_token_are_removed():
    # Tokens of 2, 3, 1, 4 and 2 bytes: "ab", "c\nd", "\n", "äf\n" and "gh"; the second is in two
    # lines.
    text, sizes = "abc\nd\näf\ngh", np.array([2, 3, 1, 4, 2])

    def remove(*new):
        return remove_lines(text, sizes, ~np.isin(np.arange(5), new))

    assert remove() == ""
    assert remove(0) == "abc\n"
    assert remove(1) == "abc\nd\n"
    assert remove(2) == "d\n"
    assert remove(3) == "äf\n"
    assert remove(4) == "gh"
    assert remove(0, 4) == "abc\ngh"
    assert remove(0, 1, 2, 3, 4) == text
