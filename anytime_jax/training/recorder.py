"""Recorder of a run: checks the metrics of its updates, and writes and shows them."""

import contextlib
import datetime
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from anytime_jax import __version__
from anytime_jax.config.schema import Config
from anytime_jax.distributed.device_specs import device_spec
from anytime_jax.models.flops import flops_per_token
from anytime_jax.storage.paths import storage_path
from anytime_jax.training.events import Every
from anytime_jax.training.failures import LastCheckpoint
from anytime_jax.training.metric_writers import Measurement, Meter, Writers
from anytime_jax.training.progress import Display
from anytime_jax.training.step import Metrics


class Recorder:
    """Metrics of a run on their way from the device to its records and to the terminal."""

    def __init__(
        self,
        config: Config,
        mesh: Mesh,
        display: Display,
        last: LastCheckpoint,
        step: int,
        samples: Callable[[int], int],
        interval: Mapping[str, list[float]] | None,
    ):
        """Opens the records after `step`.

        `samples` is the number of windows consumed after a number of updates. `interval` has the
        metrics since the last row, as the checkpoint saved them.
        """
        self._config, self._display, self._last, self._samples = config, display, last, samples
        device = mesh.devices.flat[0]
        header = {
            "version": __version__,
            "jax": jax.__version__,
            "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "devices": f"{mesh.size} x {device.device_kind}",
        }
        run_dir, spec = storage_path(config.run_dir), device_spec(device)
        self._writers = Writers(run_dir, config.name, config.log, step, header)
        self._meter = Meter(
            Every(config.log_steps),
            config.clock.tokens,
            spec and spec.peak_flops * mesh.size / flops_per_token(config.model),
            interval,
        )

    def push(self, step: int, metrics: Metrics) -> None:
        """Takes the metrics of an update just dispatched, and records those that are ready.

        Raises a RunError at an update that ends the run.
        """
        self._write(self._meter.push(step, metrics))

    def pause(self) -> None:
        """Waits for all updates and records them; what follows is no part of the speed."""
        self._write(self._meter.pause())

    def resume(self) -> None:
        """Measures the speed again."""
        self._meter.resume()

    def record_losses(self, step: int, losses: Mapping[str, float], seconds: float) -> None:
        """Records an evaluation, the losses by label; raises a RunError if one is not finite."""
        self.resume()
        for label, loss in losses.items():
            if not math.isfinite(loss):
                what = f"the validation loss of {label} at step {step:,} is {loss}"
                raise self._last.error(what, "a lower peak rate, in a new run_dir")
        values = {f"eval/{label}/loss": loss for label, loss in losses.items()}
        tokens = self._config.clock.tokens(step)
        self._writers.write(step, tokens, {**values, "eval_seconds": seconds})
        self._display.evaluated(step, losses)

    def rows_before(self, step: int) -> int:
        """Returns the number of rows before the current step, 0 in all but the primary process."""
        return self._writers.rows_before(step)

    def sync(self, step: int) -> dict[str, Any]:
        """Stores all rows; returns what a checkpoint of this step says of them, after `pause`."""
        self._writers.sync()
        return {"interval": self._meter.interval, "rows": self._writers.rows_before(step)}

    def close(self) -> None:
        """Closes the records, of which a saved step has every row already."""
        with contextlib.suppress(OSError):
            self._writers.close()

    def _write(self, measurements: Sequence[Measurement]) -> None:
        for step, metrics, row in measurements:
            self._check_update(step, metrics)
            if row is not None:
                self._writers.write(step, self._config.clock.tokens(step), row)
                self._display.update(step, row)

    def _check_update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Prints a spike or a skipped update; raises a RunError at one that ends the run."""
        guard, skips = self._config.guard, int(metrics["consecutive_skips"])
        if not skips and not metrics["spiked"] and math.isfinite(metrics["update_norm"]):
            return
        slower = "a lower peak rate, a longer warmup or a smaller clip_norm, in a new run_dir"
        update = (
            f"update {step:,} (samples {self._samples(step - 1):,} to {self._samples(step) - 1:,}) "
            f"has a loss of {metrics['loss']:.4g}, after {metrics['recent_loss']:.4g} of late, and "
            f"a gradient of norm {metrics['grad_norm']:.4g}"
        )
        if skips > guard.limit:
            raise self._last.error(f"{update}: bad update number {skips} in a row", slower)
        if skips and guard.skip == "nothing":
            skip = "--config.guard.skip=nonfinite to skip such batches"
            raise self._last.error(update, f"{skip}, or {slower}")
        if not math.isfinite(metrics["update_norm"]):
            what = f"update {step:,} has a norm of {metrics['update_norm']}"
            raise self._last.error(what, slower)
        if skips:
            self._display.say(f"{update}: skipped, {int(metrics['skipped'])} so far")
        else:
            self._display.say(f"{update}: a spike, {int(metrics['spikes'])} so far")
