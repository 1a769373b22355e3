"""The split of each text; advice for texts of few documents: what it says to give works."""

import re

import pytest

from anytime_jax.corpus import preparation
from anytime_jax.corpus.sources import FileSource
from anytime_jax.corpus.validation_split import assign_split
from anytime_jax.errors import InputError

PAGE = "a page of some words, with a number at its end: "


def prepare_documents(folder, documents, fraction=0.01, vocabulary=300):
    text = folder / "text"
    text.mkdir(exist_ok=True)
    for i, document in enumerate(documents):
        (text / f"{i}.txt").write_text(document)
    source = FileSource(str(text), validation_fraction=fraction)
    options = {"vocabulary": vocabulary, "workers": 1}
    return preparation.prepare(source, folder / "output", **options)


def test_split_of_a_text_depends_on_its_content_alone():
    numbers = [str(i) for i in range(4000)]
    assert {assign_split(text, 0.0) for text in numbers} == {"train"}
    assert {assign_split(text, 1.0) for text in numbers} == {"validation"}
    low = {text for text in numbers if assign_split(text, 0.1) == "validation"}
    high = {text for text in numbers if assign_split(text, 0.2) == "validation"}
    assert low < high
    assert abs(len(low) - 400) < 100  # five standard deviations
    assert abs(len(high) - 800) < 130


@pytest.mark.parametrize(
    ("pages", "options"),
    [
        ([40, 41, 42], {}),
        ([40, 41], {"fraction": 0.999}),  # no text to train the vocabulary on
        ([1, 2, 3, 4, 50], {}),
    ],
)
def test_advice_works(pages, options, tmp_path):
    documents = [f"{PAGE * count}{count}" for count in pages]
    with pytest.raises(InputError, match=f"{len(pages)} documents") as error:
        prepare_documents(tmp_path, documents, **options)
    assert not (tmp_path / "output").exists()
    message = str(error.value)
    match = re.search(r"--validation-fraction=([\d.]+)", message)
    assert match
    options = {**options, "fraction": float(match[1])}
    info = prepare_documents(tmp_path, documents, **options)
    assert {counts.documents > 0 for counts in info.splits.values()} == {True}


@pytest.mark.parametrize(
    ("documents", "named"),
    [
        (["", ""], "empty"),
        ([PAGE * 40], "--validation-input"),
        ([PAGE * 40] * 3, "equal"),
    ],
)
def test_text_that_cannot_be_split(documents, named, dataset, tmp_path):
    with pytest.raises(InputError, match=named):
        prepare_documents(tmp_path, documents, vocabulary=dataset.vocabulary_path)
    assert not (tmp_path / "output").exists()
