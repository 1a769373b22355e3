"""Progress display: a live line on a terminal, plain lines elsewhere."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from anytime_jax.averaging import LIVE
from anytime_jax.config.clock import Clock
from anytime_jax.formatting import format_count, format_duration, format_score, name_weights

if TYPE_CHECKING:  # it needs the extra `tasks`
    from anytime_jax.training.task_evaluation import TaskScore

_PLAIN_SECONDS = 10.0  # between plain lines, where there is no terminal


class Display:
    """Context manager that shows step, tokens, loss, rate, speed, and time to the next doubling.

    On a terminal, also the time since the loop began, with the compilation of the update. `stop` is
    the step at which the run ends: the time to it is shown if that is after the doubling.
    """

    def __init__(self, clock: Clock, console: Console):
        self.console = console
        self._clock = clock
        self.stop = math.inf
        self._last_line = -float("inf")
        self._live: Progress | None = None
        if console.is_terminal:
            columns = TextColumn("{task.description}"), BarColumn(bar_width=None)
            elapsed = TimeElapsedColumn(), TextColumn("elapsed")
            self._live = Progress(*columns, *elapsed, console=console, transient=True, expand=True)
            self._task = self._live.add_task("compiling ...", start=False, total=None)

    def __enter__(self) -> "Display":
        if self._live is not None:
            self._live.start_task(self._task)
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """Prints a line that stays on the terminal."""
        self.console.print(text, markup=False)

    def update(self, step: int, values: Mapping[str, float]) -> None:
        """Shows a row of metrics."""
        end = self._clock.next_doubling(step)
        text = self._line(step, end, values)
        if self._live is not None:
            base = self._clock.last_doubling(step)
            self._live.update(self._task, description=text, completed=step - base, total=end - base)
        elif time.monotonic() - self._last_line >= _PLAIN_SECONDS:
            self._last_line = time.monotonic()
            self.say(text)

    def evaluated(
        self, step: int, losses: Mapping[str, float], errors: Mapping[str, float]
    ) -> None:
        """Prints the validation losses of every weight tree, and kernel errors by label."""
        best = min(losses, key=lambda label: (round(losses[label], 4), label != LIVE))
        names = {label: name_weights(label, errors.get(label, 0.0)) for label in losses}
        parts = [f"{names[label]} {loss:.4f}" for label, loss in losses.items()]
        gain = losses[LIVE] - losses[best]
        note = f"  best: {names[best]}" + (f", {gain:.4f} below {LIVE}" if best != LIVE else "")
        self.say(f"{self._clock.multiple(step):>6.4g}x  validation  " + "  ".join(parts) + note)

    def scored(self, step: int, scores: Mapping[str, Sequence["TaskScore"]]) -> None:
        """Prints the scores of every weight tree, by label, with a line for each metric."""
        for of_metric in zip(*scores.values(), strict=True):
            pairs = zip(scores, of_metric, strict=True)
            parts = [f"{label} {format_score(x.value)}" for label, x in pairs]
            name = f"{of_metric[0].task} {of_metric[0].metric}"
            self.say(f"{self._clock.multiple(step):>6.4g}x  {name}  " + "  ".join(parts))

    def _line(self, step: int, end: int, values: Mapping[str, float]) -> str:
        tokens = format_count(self._clock.tokens(step))
        parts = [
            f"step {step:,}",
            f"{tokens} tokens",
            # There is no loss if all updates since the last row were skipped.
            f"loss {values.get('train/loss', float('nan')):.4f}",
            f"rate {values['lr']:.2e}",
        ]
        if "tokens_per_s" in values:
            speed = values["tokens_per_s"]
            parts.append(f"{format_count(speed)} tokens/s")
            if "mfu" in values:
                parts.append(f"MFU {values['mfu']:.1%}")
            for point in sorted({min(end, self.stop), self.stop} - {math.inf}):
                seconds = (self._clock.tokens(int(point)) - self._clock.tokens(step)) / speed
                multiple = f"{self._clock.multiple(int(point)):.4g}x"
                parts.append(f"{multiple} in {format_duration(seconds)}")
        return "  ".join(parts)
