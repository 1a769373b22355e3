"""The split of each text; texts too small for two splits."""

import pytest

from anytime_jax.corpus.file_source import FileSource
from anytime_jax.corpus.preparation import prepare
from anytime_jax.corpus.validation_split import assign_split
from anytime_jax.errors import InputError

PAGE = "a page of some words, with a number at its end: "


def test_split_of_a_text_depends_on_its_content_alone():
    numbers = [str(i) for i in range(4000)]
    assert {assign_split(text, 0.0) for text in numbers} == {"train"}
    assert {assign_split(text, 1.0) for text in numbers} == {"validation"}
    low = {text for text in numbers if assign_split(text, 0.1) == "validation"}
    high = {text for text in numbers if assign_split(text, 0.2) == "validation"}
    assert low < high
    assert abs(len(low) - 400) < 100  # five standard deviations
    assert abs(len(high) - 800) < 130


@pytest.mark.parametrize("documents", [["", ""], [PAGE], [PAGE, f"{PAGE}2", f"{PAGE}3"]])
def test_split_without_a_document_is_named_and_leaves_nothing(documents, dataset, tmp_path):
    for i, document in enumerate(documents):
        (tmp_path / f"{i}.txt").write_text(document)
    source = FileSource(f"{tmp_path}/*.txt", validation_fraction=0.001)
    with pytest.raises(InputError, match=r"split.*--validation-fraction"):
        prepare(source, tmp_path / "output", vocabulary=dataset.vocabulary_path, workers=1)
    assert not (tmp_path / "output").exists()
