"""Blocks of a Markdown page that a command writes; the text around them is written by hand."""

import re
from pathlib import Path

from anytime_jax.errors import InputError
from anytime_jax.storage.atomic import atomic_write
from anytime_jax.storage.files import make_writable_directory

END = "<!-- end -->"


def check(page: Path) -> None:
    """Raises an InputError unless the file can be a page: it ends in .md, and can be written."""
    if page.suffix != ".md" or page.is_dir():
        raise InputError(f"--page={page} is not a Markdown page: give the name of a file in .md")
    make_writable_directory(page.parent, f"--page={page}")


def replace_block(page: Path, name: str, text: str, title: str) -> None:
    """Replaces what stands between `<!-- name -->` and `<!-- end -->` in a page.

    A page that does not exist is created, with the block below a title.

    Raises:
      InputError: if the page exists and does not have the block once.
    """
    try:
        content = page.read_text("utf-8") if page.exists() else None
    except UnicodeDecodeError as error:
        raise InputError(f"--page={page} is not text in UTF-8: give another file") from error
    if content is None:
        content = f"# {title}\n\n<!-- {name} -->\n{END}\n"
    try:
        content = with_block(content, name, text)
    except ValueError as error:
        raise InputError(
            f"--page={page} has {error}: put the two markers, each on a line, once where the "
            "tables are to be"
        ) from error
    with atomic_write(page) as part:
        part.write_text(content, encoding="utf-8")


def with_block(content: str, name: str, text: str) -> str:
    """Returns the content of a page with another text in a block.

    Raises a ValueError if it does not have the block once.
    """
    begin = f"<!-- {name} -->"
    block = f"{begin}\n{text}\n{END}"
    # No other marker is in a block: the end is its own.
    pattern = rf"{re.escape(begin)}\n(?:(?!<!--).)*{END}"
    content, count = re.subn(pattern, lambda _: block, content, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"{count} blocks from {begin} to {END}")
    return content
