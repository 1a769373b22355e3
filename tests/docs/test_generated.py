"""Generated parts of the documentation, against the code."""

import pathlib
import runpy

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
GENERATE = runpy.run_path(str(REPOSITORY / "docs" / "generate.py"))


@pytest.mark.parametrize(("page", "name"), GENERATE["BLOCKS"])
def test_generated_block_is_current(page, name):
    text = (REPOSITORY / page).read_text("utf-8")
    block = GENERATE["BLOCKS"][page, name]()
    assert GENERATE["replace_block"](text, name, block) == text, "run `python docs/generate.py`"


def test_replace_block_requires_the_markers():
    with pytest.raises(ValueError, match="no such block"):
        GENERATE["replace_block"]("text", "no such block", "")
