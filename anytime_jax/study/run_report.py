"""Report of one run, finished or in progress: state, losses, best average, forecast, curves."""

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console, RenderableType

from anytime_jax.errors import InputError
from anytime_jax.study import run_snapshot
from anytime_jax.study.run_losses import loss_table
from anytime_jax.study.run_snapshot import Snapshot

_ROWS = 12  # evaluations in the table


def show(run_dir: str | Path, console: Console, output: str | Path | None = None) -> None:
    """Prints the state of a run and draws its curves into the run directory, or into `output`.

    Where the curves cannot be drawn, a line says why.

    Raises an InputError if `run_dir` is not a run directory.
    """
    snapshot = run_snapshot.take(run_dir)
    for line in describe(snapshot):
        console.print(line)
    if snapshot.evaluated:
        for part in _forecast(snapshot.run_dir):
            console.print(part)
        console.print(f"  {_draw(output or run_dir, snapshot)}")


def describe(snapshot: Snapshot, after: int = -1) -> Iterator[RenderableType]:
    """Yields lines about a run and a table of its last evaluations after the step `after`."""
    yield snapshot.describe_position()
    yield f"  {snapshot.describe_process()}"
    if training := snapshot.describe_training():
        yield f"  {training}"
    evaluated = [(row, losses) for row, losses in snapshot.evaluated if row.step > after]
    if evaluated:
        yield loss_table(snapshot.clock, evaluated[-_ROWS:])
    if evaluated or (snapshot.rows and not snapshot.evaluated):
        yield f"  {snapshot.describe_best()}"
    yield from snapshot.warnings


def _forecast(run_dir: Path) -> list[RenderableType]:
    from anytime_jax.study import forecast_report, forecast_subject  # `watch` needs no SciPy

    try:
        subject = forecast_subject.open_run(run_dir)
        return list(forecast_report.summarize(subject, forecast_subject.forecast(subject)))
    except InputError as error:
        return [f"  no forecast: {error}"]
    except Exception as error:  # the losses are printed already
        return [f"  no forecast: {type(error).__name__}: {error}"]


def _draw(directory: str | Path, snapshot: Snapshot) -> str:
    from anytime_jax.study import run_figure  # Matplotlib takes half a second: `watch` needs none

    try:
        return f"curves: {run_figure.draw(directory, snapshot.name, snapshot.rows)}"
    except Exception as error:  # of Matplotlib or of the disk: the losses are printed already
        return f"the curves could not be drawn in {directory}: {type(error).__name__}: {error}"
