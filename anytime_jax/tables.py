"""Tables for terminals: columns that do not fit continue below, so that no digit is cut."""

import rich.table
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult

_FOLDED = 12  # least width of a column whose long words are folded
_STYLE = {"box": box.SIMPLE, "padding": (0, 1, 0, 0), "title_justify": "left"}


class Table(rich.table.Table):
    """Table of text; where its columns do not fit, the first is repeated beside the others.

    Columns with `no_wrap` are never narrower than their longest cell, others than their longest
    word, or than 12 characters where longer words are folded.
    """

    def __init__(self, title: str | None = None, show_footer: bool = False):
        super().__init__(title=title, show_footer=show_footer, **_STYLE)

    def add_numbers(self, *names: str) -> None:
        """Adds columns that are aligned to the right."""
        for name in names:
            self.add_column(name, justify="right", no_wrap=True)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Renders the parts of the table, one below the other."""
        title = self.title
        for columns in self._split(options.max_width):
            part = rich.table.Table(title=title, show_footer=self.show_footer, **_STYLE)
            for column in columns:
                part.add_column(
                    column.header,
                    column.footer,
                    justify=column.justify,
                    no_wrap=column.no_wrap,
                    overflow=column.overflow,
                )
            for cells in zip(*(column.cells for column in columns), strict=True):
                part.add_row(*cells)
            width = max(options.max_width, _total_width(columns))
            yield from part.__rich_console__(console, options.update_width(width))
            title = None

    def _split(self, width: int) -> list[list[rich.table.Column]]:
        first, *others = self.columns
        parts = [[first]]
        for column in others:
            if len(parts[-1]) > 1 and _total_width([*parts[-1], column]) > width:
                parts.append([first])
            parts[-1].append(column)
        return parts


def _total_width(columns: list[rich.table.Column]) -> int:
    """The least width of a table: a space on the left, and two characters between columns."""
    return sum(_width(column) + 2 for column in columns) + 1


def _width(column: rich.table.Column) -> int:
    texts = [str(text) for text in (column.header, column.footer, *column.cells)]
    if not column.no_wrap:
        texts = [word for text in texts for word in text.split()]
    longest = max(map(cell_len, texts), default=0)
    return min(longest, _FOLDED) if column.overflow == "fold" else longest
