"""One run, in progress or not: its curves so far, every average, and what a stop now would give."""

import time
from pathlib import Path

from rich.console import Console

from anytime_jax.checkpoints import run_directory
from anytime_jax.checkpoints.records import Row, read_records
from anytime_jax.config import schema
from anytime_jax.config.clock import Clock
from anytime_jax.errors import InputError
from anytime_jax.formatting import format_count, format_duration
from anytime_jax.study import loss_table, run_figure
from anytime_jax.study.loss_table import LIVE

_SHOWN = 12  # evaluations in the table


def show(run_dir: str | Path, console: Console, watch: float | None = None) -> None:
    """Prints what a run has come to and draws its curves, once or again and again.

    Args:
      run_dir: the run's directory.
      console: where to print.
      watch: seconds between looks; None for one.

    Raises:
      InputError: if it is no run.
    """
    if watch is not None and not 0 < watch < 1e6:
        raise InputError(f"--watch={watch:g}: give a number of seconds above 0")
    seen: Row | None = None
    while True:
        name, clock = _read_about(Path(run_dir))
        remarks: list[str] = []
        rows = read_records(run_dir, remarks.append)
        if rows and rows[-1] != seen:
            _print(Path(run_dir), name, clock, rows, console)
            seen = rows[-1]
        elif not rows:
            console.print(f"{run_dir}: {name} has written no record yet", markup=False)
        for remark in remarks:
            console.print(remark, markup=False)
        if watch is None:
            return
        time.sleep(watch)


def _read_about(run_dir: Path) -> tuple[str, Clock]:
    """The name and the clock of a run."""
    about = run_directory.read_run_file(run_dir, "look at another run")
    if about is None:
        raise InputError(
            f"--run={run_dir} is no run (no {run_directory.RUN_FILE} in it): give a run's directory"
        )
    try:
        return str(about["name"]), schema.build(about["config"]).clock
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{run_dir / run_directory.RUN_FILE} is damaged ({error!r})") from error


def _print(run_dir: Path, name: str, clock: Clock, rows: list[Row], console: Console) -> None:
    last = rows[-1]
    where = clock.describe(last.step)
    speed = next(
        (x.values["tokens_per_s"] for x in reversed(rows) if "tokens_per_s" in x.values), 0
    )
    console.print(f"{name} in {run_dir}: at {where}", markup=False)
    trained = next((x for x in reversed(rows) if "train/loss" in x.values), None)
    if trained is not None:
        values = trained.values
        left = clock.tokens(clock.next_doubling(last.step)) - clock.tokens(last.step)
        console.print(
            f"  training loss {values['train/loss']:.4f}, rate {values['lr']:.3e}, "
            f"{format_count(speed)} tokens/s; the next doubling in "
            + (format_duration(left / speed) if speed else "an unknown time")
        )
    evaluated = loss_table.eval_losses(rows)
    if not evaluated:
        console.print("  nothing was evaluated yet: eval.every says when")
        return
    console.print(loss_table.table(clock, evaluated[-_SHOWN:]))
    row, losses = evaluated[-1]
    best = min(losses, key=lambda label: losses[label])
    gain = losses[LIVE] - losses[best] if LIVE in losses else 0.0
    told = "the live weights are the best now" if best == LIVE else (
        f"the best average now is {best}, {gain:.4f} nats below the live weights"
    )  # fmt: skip
    console.print(f"  {told}")
    at = clock.describe(row.step)
    console.print(
        f"  a stop now would give {losses[best]:.4f} nats with {best}, as evaluated at {at}"
        + ("" if row.step == last.step else "; what was trained since then comes on top")
    )
    path = run_figure.draw(run_dir, f"{name}: validation loss, live weights and averages")
    console.print(f"  curves: {path}", markup=False)
