"""Line chart for terminals, drawn with braille dots, or in ASCII if the encoding lacks them."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # dots of a braille character
_BRAILLE = 0x2800
_ROWS_PER_LABEL = 3
_MARKER_COLUMNS = 4  # least distance between two markers of a line, in columns
_LEAST_WIDTH, _LEAST_HEIGHT = 20, 5


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of a chart through its points, as pairs of x and y, in the order of x.

    Each point shows the `marker`, one ASCII character. Without a marker, the points in one column
    of dots are averaged.
    """

    label: str
    points: Sequence[tuple[float, float]]
    marker: str = ""
    style: str = ""


class LineChart:
    """Renderable chart with a logarithmic x axis.

    Later lines are drawn over earlier ones and come first in the legend.

    Points outside `y_limits` are left out. The chart fills the width, and `height` lines.
    """

    def __init__(
        self,
        title: str,
        lines: Sequence[Line],
        y_limits: tuple[float, float],
        format_x: Callable[[float], str],
        height: int = 12,
    ):
        self._title = title
        self._lines = [
            dataclasses.replace(line, points=[p for p in line.points if _is_drawn(p)])
            for line in lines
        ]
        low, high = y_limits
        margin = 0.02 * (high - low) or 0.05
        self._low, self._high = low - margin, high + margin
        self._format_x = format_x
        self._height = max(height, _LEAST_HEIGHT)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Renders the title, which is the legend, the plot and the numbers of the x axis."""
        width, rows = max(options.max_width, _LEAST_WIDTH), self._height - 3
        xs = [math.log2(x) for line in self._lines for x, _ in line.points]
        yield self._legend(width)
        if not xs:
            yield Text("(nothing to draw yet)", style="dim")
            return
        step = (self._high - self._low) / rows
        digits = min(max(1 - math.floor(math.log10(step * _ROWS_PER_LABEL)), 0), 6)
        labels = [f"{self._high - (row + 0.5) * step:.{digits}f}" for row in range(rows)]
        margin = max(map(len, labels))
        canvas = _Canvas(width - margin - 1, rows, options.ascii_only)
        start, end = min(xs), max(xs)
        if start == end:
            start, end = start - 1, end + 1
        for line in self._lines:
            self._draw(canvas, line, start, end)
        corner, bar, dash, tick = "+|-+" if options.ascii_only else "└│─┴"
        for row, text in enumerate(canvas.rows()):
            label = labels[row] if row % _ROWS_PER_LABEL == _ROWS_PER_LABEL // 2 else ""
            yield Text(f"{label:>{margin}}{bar}").append_text(text)
        axis, numbers = self._x_axis(canvas.columns, start, end)
        yield Text(" " * margin + corner + "".join(tick if x else dash for x in axis))
        yield Text((" " * (margin + 1) + numbers)[:width])

    def _legend(self, width: int) -> Text:
        text = Text(self._title, no_wrap=True)
        for line in reversed(self._lines):
            text.append(f"   {line.marker or '.'} {line.label}", style=line.style)
        text.truncate(width)
        return text

    def _draw(self, canvas: "_Canvas", line: Line, start: float, end: float) -> None:
        width, height = canvas.dots
        dots = [
            (
                (math.log2(x) - start) / (end - start) * (width - 1),
                (self._high - y) / (self._high - self._low) * height - 0.5,
            )
            for x, y in line.points
        ]
        if not line.marker:
            dots = _average_columns(dots)
        canvas.connect(dots, line.style)
        if line.marker:
            canvas.mark(dots, line.marker, line.style)

    def _x_axis(self, columns: int, start: float, end: float) -> tuple[list[bool], str]:
        """Returns for each column whether it has a tick, and the line of numbers."""
        powers = [float(k) for k in range(math.ceil(start), math.floor(end) + 1)]
        while len(powers) > max(columns // 8, 2):
            powers = powers[::-1][::2][::-1]  # the latest tick stays
        ticks = powers if len(powers) > 1 else [start, (start + end) / 2, end]
        axis, numbers = [False] * columns, ""
        for tick in ticks:
            column = round((tick - start) / (end - start) * (columns - 1))
            label = self._format_x(2**tick)
            begin = min(max(column - len(label) // 2, 0), columns - len(label))
            if begin > len(numbers) or not numbers:
                axis[column] = True
                numbers = f"{numbers:<{begin}}{label}"
        return axis, numbers


class _Canvas:
    """Grid of characters, each of two by four dots, or of one dot in ASCII."""

    def __init__(self, columns: int, rows: int, ascii_only: bool):
        self.columns = columns
        self._dot_columns, self._dot_rows = (1, 1) if ascii_only else (2, 4)
        self.dots = columns * self._dot_columns, rows * self._dot_rows
        self._cells = [[0] * columns for _ in range(rows)]
        self._markers: dict[tuple[int, int], str] = {}
        self._styles: dict[tuple[int, int], str] = {}
        self._ascii_only = ascii_only

    def connect(self, dots: Sequence[tuple[float, float]], style: str) -> None:
        """Draws straight lines between dots, one after another."""
        for (x, y), (next_x, next_y) in zip(dots, [*dots[1:], *dots[-1:]], strict=True):
            # A line to a point far outside would take many steps, so it is clipped.
            steps = min(math.ceil(max(abs(next_x - x), abs(next_y - y), 1)), 10 * sum(self.dots))
            for i in range(steps + 1):
                self._set(x + (next_x - x) * i / steps, y + (next_y - y) * i / steps, style)

    def mark(self, dots: Sequence[tuple[float, float]], marker: str, style: str) -> None:
        """Draws a marker at the last dot, and at earlier dots that are not too close."""
        last = math.inf
        for x, y in reversed(dots):
            row, column = self._cell(x, y)
            if 0 <= row < len(self._cells) and last - column >= _MARKER_COLUMNS:
                self._markers[row, column], self._styles[row, column] = marker, style
                last = column

    def rows(self) -> Iterator[Text]:
        """Yields the lines of text."""
        for row, cells in enumerate(self._cells):
            text = Text(no_wrap=True)
            for column, cell in enumerate(cells):
                drawn = ("." if self._ascii_only else chr(_BRAILLE + cell)) if cell else " "
                marker = self._markers.get((row, column), drawn)
                text.append(marker, style=self._styles.get((row, column), ""))
            yield text

    def _cell(self, x: float, y: float) -> tuple[int, int]:
        return round(y) // self._dot_rows, round(x) // self._dot_columns

    def _set(self, x: float, y: float, style: str) -> None:
        row, column = self._cell(x, y)
        if 0 <= row < len(self._cells):
            dot = _DOTS[round(y) % self._dot_rows][round(x) % self._dot_columns]
            self._cells[row][column] |= dot
            self._styles[row, column] = style


def _is_drawn(point: tuple[float, float]) -> bool:
    return point[0] > 0 and all(map(math.isfinite, point))


def _average_columns(dots: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    columns: dict[int, list[float]] = {}
    for x, y in dots:
        columns.setdefault(round(x), []).append(y)
    return [(float(x), math.fsum(ys) / len(ys)) for x, ys in sorted(columns.items())]
