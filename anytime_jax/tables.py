"""Tables of values, rendered for a terminal.

>>> table = Table("losses", ["run", *numbers("1x", "2x", format=".2f")], [["a", 3.25, None]])
>>> table.text()
[['run', '1x', '2x'], ['a', '3.25', '']]
"""

import dataclasses
from collections.abc import Iterable, Sequence

import rich.table
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult

Value = str | int | float | None
_FOLDED = 12  # characters: the least width of a column that folds
_STYLE = {"box": box.SIMPLE, "padding": (0, 1, 0, 0), "title_justify": "left"}


@dataclasses.dataclass(frozen=True)
class Column:
    """Column of a table.

    Attributes:
      format: format specification of its numbers, such as ".4f".
      right: whether it is aligned to the right.
      wrap: whether its text may take several lines of a terminal; "fold" breaks long words too.
      footer: text below it on a terminal.
    """

    name: str
    format: str = ""
    right: bool = False
    wrap: bool | str = False
    footer: str = ""


def numbers(*names: str, format: str = "") -> list[Column]:
    """Returns columns that are aligned to the right."""
    return [Column(name, format, right=True) for name in names]


class Table:
    """Table of values; on a terminal, columns that do not fit continue below, after the first."""

    def __init__(
        self,
        title: str,
        columns: Iterable[str | Column],
        rows: Iterable[Sequence[Value]] = (),
    ):
        self.title = title
        self.columns = [Column(x) if isinstance(x, str) else x for x in columns]
        self.rows = list(rows)

    def add_row(self, *values: Value) -> None:
        """Adds a row; None is an empty cell."""
        self.rows.append(values)

    def text(self) -> list[list[str]]:
        """Returns the text of all cells, the header first."""
        header = [column.name for column in self.columns]
        return [header, *([_text(*x) for x in self._pairs(row)] for row in self.rows)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Renders the parts of the table for a terminal, one below the other."""
        title = self.title or None
        cells = list(zip(*self.text(), strict=True))
        footers = any(column.footer for column in self.columns)
        for numbers_of_part in self._split(cells, options.max_width):
            part = rich.table.Table(title=title, show_footer=footers, **_STYLE)
            columns = [self.columns[i] for i in numbers_of_part]
            for column in columns:
                part.add_column(
                    column.name,
                    column.footer,
                    justify="right" if column.right else "left",
                    no_wrap=not column.wrap,
                    overflow="fold" if column.wrap == "fold" else "ellipsis",
                )
            for row in zip(*(cells[i][1:] for i in numbers_of_part), strict=True):
                part.add_row(*row)
            width = max(options.max_width, self._width(cells, numbers_of_part))
            yield from part.__rich_console__(console, options.update_width(width))
            title = None

    def _pairs(self, row: Sequence[Value]) -> Iterable[tuple[Value, Column]]:
        return zip(row, self.columns, strict=True)

    def _split(self, cells: Sequence[Sequence[str]], width: int) -> list[list[int]]:
        """Returns the columns of each part, by their numbers."""
        parts = [[0]]
        for number in range(1, len(self.columns)):
            if len(parts[-1]) > 1 and self._width(cells, [*parts[-1], number]) > width:
                parts.append([0])
            parts[-1].append(number)
        return parts

    def _width(self, cells: Sequence[Sequence[str]], columns: Sequence[int]) -> int:
        """The least width of columns: a space on the left, and two characters between them."""
        return sum(_width(self.columns[i], cells[i]) + 2 for i in columns) + 1


def _text(value: Value, column: Column) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else format(value, column.format)


def _width(column: Column, cells: Sequence[str]) -> int:
    """The least width of a column: its longest word, or its longest cell if it does not wrap."""
    texts = [*cells, column.footer]
    if column.wrap:
        texts = [word for text in texts for word in text.split()]
    longest = max(map(cell_len, texts), default=0)
    return min(longest, _FOLDED) if column.wrap == "fold" else longest
