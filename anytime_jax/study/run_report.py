"""Report of one run, finished or in progress: state, losses, best average, curves."""

import math
import time
from pathlib import Path

from rich.console import Console

from anytime_jax.averaging import LIVE
from anytime_jax.checkpoints import run_directory
from anytime_jax.checkpoints.metric_records import Row, read_records
from anytime_jax.config import schema
from anytime_jax.config.clock import Clock
from anytime_jax.errors import InputError
from anytime_jax.formatting import format_count, format_duration
from anytime_jax.storage.paths import storage_path
from anytime_jax.study import run_figure
from anytime_jax.study.run_losses import evaluations, loss_table

_ROWS = 12  # evaluations in the table
_LONGEST = 1e10  # seconds


def show(
    run_dir: str | Path,
    console: Console,
    watch: float | None = None,
    output: str | Path | None = None,
) -> None:
    """Prints the state of a run and draws its curves; with `watch`, every so many seconds.

    The curves are drawn into the run directory, or into `output`. Where they cannot be drawn, a
    line says why.

    Raises an InputError if `run_dir` is not a run directory.
    """
    if watch is not None and not 0 < watch < 1e6:
        raise InputError(f"--watch={watch:g}: give a number of seconds above 0")
    seen: Row | None = None
    while True:
        name, clock = _read_run(storage_path(run_dir))
        warnings: list[str] = []
        rows = read_records(run_dir, warnings.append)
        lines = [] if rows else [f"{run_dir}: {name} has written no record yet"]
        if rows and rows[-1] != seen:
            seen = rows[-1]
            lines = _describe(clock, rows, f"{name} in {run_dir}")
            if evaluated := evaluations(rows):
                lines += [loss_table(clock, evaluated[-_ROWS:]), _describe_best(clock, evaluated)]
        for line in [*lines, *warnings]:
            console.print(line)
        if lines and evaluations(rows):
            console.print(f"  {_draw(output or run_dir, name, rows)}")
        if watch is None:
            return
        time.sleep(watch)


def _read_run(run_dir: Path) -> tuple[str, Clock]:
    file = run_dir / run_directory.RUN_FILE
    about = run_directory.read_run_file(run_dir, "give another run")
    if about is None:
        raise InputError(f"--run={run_dir} is not a run directory: it has no {file.name}")
    try:
        return str(about["name"]), schema.build(about["config"]).clock
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file} is damaged ({error!r}): give another run") from error


def _draw(directory: str | Path, name: str, rows: list[Row]) -> str:
    try:
        return f"curves: {run_figure.draw(directory, name, rows)}"
    except Exception as error:  # of Matplotlib or of the disk: the losses are printed already
        return f"the curves could not be drawn in {directory}: {type(error).__name__}: {error}"


def _describe(clock: Clock, rows: list[Row], run: str) -> list:
    """Position, training loss and speed."""
    step = rows[-1].step
    lines = [f"{run}: at {clock.describe(step)}"]
    values = {name: value for row in rows for name, value in row.values.items()}  # the latest
    if "train/loss" in values:
        speed = values.get("tokens_per_s", 0.0)
        left = clock.tokens(clock.next_doubling(step)) - clock.tokens(step)
        line = f"  training loss {values['train/loss']:.4f}, rate {values['lr']:.3e}"
        if 0 < speed < math.inf and left / speed < _LONGEST:  # a clock may stand still, or jump
            line += (
                f", {format_count(speed)} tokens/s; next doubling in "
                f"{format_duration(left / speed)}"
            )
        lines.append(line)
    if not any(name.startswith("eval/") for name in values):
        lines.append("  no evaluation yet: see config.eval.every")
    return lines


def _describe_best(clock: Clock, evaluated: list[tuple[Row, dict[str, float]]]) -> str:
    """The best weights at the latest evaluation."""
    row, losses = evaluated[-1]
    best = min(losses, key=lambda label: losses[label])
    gain = losses.get(LIVE, losses[best]) - losses[best]
    line = f"  best weights: {best}, {losses[best]:.4f} nats at {clock.describe(row.step)}"
    return line + (f", {gain:.4f} below the live weights" if best != LIVE else "")
