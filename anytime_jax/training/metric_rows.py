"""Metrics of updates on their way from the device to the host, and the rows made of them."""

import collections
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from anytime_jax.checkpoints.metric_records import LAYERS
from anytime_jax.checkpoints.tree_names import flatten_by_name
from anytime_jax.training.step import RELATIVE_UPDATES, Metrics

# Updates that may be under way on the device before the host waits for the oldest: enough to keep
# the device busy, and few enough that batches do not pile up in the device's memory.
AHEAD = 4

# Of some metrics, a row has the mean over the updates since the last row, without skipped updates;
# of others, the last value. All other metrics are for the training loop alone.
_MEANS = ("loss", "grad_norm", "clipped", "update_norm")
_LAST = {"lr": "lr", "spikes": "train/spikes", "skipped": "train/skipped"}


class Reading(NamedTuple):
    """Number of an update, and its metrics on the host.

    Attributes:
      layers: measures of the layers, as `layers/0/weights` or `layers/head/weights`; mostly empty.
      row: the row to record; None if none is due.
    """

    step: int
    metrics: dict[str, float]
    layers: dict[str, float]
    row: dict[str, float] | None


class MetricRows:
    """Copies the metrics of updates to the host, without stalling the device, into rows.

    The loop pushes the metrics of each update as device arrays. They are read `AHEAD` updates
    later, when they are most likely computed, so that the host does not wait for the device.
    """

    def __init__(
        self,
        every: int,
        tokens: Callable[[int], int],
        least_seconds: Callable[[int], float] | None,
        interval: Mapping[str, Sequence[float]] | None = None,
        parameters: Sequence[str] = (),
    ):
        """Begins a row of every `every` updates.

        `tokens` returns the number of tokens after a number of updates. `least_seconds` returns the
        time that an update takes at full use of the devices, by the number of the update; None if
        unknown. `interval` is `MetricRows.interval` at the checkpoint, so that a resumed run writes
        the same means. `parameters` are the names of the parameters, in the order of the metric
        `relative_updates`.
        """
        self._every = every
        self._tokens = tokens
        self._least_seconds = least_seconds
        self._pending: collections.deque[tuple[int, Metrics]] = collections.deque()
        self._interval = {name: list(values) for name, values in (interval or {}).items()}
        self._parameters = parameters
        self._timed_tokens = 0
        self._timed_least = 0.0
        self._seconds = 0.0
        self._clock: float | None = None  # when `_seconds` was last brought up to date

    def push(self, step: int, metrics: Metrics) -> list[Reading]:
        """Adds an update that was just dispatched; returns the readings that are ready."""
        self._pending.append((step, metrics))
        # The first update is waited for: the clock starts when it is done.
        return self._read(down_to=0 if self._clock is None else AHEAD)

    def pause(self) -> list[Reading]:
        """Waits for all updates and returns their readings; time is not counted until `resume`."""
        readings = self._read(down_to=0)
        self._advance_clock()
        return readings

    def resume(self) -> None:
        """Counts time again, unless no update has been made."""
        if self._clock is not None:
            self._clock = time.perf_counter()

    @property
    def interval(self) -> dict[str, tuple[float, ...]]:
        """Metrics of the updates since the last row; complete after `pause`."""
        return {name: tuple(values) for name, values in self._interval.items()}

    def _read(self, down_to: int) -> list[Reading]:
        return [self._read_oldest() for _ in range(len(self._pending) - down_to)]

    def _read_oldest(self) -> Reading:
        step, on_device = self._pending.popleft()
        on_host = jax.device_get(on_device)
        relative_updates = on_host.pop(RELATIVE_UPDATES, ())
        names = self._parameters if len(relative_updates) else ()
        layers = _name_layers(on_host.pop(LAYERS, {}))
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
            if self._least_seconds is not None:
                self._timed_least += self._least_seconds(step)
        row = self._row(metrics) if step % self._every == 0 else None
        return Reading(step, metrics, layers, row)

    def _row(self, last: Mapping[str, float]) -> dict[str, float]:
        row = {f"train/{name}": math.fsum(v) / len(v) for name, v in self._interval.items()}
        row |= {name: last[metric] for metric, name in _LAST.items()}
        self._advance_clock()
        if self._timed_tokens and self._seconds > 0:  # a clock may stand still
            row["tokens_per_s"] = self._timed_tokens / self._seconds
            if self._least_seconds is not None:
                row["mfu"] = self._timed_least / self._seconds
        self._interval = {}
        self._timed_tokens, self._timed_least, self._seconds = 0, 0.0, 0.0
        return row

    def _advance_clock(self) -> None:
        if self._clock is not None:
            now = time.perf_counter()
            self._seconds += now - self._clock
            self._clock = now


def _name_layers(measures: Mapping[str, Any]) -> dict[str, float]:
    """Returns the metrics of `measure_layers` by name, with an entry for every layer."""
    found = {}
    for name, values in flatten_by_name(measures).items():
        if values.ndim:
            found |= {f"{LAYERS}/{i}/{name}": float(x) for i, x in enumerate(values)}
        else:
            found[f"{LAYERS}/{name}"] = float(values)
    return found
