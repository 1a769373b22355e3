"""Metrics of a run on the host: the meter that reads them, and the writers that record them.

Every name is written at most once per step: `train/loss`, `train/grad_norm`, `train/clipped`,
`train/update_norm`, `train/spikes`, `train/skipped`, `lr`, `tokens_per_s`, `mfu`,
`eval/LABEL/loss`, `eval_seconds`.
"""

import collections
import importlib.util
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

from anytime_jax.checkpoints.metric_records import RecordWriter
from anytime_jax.config.schema import LogConfig
from anytime_jax.distributed import processes
from anytime_jax.errors import InputError
from anytime_jax.storage.growing_files import GrowingDirectory
from anytime_jax.training.events import Event
from anytime_jax.training.step import Metrics

# Updates that may be under way on the device before the host waits for the oldest: enough to keep
# the device busy, few enough that batches do not pile up in its memory.
AHEAD = 4

# A row has the mean of some metrics over the updates since the last row, skipped ones left out, and
# the last value of others. The rest of the metrics are for the training loop alone.
_MEANS = ("loss", "grad_norm", "clipped", "update_norm")
_LAST = {"lr": "lr", "spikes": "train/spikes", "skipped": "train/skipped"}


class Measurement(NamedTuple):
    """Metrics of update number `step`, on the host; `row` is what to record, if a row is due."""

    step: int
    metrics: dict[str, float]
    row: dict[str, float] | None


class Meter:
    """Copies the metrics of updates to the host without stalling the device.

    The loop pushes the metrics of each update as device arrays. They are read `AHEAD` updates
    later, when reading them does not wait.
    """

    def __init__(
        self,
        rows: Event,
        tokens: Callable[[int], int],
        peak_tokens_per_s: float | None,
        interval: Mapping[str, list[float]] | None = None,
    ):
        """Initializes the meter, which makes a row where `rows` is due.

        `tokens` is the number of tokens after a number of updates, `peak_tokens_per_s` that of a
        second at full use of the devices, None if unknown. `interval` is `Meter.interval` at the
        checkpoint, so that a resumed run writes the same means.
        """
        self._rows = rows
        self._tokens = tokens
        self._peak_tokens_per_s = peak_tokens_per_s
        self._pending: collections.deque[tuple[int, Metrics]] = collections.deque()
        self._interval = {name: list(values) for name, values in (interval or {}).items()}
        self._timed_tokens = 0
        self._seconds = 0.0
        self._clock: float | None = None  # when `_seconds` was last brought up to date

    def push(self, step: int, metrics: Metrics) -> list[Measurement]:
        """Adds an update that was just dispatched; returns the measurements that are ready."""
        self._pending.append((step, metrics))
        # The first update compiles: the clock starts when it is done.
        return self._read(down_to=0 if self._clock is None else AHEAD)

    def pause(self) -> list[Measurement]:
        """Waits for all updates and returns their measurements; stops the clock until `resume`."""
        measurements = self._read(down_to=0)
        self._advance_clock()
        return measurements

    def resume(self) -> None:
        """Starts the clock again."""
        self._clock = time.perf_counter()

    @property
    def interval(self) -> dict[str, list[float]]:
        """Metrics of the updates since the last row; complete after `pause`."""
        return {name: list(values) for name, values in self._interval.items()}

    def _read(self, down_to: int) -> list[Measurement]:
        return [self._read_oldest() for _ in range(len(self._pending) - down_to)]

    def _read_oldest(self) -> Measurement:
        step, on_device = self._pending.popleft()
        metrics = {name: float(value) for name, value in jax.device_get(on_device).items()}
        if not metrics["consecutive_skips"]:  # a skipped update may have a loss of NaN
            for name in _MEANS:
                self._interval.setdefault(name, []).append(metrics[name])
        if self._clock is None:
            self._clock = time.perf_counter()
        else:
            self._timed_tokens += self._tokens(step) - self._tokens(step - 1)
        return Measurement(step, metrics, self._row(metrics) if self._rows.due(step) else None)

    def _row(self, last: Mapping[str, float]) -> dict[str, float]:
        row = {f"train/{name}": math.fsum(v) / len(v) for name, v in self._interval.items()}
        row |= {name: last[metric] for metric, name in _LAST.items()}
        self._advance_clock()
        if self._timed_tokens and self._seconds > 0:  # a clock may stand still
            row["tokens_per_s"] = self._timed_tokens / self._seconds
            if self._peak_tokens_per_s is not None:
                row["mfu"] = row["tokens_per_s"] / self._peak_tokens_per_s
        self._interval = {}
        self._timed_tokens, self._seconds = 0, 0.0
        return row

    def _advance_clock(self) -> None:
        now = time.perf_counter()
        self._seconds += now - (self._clock or now)
        self._clock = now


class Writers:
    """Writers of a run's records, and of TensorBoard and Weights & Biases where configured.

    In all processes but the primary one, the writers write nothing.
    """

    def __init__(
        self,
        run_dir: Path,
        name: str,
        log: LogConfig,
        from_step: int,
        header: Mapping[str, Any],
    ):
        """Opens the writers; rows after step `from_step` of an earlier start are superseded.

        `header` is JSON data for the first line of the new segment of the records; `name` is the
        run's name in Weights & Biases.
        """
        self._records = self._tensorboard = self._wandb = None
        if not processes.is_primary():
            return
        if log.wandb_project:
            import wandb  # pyright: ignore[reportMissingImports]

            self._wandb_files = GrowingDirectory(run_dir)
            self._wandb = wandb.init(
                project=log.wandb_project,
                name=name,
                id=name,
                dir=str(self._wandb_files.local),
                resume="allow",
            )
        if log.tensorboard:
            from tensorboardX import SummaryWriter

            self._events = GrowingDirectory(run_dir / "tensorboard")
            self._tensorboard = SummaryWriter(str(self._events.local), purge_step=from_step + 1)
        self._records = RecordWriter(run_dir, from_step, header)

    def write(self, step: int, tokens: int, values: Mapping[str, float]) -> None:
        """Writes the values of a step, by name."""
        if self._records is not None:
            self._records.write(step, tokens, values)
        if self._tensorboard is not None:
            for name, value in values.items():
                self._tensorboard.add_scalar(name, value, step)
        if self._wandb is not None:
            self._wandb.log({**values, "tokens": tokens}, step=step)

    def rows_before(self, step: int) -> int:
        """Returns the number of rows before the current step, 0 in other processes."""
        return 0 if self._records is None else self._records.rows_before(step)

    def sync(self) -> None:
        """Returns once the records are stored."""
        if self._records is not None:
            self._records.sync()
        if self._tensorboard is not None:
            self._tensorboard.flush()
            self._events.upload()

    def close(self) -> None:
        """Closes every writer."""
        if self._records is not None:
            self._records.close()
        if self._tensorboard is not None:
            self._tensorboard.close()
            self._events.upload()
        if self._wandb is not None:
            self._wandb.finish()


def check_wandb(log: LogConfig) -> None:
    """Raises an InputError if the package of a configured mirror is not installed."""
    if log.wandb_project and importlib.util.find_spec("wandb") is None:
        raise InputError(
            f"config.log.wandb_project = {log.wandb_project!r} needs Weights & Biases: pip install "
            "'anytime_jax[wandb]', or leave it empty"
        )
