"""Snapshot of one run, in progress or not: its records, and whether a process trains it."""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from anytime_jax.averaging import LIVE
from anytime_jax.checkpoints import metric_records, run_json, run_ownership
from anytime_jax.checkpoints.metric_records import Row
from anytime_jax.commands.loss_table import (
    define,
    evaluated_rows,
    loss_table,
    name_at,
    weight_labels,
)
from anytime_jax.config.clock import Clock
from anytime_jax.config.kinds import NOBODY, Trust
from anytime_jax.config.run_config import Config
from anytime_jax.formatting import format_count, format_duration, format_time
from anytime_jax.storage.files import file_versions
from anytime_jax.storage.paths import storage_path
from anytime_jax.tables import Table

_LONGEST = 1e10  # seconds
# Reading the records of a long run takes seconds of a processor that the training may need, so the
# next reading waits for this many times as long.
_REST = 30
_SHORT = 0.1  # a reading of so few seconds needs no rest
T = TypeVar("T")
_ROWS = 12  # of a table, besides those at doublings


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """A run at one moment.

    Attributes:
      name: name of the run.
      config: its settings at the last start.
      rows: its records.
      trunk: the records of the trunk of a branch, up to where the branch left it.
      warnings: a line for each damaged part of the records.
      change: time of the last write to the records, in seconds since 1970, and their size.
      next_reading: when the records may be read again, by `time.monotonic`.
      is_training: whether a process trains it; None in a bucket, where nobody can tell.
      time: when the snapshot was taken, in seconds since 1970.
    """

    run_dir: Path
    name: str
    config: Config
    rows: list[Row]
    trunk: list[Row]
    warnings: list[str]
    change: tuple[float, int]
    next_reading: float
    is_training: bool | None
    time: float

    @property
    def clock(self) -> Clock:
        """The clock of the run."""
        return self.config.clock

    @functools.cached_property
    def evaluated(self) -> list[tuple[Row, dict[str, float]]]:
        """The rows with an evaluation, each with its losses by weight label."""
        return evaluated_rows(self.rows)

    @functools.cached_property
    def _latest(self) -> dict[str, float]:
        return {name: value for row in self.rows for name, value in row.values.items()}

    def is_news_after(self, before: "Snapshot") -> bool:
        """Returns whether something that is shown has changed since another snapshot."""
        return (before.rows[-1:], before.is_training, before.warnings) != (
            (self.rows[-1:], self.is_training, self.warnings)
        )

    def describe_position(self) -> str:
        """Describes the latest step in all units."""
        if not self.rows:
            return f"{self.name} has written no record yet, in {self.run_dir}"
        return f"{self.name} at {self.clock.describe(self.rows[-1].step)}, in {self.run_dir}"

    def describe_process(self) -> str:
        """Says whether a process trains the run, and when its last record was written."""
        horizon = self.config.horizon
        if self.is_training:
            state = "training"
        elif self.rows and horizon is not None and self.rows[-1].step >= horizon:
            state = "finished at its horizon"
        elif self.is_training is None:
            state = "in a bucket, where nobody can tell whether a process trains it"
        else:
            state = "no process trains it"
        return f"{state}; last record at {format_time(self.change[0])}" if self.rows else state

    def describe_training(self) -> str | None:
        """Describes loss, rate, speed and the time to the next doubling, if recorded."""
        values = self._latest
        if "train/loss" not in values:
            return None
        step, speed = self.rows[-1].step, values.get("tokens_per_s", 0.0)
        line = f"training loss {values['train/loss']:.4f}"
        if "lr" in values:
            line += f", rate {values['lr']:.3e}"
        doubling = self.clock.next_doubling(step)
        left = self.clock.tokens(doubling) - self.clock.tokens(step)
        if not 0 < speed < math.inf or left / speed >= _LONGEST:  # the clock stood still or jumped
            return line
        line += f", {format_count(speed)} tokens/s"
        if not self.is_training:
            return line
        return line + f"; {self.clock.multiple(doubling):.4g}x in {format_duration(left / speed)}"

    def describe_best(self) -> str:
        """Describes the best weights at the latest evaluation."""
        if not self.evaluated:
            return "no evaluation yet: see config.eval.every"
        row, losses = self.evaluated[-1]
        best = min(losses, key=lambda label: losses[label])
        gain = losses.get(LIVE, losses[best]) - losses[best]
        line = f"best weights: {name_at(row, best)}, {losses[best]:.4f} nats"
        if best != LIVE:
            line += f", {gain:.4f} below the live weights"
        return f"{line}, at {self.clock.describe(row.step)}"


def describe(snapshot: Snapshot, after: int = -1) -> Iterator[str | Table]:
    """Yields lines about a run and a table of its last evaluations after the step `after`."""
    yield snapshot.describe_position()
    yield f"  {snapshot.describe_process()}"
    if training := snapshot.describe_training():
        yield f"  {training}"
    evaluated = [(row, losses) for row, losses in snapshot.evaluated if row.step > after]
    if evaluated:
        shown = shown_rows(evaluated, lambda x: snapshot.clock.is_doubling(x[0].step))
        yield loss_table(snapshot.clock, shown)
        yield f"  {define(weight_labels(evaluated))}"
    if evaluated or (snapshot.rows and not snapshot.evaluated):
        yield f"  {snapshot.describe_best()}"
    yield from snapshot.warnings


def shown_rows(rows: Sequence[T], is_doubling: Callable[[T], bool]) -> list[T]:
    """Returns the rows that a table shows: the last ones, and those before them at doublings."""
    return [row for row in rows[:-_ROWS] if is_doubling(row)] + list(rows[-_ROWS:])


def take(run_dir: str | Path, previous: Snapshot | None = None, trust: Trust = NOBODY) -> Snapshot:
    """Returns a snapshot of a run; with a `previous` one, reads only records that changed.

    If reading takes long, the records are read again only after a while. `trust` says which
    packages are imported for the kinds that the run names.

    Raises an InputError if `run_dir` is not the directory of a run that has begun.
    """
    run_dir = storage_path(run_dir)
    config, run_file = run_json.read_run(str(run_dir), "--run", trust)
    # Checked before the records are read: if the process has ended, they are then complete.
    is_training = run_ownership.is_locked(run_dir)
    now = time.monotonic()
    change = _last_change(run_dir)
    if previous is not None and (change == previous.change or now < previous.next_reading):
        return dataclasses.replace(previous, is_training=is_training, time=time.time())
    warnings: list[str] = []
    start = time.thread_time()
    rows = metric_records.read_records(run_dir, warnings.append)
    seconds = time.thread_time() - start
    next_reading = now + (_REST * seconds if seconds > _SHORT else 0.0)
    trunk = metric_records.read_trunk(run_file.branch, warnings.append)
    read = (run_dir, run_file.name, config, rows, trunk, warnings, change, next_reading)
    return Snapshot(*read, is_training=is_training, time=time.time())


def _last_change(run_dir: Path) -> tuple[float, int]:
    """Returns the time of the last write to the records, in seconds since 1970, and their size.

    Equal answers mean equal records, which need not be read again. Both are 0 without records.
    """
    versions = file_versions(run_dir / metric_records.DIRECTORY).values()
    return max((time for _, time in versions), default=0.0), sum(size for size, _ in versions)
