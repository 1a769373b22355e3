"""What a person sees while a run goes on: a live line on a terminal, plain lines elsewhere."""

import time
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from anytime_jax.averaging import LIVE
from anytime_jax.config.clock import Clock
from anytime_jax.formatting import format_count, format_duration

_PLAIN_SECONDS = 10.0  # between plain lines, where there is no terminal


class Display:
    """Shows step, tokens, loss, rate, speed, and the time left to the next doubling."""

    def __init__(self, clock: Clock, console: Console):
        """Makes a display; enter it as a context to show the live line.

        Args:
          clock: steps, tokens and multiples of the run.
          console: where to write.
        """
        self.console = console
        self._clock = clock
        self._said = -float("inf")
        self._live: Progress | None = None
        if self.console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(bar_width=None))
            self._live = Progress(*columns, console=self.console, transient=True, expand=True)
            self._task = self._live.add_task("compiling the train step ...", total=None)

    def __enter__(self) -> "Display":
        """Shows the live line."""
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Takes the live line away."""
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """Prints a line that stays."""
        self.console.print(text, markup=False)

    def update(self, step: int, values: Mapping[str, float]) -> None:
        """Shows the state of training after a row of metrics."""
        goal = self._clock.next_doubling(step)
        text = self._line(step, goal, values)
        if self._live is not None:
            base = self._clock.last_doubling(step)
            self._live.update(
                self._task, description=text, completed=step - base, total=goal - base
            )
        elif time.monotonic() - self._said >= _PLAIN_SECONDS:
            self._said = time.monotonic()
            self.say(text)

    def evaluated(self, step: int, losses: Mapping[str, float]) -> None:
        """Prints the validation losses of every weight tree."""
        best = min(losses, key=lambda label: losses[label])
        parts = [f"{label} {loss:.4f}" for label, loss in losses.items()]
        gain = losses[LIVE] - losses[best]
        note = f"  best: {best}" + (f", {gain:.4f} below {LIVE}" if best != LIVE else "")
        self.say(f"{self._clock.multiple(step):>6.4g}x  validation  " + "  ".join(parts) + note)

    def _line(self, step: int, goal: int, values: Mapping[str, float]) -> str:
        tokens = format_count(self._clock.tokens(step))
        parts = [
            f"step {step:,}",
            f"{tokens} tokens",
            # Without a loss if no update was made since the last line: all were bad.
            f"loss {values.get('train/loss', float('nan')):.4f}",
            f"rate {values['lr']:.2e}",
        ]
        if "tokens_per_s" in values:
            speed = values["tokens_per_s"]
            seconds = (self._clock.tokens(goal) - self._clock.tokens(step)) / speed
            parts.append(f"{format_count(speed)} tokens/s")
            if "mfu" in values:
                parts.append(f"MFU {values['mfu']:.1%}")
            parts.append(f"{self._clock.multiple(goal):g}x in {format_duration(seconds)}")
        return "  ".join(parts)
