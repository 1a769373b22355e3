"""What is measured while training: the meter between device and host, and the writers.

Every number is written once per step and name: `train/loss`, `train/grad_norm`, `train/clipped`,
`train/update_norm`, `train/spikes`, `train/skipped`, `lr`, `tokens_per_s`, `mfu`,
`eval/LABEL/loss`, `eval_seconds`.
"""

import collections
import contextlib
import importlib.util
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from anytime_jax.checkpoints.records import RecordWriter
from anytime_jax.config.schema import LogConfig
from anytime_jax.errors import InputError
from anytime_jax.training.step import Metrics

# Updates that may be under way on the device before the host waits for the oldest: enough to keep
# the device busy, few enough that batches do not pile up in its memory.
AHEAD = 4

# What a row holds of an update's metrics: the mean over the updates that were made since the last
# row, or for these the value at the row's own update. All else is for the loop alone.
_MEANS = ("loss", "grad_norm", "clipped", "update_norm")
_LAST = {"lr": "lr", "spikes": "train/spikes", "skipped": "train/skipped"}


class Meter:
    """Turns the metrics of updates into rows without holding the device up.

    The loop pushes the metrics of each update as device arrays. They land on the host `AHEAD`
    updates later, when reading them costs no wait.
    """

    def __init__(
        self,
        every: int,
        landed: Callable[[int, dict[str, float]], None],
        emit: Callable[[int, dict[str, float]], None],
        tokens: Callable[[int], int],
        peak_tokens_per_s: float | None,
        interval: Mapping[str, list[float]] | None = None,
    ):
        """Starts a meter.

        Args:
          every: distance between rows, in updates.
          landed: called with the step and the metrics of every update, in order; what it raises
            comes out of the call that made the update land.
          emit: called with the step and the values of each row, in order.
          tokens: tokens seen after so many updates.
          peak_tokens_per_s: tokens per second at full use of the devices; None if unknown.
          interval: values of the updates since the last row, as `interval` of the meter of a saved
            run gave them: a resumed run then writes the same means.
        """
        self._every = every
        self._landed = landed
        self._emit = emit
        self._tokens = tokens
        self._peak_tokens_per_s = peak_tokens_per_s
        self._flying: collections.deque[tuple[int, Metrics]] = collections.deque()
        self._interval = {name: list(values) for name, values in (interval or {}).items()}
        self._timed_tokens = 0
        self._seconds = 0.0
        self._since: float | None = None

    def push(self, step: int, metrics: Metrics) -> None:
        """Takes the metrics of an update that was just dispatched."""
        self._flying.append((step, metrics))
        if self._since is None:
            self.drain()  # the first update compiles: the clock starts when it is done
        while len(self._flying) > AHEAD:
            self._land()

    def drain(self) -> None:
        """Waits for every update under way."""
        while self._flying:
            self._land()

    @property
    def interval(self) -> dict[str, list[float]]:
        """Values of the updates since the last row; complete after `drain`."""
        return {name: list(values) for name, values in self._interval.items()}

    def pause(self) -> None:
        """Drains, and leaves the time until `resume` out of the speed."""
        self.drain()
        self._read_clock()

    def resume(self) -> None:
        """Lets the clock run again."""
        self._since = time.perf_counter()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Pauses while what is inside runs."""
        self.pause()
        yield
        self.resume()

    def _land(self) -> None:
        step, metrics = self._flying.popleft()
        values = {name: float(value) for name, value in jax.device_get(metrics).items()}
        self._landed(step, values)
        if not values["consecutive_skips"]:  # a bad update is not made: its loss may be no number
            for name in _MEANS:
                self._interval.setdefault(name, []).append(values[name])
        if self._since is None:
            self._since = time.perf_counter()
        else:
            self._timed_tokens += self._tokens(step) - self._tokens(step - 1)
        if step % self._every == 0:
            self._emit(step, self._row(values))

    def _row(self, last: Mapping[str, float]) -> dict[str, float]:
        row = {f"train/{name}": math.fsum(v) / len(v) for name, v in self._interval.items()}
        row |= {name: last[metric] for metric, name in _LAST.items()}
        self._read_clock()
        if self._timed_tokens:
            row["tokens_per_s"] = self._timed_tokens / self._seconds
            if self._peak_tokens_per_s is not None:
                row["mfu"] = row["tokens_per_s"] / self._peak_tokens_per_s
        self._interval = {}
        self._timed_tokens, self._seconds = 0, 0.0
        return row

    def _read_clock(self) -> None:
        now = time.perf_counter()
        self._seconds += now - (self._since or now)
        self._since = now


class Writers:
    """The records of a run, mirrored to TensorBoard and Weights & Biases where asked."""

    def __init__(
        self,
        run_dir: Path,
        name: str,
        log: LogConfig,
        from_step: int,
        header: Mapping[str, Any],
    ):
        """Opens the writers.

        Args:
          run_dir: the run's directory.
          name: the run's name.
          log: where to mirror to.
          from_step: the step this start of the run begins at.
          header: plain data for the head of the records' segment.
        """
        self._tensorboard = self._wandb = None
        if log.wandb_project:
            import wandb  # pyright: ignore[reportMissingImports]

            self._wandb = wandb.init(
                project=log.wandb_project, name=name, id=name, dir=str(run_dir), resume="allow"
            )
        if log.tensorboard:
            from tensorboardX import SummaryWriter

            directory = str(run_dir / "tensorboard")
            self._tensorboard = SummaryWriter(directory, purge_step=from_step + 1)
        self._records = RecordWriter(run_dir, from_step, header)

    def write(self, step: int, tokens: int, values: Mapping[str, float]) -> None:
        """Writes values of a step everywhere."""
        self._records.write(step, tokens, values)
        if self._tensorboard is not None:
            for name, value in values.items():
                self._tensorboard.add_scalar(name, value, step)
        if self._wandb is not None:
            self._wandb.log({**values, "tokens": tokens}, step=step)

    def sync(self) -> None:
        """Makes the records safe on disk."""
        self._records.sync()

    def close(self) -> None:
        """Closes every writer."""
        self._records.close()
        if self._tensorboard is not None:
            self._tensorboard.close()
        if self._wandb is not None:
            self._wandb.finish()


class NoWriters:
    """What stands for `Writers` in the processes that leave writing to the first: nothing."""

    def write(self, step: int, tokens: int, values: Mapping[str, float]) -> None:
        """Writes nothing."""

    def sync(self) -> None:
        """Has nothing to make safe."""

    def close(self) -> None:
        """Has nothing to close."""


def check_mirrors(log: LogConfig) -> None:
    """Raises an InputError if a mirror was asked for whose package is not installed."""
    if log.wandb_project and importlib.util.find_spec("wandb") is None:
        raise InputError(
            f"config.log.wandb_project = {log.wandb_project!r} needs Weights & Biases: pip install "
            "'anytime_jax[wandb]', or leave it empty"
        )
