"""Metrics of a run on the host: the meter that reads them, and the trackers that record them.

Training writes every name at most once per step: `train/loss`, `train/grad_norm`, `train/clipped`,
`train/update_norm`, `train/spikes`, `train/skipped`, `lr`, `tokens_per_s`, `mfu`,
`eval/LABEL/loss`, `eval_seconds`, and with `log.relative_updates`
`train/relative_update/PARAMETER`. `evaluate --tasks` adds
`tasks/WEIGHTS/TASK/METRIC` later, in place of an earlier score.
"""

import collections
import importlib.util
import json
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax

from anytime_jax.checkpoints import run_directory
from anytime_jax.config.schema import Config, LogConfig
from anytime_jax.errors import InputError
from anytime_jax.storage.files import can_append
from anytime_jax.storage.paths import absolute_path, storage_path
from anytime_jax.training.step import RELATIVE_UPDATES, Metrics

TENSORBOARD = "tensorboard"  # directory of its event files in a run

# Updates that may be under way on the device before the host waits for the oldest: enough to keep
# the device busy, few enough that batches do not pile up in its memory.
AHEAD = 4

# A row has the mean of some metrics over the updates since the last row, skipped ones left out, and
# the last value of others. The rest of the metrics are for the training loop alone.
_MEANS = ("loss", "grad_norm", "clipped", "update_norm")
_LAST = {"lr": "lr", "spikes": "train/spikes", "skipped": "train/skipped"}


# Number of an update, its metrics on the host, and the row to record if one is due.
Reading = tuple[int, dict[str, float], dict[str, float] | None]


class Meter:
    """Copies the metrics of updates to the host without stalling the device.

    The loop pushes the metrics of each update as device arrays. They are read `AHEAD` updates
    later, when reading them does not wait.
    """

    def __init__(
        self,
        every: int,
        tokens: Callable[[int], int],
        peak_tokens_per_s: float | None,
        interval: Mapping[str, list[float]] | None = None,
        parameters: Sequence[str] = (),
    ):
        """Initializes the meter, which makes a row after every `every` updates.

        `tokens` is the number of tokens after a number of updates. `peak_tokens_per_s` is the speed
        at full use of the devices, None if unknown. `interval` is `Meter.interval` at the
        checkpoint, so that a resumed run writes the same means. `parameters` are the names of those
        that relative updates are of.
        """
        self._every = every
        self._tokens = tokens
        self._peak_tokens_per_s = peak_tokens_per_s
        self._pending: collections.deque[tuple[int, Metrics]] = collections.deque()
        self._interval = {name: list(values) for name, values in (interval or {}).items()}
        self._parameters = parameters
        self._timed_tokens = 0
        self._seconds = 0.0
        self._clock: float | None = None  # when `_seconds` was last brought up to date

    def push(self, step: int, metrics: Metrics) -> list[Reading]:
        """Adds an update that was just dispatched; returns the readings that are ready."""
        self._pending.append((step, metrics))
        # The first update compiles: the clock starts when it is done.
        return self._read(down_to=0 if self._clock is None else AHEAD)

    def pause(self) -> list[Reading]:
        """Waits for all updates and returns their readings; stops the clock until `resume`."""
        readings = self._read(down_to=0)
        self._advance_clock()
        return readings

    def resume(self) -> None:
        """Starts the clock again, unless no update has been made, as the first one compiles."""
        if self._clock is not None:
            self._clock = time.perf_counter()

    @property
    def interval(self) -> dict[str, list[float]]:
        """Metrics of the updates since the last row; complete after `pause`."""
        return {name: list(values) for name, values in self._interval.items()}

    def _read(self, down_to: int) -> list[Reading]:
        return [self._read_oldest() for _ in range(len(self._pending) - down_to)]

    def _read_oldest(self) -> Reading:
        step, on_device = self._pending.popleft()
        on_host = jax.device_get(on_device)
        relative_updates = on_host.pop(RELATIVE_UPDATES, ())
        names = self._parameters if len(relative_updates) else ()
        metrics = {name: float(value) for name, value in on_host.items()}
        if not metrics["consecutive_skips"]:  # a skipped update may have a loss of NaN
            of_parameters = {
                f"relative_update/{name}": float(x)
                for name, x in zip(names, relative_updates, strict=True)
            }
            means = {name: metrics[name] for name in _MEANS} | of_parameters
            for name, value in means.items():
                self._interval.setdefault(name, []).append(value)
        if self._clock is None:
            self._clock = time.perf_counter()
        else:
            self._timed_tokens += self._tokens(step) - self._tokens(step - 1)
        return step, metrics, self._row(metrics) if step % self._every == 0 else None

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
        if self._clock is not None:
            now = time.perf_counter()
            self._seconds += now - self._clock
            self._clock = now


class Tracker(Protocol):
    """Destination of metrics, such as the records of a run or TensorBoard."""

    def write(self, step: int, tokens: int, values: Mapping[str, float]) -> None:
        """Writes the values of a step, by name; `tokens` are the tokens seen."""
        ...

    def sync(self) -> None:
        """Stores everything written; the records raise an OSError if they cannot be stored."""
        ...

    def close(self) -> None:
        """Stores what is left and closes the destination."""
        ...


class _TensorBoard:
    """Event files in `RUN/tensorboard`, with the settings as text.

    They are written in the thread that calls: the library's own writer has another, which a full
    disk ends, and for which a write to its queue would then wait forever.
    """

    def __init__(self, config: Config, from_step: int):
        from tensorboardX import summary
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2

        events: Any = event_pb2  # its names are made when it is imported
        self._scalar, self._event = summary.scalar, events.Event
        directory = storage_path(config.directory) / TENSORBOARD
        directory.mkdir(parents=True, exist_ok=True)
        self._events = EventsWriter(str(directory / "events"))
        start = events.SessionLog(status=events.SessionLog.START)
        self._add(from_step + 1, session_log=start)  # TensorBoard drops what is later
        settings = json.dumps(config.to_dict(), indent=1)
        # Of the step at which this start began, so that the settings of earlier ones stay.
        self._add(from_step, summary=summary.text("settings", f"```json\n{settings}\n```"))

    def write(self, step: int, tokens: int, values: Mapping[str, float]) -> None:
        del tokens
        for name, value in values.items():
            self._add(step, summary=self._scalar(name, value))

    def _add(self, step: int, **content: Any) -> None:
        event = self._event(wall_time=time.time(), step=step, **content)
        self._events.write_event(event)

    def sync(self) -> None:
        self._events.flush()

    def close(self) -> None:
        self._events.close()


class _Wandb:
    """Run of Weights & Biases, the same for every start in one run directory.

    Its group is the folder of the directory, which the runs of a study and a trunk with its
    branches have in common.
    """

    def __init__(self, config: Config):
        import wandb  # pyright: ignore[reportMissingImports]

        run_dir = storage_path(config.directory)
        folder = run_dir if can_append(run_dir) else tempfile.gettempdir()
        self._run = wandb.init(
            project=config.log.wandb_project,
            name=config.name,
            group=absolute_path(run_dir).parent.name,
            id=run_directory.run_id(run_dir),
            config=config.to_dict(),
            dir=str(folder),
            resume="allow",
        )

    def write(self, step: int, tokens: int, values: Mapping[str, float]) -> None:
        self._run.log({**values, "tokens": tokens}, step=step)

    def sync(self) -> None:
        pass  # the library sends by itself

    def close(self) -> None:
        self._run.finish()


def open_mirrors(config: Config, from_step: int, say: Callable[[str], None]) -> list[Tracker]:
    """Opens TensorBoard and Weights & Biases where configured, and returns them.

    In TensorBoard, values of earlier starts after step `from_step` are superseded. `say` is told if
    a run has no TensorBoard files because it is in a bucket.
    """
    mirrors: list[Tracker] = []
    if config.log.wandb_project:
        mirrors.append(_Wandb(config))
    if config.log.tensorboard and can_append(storage_path(config.directory)):
        mirrors.append(_TensorBoard(config, from_step))
    elif config.log.tensorboard:
        say("tensorboard left out: its files grow, which files in a bucket cannot")
    return mirrors


def check_wandb(log: LogConfig) -> None:
    """Raises an InputError if Weights & Biases is configured and not installed."""
    if log.wandb_project and importlib.util.find_spec("wandb") is None:
        raise InputError(
            f"config.log.wandb_project = {log.wandb_project!r} needs Weights & Biases: pip install "
            "'anytime_jax[wandb]', or leave it empty"
        )
