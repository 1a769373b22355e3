"""Blocks of a page: only their own text is replaced."""

import pytest

from anytime_jax.errors import InputError
from anytime_lab import page_block

PAGE = """# Title

by hand

<!-- one -->
old
<!-- end -->

between

<!-- two -->
other
<!-- end -->
"""


def test_a_block_is_replaced_and_the_rest_stays(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    page_block.replace_block(page, "one", "new \\1 text", title="unused")
    assert page.read_text() == PAGE.replace("old", "new \\1 text")


def test_a_page_that_does_not_exist_is_created(tmp_path):
    page = tmp_path / "page.md"
    page_block.replace_block(page, "one", "new", title="Title")
    assert page.read_text() == "# Title\n\n<!-- one -->\nnew\n<!-- end -->\n"


@pytest.mark.parametrize(
    "text",
    [
        "no markers",
        PAGE.replace("old\n<!-- end -->\n", "old\n"),  # the next end is another block's
        PAGE.replace("<!-- two -->", "<!-- one -->"),
    ],
)
def test_a_page_without_one_whole_block_is_refused_and_not_changed(tmp_path, text):
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(InputError, match="blocks from <!-- one -->"):
        page_block.replace_block(page, "one", "new", title="unused")
    assert page.read_text() == text


def test_pages_that_cannot_be_written_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for name in ("page.txt", "file/page.md"):
        with pytest.raises(InputError, match="--page="):
            page_block.check(tmp_path / name)
    page = tmp_path / "page.md"
    page.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="UTF-8"):
        page_block.replace_block(page, "one", "new", title="unused")
