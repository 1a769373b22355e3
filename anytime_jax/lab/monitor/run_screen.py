"""Terminal screen of one run: its state, loss curves and last evaluations."""

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from anytime_jax.averaging import LIVE
from anytime_jax.checkpoints.loss_table import (
    gain_limits,
    gains,
    loss_limits,
    loss_table,
    weight_labels,
)
from anytime_jax.checkpoints.metric_records import Row
from anytime_jax.lab.monitor.run_snapshot import Snapshot
from anytime_jax.lab.monitor.terminal_chart import Line, LineChart

# Styles of the best average, the second, ...; the markers differ too.
_AVERAGES = (("*", "green"), ("+", "magenta"), ("x", "cyan"), ("#", "yellow"))
_LIVE = ("o", "")
_DOUBLINGS = 5  # doublings up to the latest step that the chart shows
_WIDE = 110  # a terminal with so many columns shows two charts
_LEAST_CHART = 8  # lines of a chart, at least


class Screen:
    """Renderable of a snapshot, which fills a terminal."""

    def __init__(self, snapshot: Snapshot):
        self._snapshot = snapshot

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Renders state, charts and table into the width and height of `options`."""
        height = options.height or console.height
        options = options.update(width=options.max_width, height=None)
        cut = "crop" if options.ascii_only else "ellipsis"
        state = [Text(line, no_wrap=True, overflow=cut) for line in self._state()]
        state[0].stylize("bold")
        rows = max((height - len(state) - _LEAST_CHART) // 3 - 1, 1)
        table = self._render(self._table(options.max_width, rows), console, options)
        chart = height - len(state) - len(table) - 1
        lines = [line for text in state for line in self._render(text, console, options)]
        if self._snapshot.rows and chart >= _LEAST_CHART - 2:
            lines += self._render(self._charts(options.max_width, chart), console, options)
        for line in [*lines, *table][:height]:
            yield from line
            yield Segment.line()

    def _state(self) -> list[str]:
        snapshot, warnings = self._snapshot, self._snapshot.warnings
        lines = [snapshot.describe_position(), snapshot.describe_process()]
        lines += [line for line in (snapshot.describe_training(),) if line]
        if snapshot.rows:
            lines.append(snapshot.describe_best())
        if warnings:
            more = f" (and {len(warnings) - 1} more)" if len(warnings) > 1 else ""
            lines.append(f"warning{more}: {warnings[-1]}")
        return lines

    @staticmethod
    def _render(
        renderable: RenderableType, console: Console, options: ConsoleOptions
    ) -> list[list[Segment]]:
        """The lines of a renderable without its blank ones."""
        lines = console.render_lines(renderable, options, pad=False)
        return [line for line in lines if any(segment.text.strip() for segment in line)]

    def _table(self, width: int, rows: int) -> RenderableType:
        """The last evaluations, with as many of the best averages as fit."""
        evaluated = self._snapshot.evaluated[-rows:]
        if not evaluated:
            return ""
        labels = [*_best_labels(evaluated), *weight_labels(evaluated, *evaluated[-1][1])]
        while True:
            table = loss_table(self._snapshot.clock, evaluated, labels)
            if len(labels) < 3 or table.width <= width:
                return table
            labels.pop()

    def _charts(self, width: int, height: int) -> RenderableType:
        losses = self._loss_chart(height)
        averages = _best_labels(self._snapshot.evaluated)
        if width < _WIDE or len(averages) < 2 or averages[0] != LIVE:
            return losses
        grid = Table.grid(expand=True, padding=(0, 2, 0, 0))
        grid.add_column(ratio=1)
        grid.add_column(ratio=1)
        grid.add_row(losses, self._gain_chart(averages[1:], height))
        return grid

    @property
    def _drawn(self) -> list[tuple[Row, dict[str, float]]]:
        """The evaluations on the logarithmic axis: one at step 0 has no place there."""
        return [(row, losses) for row, losses in self._snapshot.evaluated if row.step]

    def _loss_chart(self, height: int) -> LineChart:
        snapshot, evaluated = self._snapshot, self._drawn
        begin = snapshot.rows[-1].step / 2**_DOUBLINGS
        if evaluated:
            begin = max(begin, evaluated[0][0].step / 4)
        clock = snapshot.clock
        shown = [(row, losses) for row, losses in evaluated if row.step >= begin]
        trained = [
            (clock.multiple(row.step), row.values["train/loss"])
            for row in snapshot.rows
            if "train/loss" in row.values and row.step >= begin
        ]
        lines = [Line("training", trained, style="bright_black")]
        best = _best_labels(evaluated)[:3]
        for label, (marker, style) in reversed([*zip(best, _marks(best), strict=False)]):
            points = [(clock.multiple(r.step), x[label]) for r, x in shown if label in x]
            lines.append(Line(label, points, marker, style))
        scale = lines[1:] if len(shown) > 1 else lines  # the training loss starts far above
        limits = loss_limits([loss for line in scale for _, loss in line.points])
        title = "loss (nats)" if evaluated else "loss (nats), no evaluation yet"
        return LineChart(title, lines, limits, _format_multiple, height)

    def _gain_chart(self, averages: Sequence[str], height: int) -> LineChart:
        evaluated, clock = self._drawn, self._snapshot.clock
        lines = [
            Line(label, [(clock.multiple(r.step), x) for r, x in gains(evaluated, label)], *mark)
            for label, mark in zip(averages, _AVERAGES, strict=False)
        ]
        zero = [(clock.multiple(row.step), 0.0) for row, _ in evaluated]
        lines = [Line(LIVE, zero, style="bright_black"), *reversed(lines)]
        limits = gain_limits(evaluated)
        title = f"minus the loss of {LIVE}"
        return LineChart(title, lines, limits, _format_multiple, height)


def _best_labels(evaluated: Sequence) -> list[str]:
    """The live weights, then the averages of the latest evaluation, the best first."""
    if not evaluated:
        return []
    losses = evaluated[-1][1]
    return sorted(losses, key=lambda label: (label != LIVE, losses[label]))


def _marks(labels: Sequence[str]) -> list[tuple[str, str]]:
    return [_LIVE, *_AVERAGES] if labels[:1] == [LIVE] else [*_AVERAGES]


def _format_multiple(multiple: float) -> str:
    return f"{multiple:.3g}x"
