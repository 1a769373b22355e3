"""Recorder of a run: checks the metrics of its updates, and writes and shows them."""

import contextlib
import datetime
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import jax

from anytime_jax.averaging import Late
from anytime_jax.checkpoints import run_json
from anytime_jax.checkpoints.checkpoint_reader import Meta
from anytime_jax.checkpoints.metric_records import (
    KERNEL_ERROR,
    SINCE,
    RecordWriter,
    describe_missing,
)
from anytime_jax.checkpoints.tree_names import flatten_by_name
from anytime_jax.config.run_config import Config
from anytime_jax.distributed import processes
from anytime_jax.distributed.device_specs import device_spec
from anytime_jax.errors import RunError
from anytime_jax.models.flops import flops_per_token
from anytime_jax.storage.failures import storage_errors
from anytime_jax.training.metric_rows import MetricRows, Reading
from anytime_jax.training.plan import Plan
from anytime_jax.training.progress import Display
from anytime_jax.training.run_failures import LastCheckpoint
from anytime_jax.training.step import Metrics
from anytime_jax.training.stopwatch import Stopwatch
from anytime_jax.training.trackers import Mirrors, TrackedRun

if TYPE_CHECKING:  # it needs the extra `tasks`
    from anytime_jax.training.task_evaluation import Tasks, TaskScore


class Recorder:
    """Metrics of a run on their way from the device to its records, trackers and terminal.

    Only the primary process has records and trackers.
    """

    def __init__(
        self,
        plan: Plan,
        display: Display,
        mirrors: Mirrors,
        last: LastCheckpoint,
        meta: Meta,
        averages_since: Mapping[str, int],
        start_id: str,
        confirm_start: Callable[[], None],
    ):
        """Opens the records, and the plan's trackers as `mirrors`, at the plan's step.

        `meta` are the metadata of the checkpoint that was restored. The metrics since its last row
        are continued. If the run's records lack rows before it, the recorder says so.
        `averages_since` is `Meta.averages_since` of this start. `confirm_start` raises a RunError
        if another start than `start_id` has taken over.
        """
        self._plan, self._display, self._mirrors, self._last = plan, display, mirrors, last
        self._stopwatch = Stopwatch()
        self._step = plan.step  # of the update last pushed
        self._averages_since = averages_since
        config, device = plan.config, plan.mesh.devices.flat[0]
        self._records: RecordWriter | None = None
        if processes.is_primary():
            run = TrackedRun(config, run_json.run_id(plan.run_dir), plan.step)
            mirrors.open(plan.trackers, run)
            header = {
                "start": start_id,
                "jax": jax.__version__,
                "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "devices": f"{plan.mesh.size} x {device.device_kind}",
            }
            self._records = RecordWriter(
                config.directory, plan.step, header, confirm_start, self._stopwatch.seconds
            )
            missing = describe_missing(self._records.rows_before(plan.step), meta.rows, plan.step)
            if missing and last.step:
                display.say(f"records  {missing}")
        spec = device_spec(device)
        self._metric_rows = MetricRows(
            config.log_steps,
            config.clock.tokens,
            _least_seconds(config, spec.peak_flops * plan.mesh.size) if spec else None,
            meta.interval,
            list(flatten_by_name(plan.program.abstract_state.params)),
        )

    def push(self, step: int, metrics: Metrics) -> None:
        """Takes the metrics of an update just dispatched, and records metrics that are ready.

        Raises a RunError at an update that ends the run.
        """
        self._step = step
        self._record(self._metric_rows.push(step, metrics))

    @contextlib.contextmanager
    def paused(self, what: str) -> Iterator[None]:
        """Records all updates before the block, whose time counts as `what`, and not as updates."""
        self._record(self._metric_rows.pause())
        with self.spent(what):
            yield
        self._metric_rows.resume()

    def spent(self, what: str) -> AbstractContextManager[None]:
        """Counts the time of the block as `what` in the seconds of the start."""
        return self._stopwatch.spent(what)

    def store_seconds(self) -> None:
        """Records what the time of the start went into so far."""
        if self._records:
            self._records.amend(self._step, self._plan.config.clock.tokens(self._step), {})

    def record_losses(self, step: int, losses: Mapping[str, float], seconds: float) -> None:
        """Records an evaluation; raises a RunError if a loss is not finite.

        Losses are by the names that `Evaluators.losses` gives them.
        """
        for name, loss in losses.items():
            if not math.isfinite(loss):
                what = f"the validation loss {name} at step {step:,} is {loss}"
                raise self._last.error(what, "a lower peak rate, in a new run_dir")
        values = {f"eval/{name}": loss for name, loss in losses.items()}
        errors = self._kernel_errors(step)
        for label, error in errors.items():
            prefix, since = f"eval/{label}", self._averages_since[label]
            values |= {f"{prefix}/{SINCE}": since, f"{prefix}/{KERNEL_ERROR}": error}
        self._write(step, {**values, "eval_seconds": seconds})
        self._sync()
        names = ((name.split("/"), loss) for name, loss in losses.items())
        means = {x[0]: loss for x, loss in names if x[1:] == ["loss"]}
        self._display.evaluated(step, means, errors)

    def record_scores(
        self,
        tasks: "Tasks",
        step: int,
        scores: Mapping[str, Sequence["TaskScore"]],
        seconds: float,
    ) -> None:
        """Records the scores of all weights, by label, in the run's tasks."""
        errors, values = self._kernel_errors(step), dict[str, float]()
        for label, of_label in scores.items():
            values |= tasks.name_scores(label, of_label, errors.get(label, 0.0))
        self._write(step, {**values, "tasks_seconds": seconds})
        self._sync()
        self._display.scored(step, scores)

    def _kernel_errors(self, step: int) -> dict[str, float]:
        """Returns the kernel error of each average that began late, by label."""
        config, errors = self._plan.config, {}
        for label, since in self._averages_since.items():
            if since:
                late = Late(config.averaging_rules[label], config.clock.time(since))
                errors[label] = late.kernel_error(config.clock.times(step))
        return errors

    def sync(self, step: int) -> dict[str, Any]:
        """Stores all rows and returns a checkpoint's metadata about them; call it in `paused`."""
        self._sync()
        rows = self._records.rows_before(step) if self._records else 0
        return {"interval": self._metric_rows.interval, "rows": rows}

    def _sync(self) -> None:
        # The records are last: a start repeats the evaluations that they lack, in all mirrors.
        self._mirrors.sync()
        if self._records:
            self._records.sync()

    def close(self) -> None:
        """Closes the records, which have every row of a saved step already."""
        self._stopwatch.close()
        with contextlib.suppress(RunError, *storage_errors()):
            self.store_seconds()
        if self._records:
            with contextlib.suppress(RunError, *storage_errors()):
                self._records.close()

    def _record(self, readings: Sequence[Reading]) -> None:
        for step, metrics, layers, row in readings:
            if layers:  # of an update that ends the run, they explain its end
                self._write(step, layers)
            self._check_update(step, metrics)
            if row is not None:
                self._write(step, row)
                self._display.update(step, row)

    def _write(self, step: int, values: Mapping[str, float]) -> None:
        tokens = self._plan.config.clock.tokens(step)
        self._mirrors.write(step, tokens, values)
        if self._records:
            self._records.write(step, tokens, values)

    def _check_update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Prints a spike or a skipped update; raises a RunError at an update that ends the run."""
        config, guard = self._plan.config, self._plan.config.guard
        skips = int(metrics["consecutive_skips"])
        if not skips and not metrics["spiked"] and math.isfinite(metrics["update_norm"]):
            return
        slower = "a lower peak rate, a longer warmup or a smaller clip_norm, in a new run_dir"
        first = config.sample_number(config.samples(step - 1))
        update = (
            f"update {step:,} (samples {first:,} to {config.sample_after(step) - 1:,}) "
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
            text = f"{update}: skipped, {int(metrics['skipped'])} so far"
            self._display.say(text)
            self._mirrors.tell("skip", step, text)
        else:
            self._display.say(f"{update}: a spike, {int(metrics['spikes'])} so far")


def _least_seconds(config: Config, peak_flops: float) -> Callable[[int], float]:
    """Returns the time of an update at full use of the devices, by the number of the update."""
    flops = functools.lru_cache(None)(flops_per_token)  # of the model of each stage
    tokens = config.clock.tokens

    def least_seconds(step: int) -> float:
        model = config.stage_at(step - 1).model
        return (tokens(step) - tokens(step - 1)) * flops(model) / peak_flops

    return least_seconds
