"""Blocks of a Markdown page that a command writes; the text around them is written by hand."""

import re
from pathlib import Path

from anytime_jax.errors import InputError
from anytime_jax.storage.atomic import atomic_write

END = "<!-- end -->"


def replace_block(page: Path, name: str, text: str, title: str) -> None:
    """Replaces what stands between `<!-- name -->` and `<!-- end -->` in a page.

    A page that does not exist is created, with the block below a title.

    Raises:
      InputError: if the page exists and does not have the block once.
    """
    begin = f"<!-- {name} -->"
    content = page.read_text("utf-8") if page.exists() else f"# {title}\n\n{begin}\n{END}\n"
    block = f"{begin}\n{text}\n{END}"
    content, count = re.subn(rf"{begin}\n.*?{END}", lambda _: block, content, flags=re.DOTALL)
    if count != 1:
        raise InputError(
            f"--page={page} has {count} blocks from {begin} to {END}: put the two markers, "
            "each on a line, once where the tables are to be"
        )
    with atomic_write(page) as part:
        part.write_text(content, encoding="utf-8")
