"""Description of one run, finished or in progress: state, losses, best average."""

from collections.abc import Iterator

from rich.console import RenderableType

from anytime_jax.checkpoints.recorded_losses import loss_table
from anytime_jax.lab.monitor.run_snapshot import Snapshot

_ROWS = 12  # evaluations in the table


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
