"""Code blocks of the documentation.

A comment on the line before a block says why no test of the pages runs it:

    <!-- needs: C4, GPUs -->             hardware, data or hours that a test does not have
    <!-- run by: tests/NAME.py -->       another test runs it
"""

import dataclasses
import pathlib
import re
from collections.abc import Iterable

from paths import REPOSITORY

_FILES = (
    *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md")),
    *(REPOSITORY / "docs").rglob("*.md"),
    *(REPOSITORY / "tests").rglob("*.md"),
)
LABORATORY = REPOSITORY / "lab"
# The configuration of the quickstart in the tests of pages.
_SHORTER = {
    "config.batch_size = 32": "config.batch_size = 8",
    "20 * 81_920": "{updates} * 8 * 128",
    '"160 steps"': '"{warmup} steps"',
    "builtin_megabytes = 33.0": "builtin_megabytes = 3.0",
    "tokens = 32_768": "tokens = 2_048",
}
PAGES = sorted(page for page in _FILES if not page.with_suffix(".ipynb").exists())
PAGES_OF_LABORATORY = sorted(LABORATORY.rglob("*.md"))
MARK = r"<!-- (needs|run by): ([^>]+?) -->"
_BLOCK = re.compile(rf"(?:^{MARK}\n)?^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced code block; one without a language is an output."""

    page: pathlib.Path
    line: int
    language: str
    code: str
    mark: str
    reason: str

    def __str__(self) -> str:
        return f"{name_of(self.page)}:{self.line}"


def name_of(page: pathlib.Path) -> str:
    """Returns the path of a page in the repository."""
    return str(page.relative_to(REPOSITORY))


def read_blocks(page: pathlib.Path) -> list[Block]:
    """Returns the blocks of a page, in order."""
    text = page.read_text("utf-8")
    return [
        Block(page, text[: found.start(3)].count("\n") + 1, found[4], found[5], *marks)
        for found in _BLOCK.finditer(text)
        for marks in [(found[1] or "", found[2] or "")]
    ]


def runnable(page: pathlib.Path, language: str) -> str:
    """Returns the code that a test of the page runs, in one program."""
    mine = (block for block in read_blocks(page) if block.language == language)
    return "\n".join(block.code for block in mine if not block.mark)


def pages_to_run(pages: Iterable[pathlib.Path]) -> list[pathlib.Path]:
    """Returns the pages with a block that a test of the page runs."""
    return [page for page in pages if runnable(page, "bash") or runnable(page, "python")]


def shorten(quickstart: str, updates: int = 40) -> str:
    """Returns the text of the quickstart's configuration with fewer and smaller updates to 1x."""
    for long, short in _SHORTER.items():
        assert quickstart.count(long) == 1, long
        short = short.format(updates=updates, warmup=updates * 2 // 5)
        quickstart = quickstart.replace(long, short)
    return quickstart
