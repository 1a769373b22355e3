"""One start of a run: its directory, data, records and checkpoints.

The loop in `trainer.py` uses it, and owns the state and the calls of the compiled functions.
"""

import contextlib
import dataclasses
import datetime
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from anytime_jax import __version__
from anytime_jax.checkpoints import (
    checkpoint_listing,
    checkpoint_reader,
    metric_records,
    run_directory,
)
from anytime_jax.checkpoints.checkpoint_listing import saved_steps
from anytime_jax.checkpoints.manager import (
    CheckpointManager,
    RestoredCheckpoint,
    restore_checkpoint,
)
from anytime_jax.checkpoints.metric_records import is_evaluated
from anytime_jax.checkpoints.retention import retention_policy
from anytime_jax.config.schema import Config
from anytime_jax.data.dataset import DatasetInfo
from anytime_jax.distributed import lost_process_exit, processes
from anytime_jax.distributed.device_specs import device_spec
from anytime_jax.errors import BucketError, InputError, RunError
from anytime_jax.models.flops import flops_per_token
from anytime_jax.storage.failures import is_temporary, storage_errors
from anytime_jax.storage.paths import absolute_path, storage_path
from anytime_jax.training import branching, preflight
from anytime_jax.training.batches import Batch, iterate_batches
from anytime_jax.training.metrics import Measurement, Meter, Writers, check_wandb
from anytime_jax.training.pretrained import Pretrained, find_pretrained, init_from_pretrained
from anytime_jax.training.progress import Display
from anytime_jax.training.step import Metrics, TrainState


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a start of a run ended, after `step` updates and `samples` windows of its dataset.

    `reason` is "stop" (it reached its stop), "interrupted", or "data" (all windows were used).
    """

    step: int
    reason: str
    samples: int = dataclasses.field(default=0, compare=False)


class TrainingRun:
    """One start of a run: everything but its state.

    Attributes:
      program: its compiled functions; set by `start`.
      step: updates done.
      saved_step: step of the latest checkpoint, 0 if none.
      missed_evaluation: whether the last start ended before the evaluation due at its last step.
    """

    def __init__(
        self,
        config: Config,
        mesh: Mesh,
        dataset: DatasetInfo,
        display: Display,
    ):
        """Initializes the run without reading or writing files, which `start` does."""
        self.config = config
        self.step = self.saved_step = 0
        self._stop_step: int | None = None
        self.missed_evaluation = False
        self._mesh, self._dataset, self._display = mesh, dataset, display
        self._directory = storage_path(config.run_dir)
        self._resources = contextlib.ExitStack()
        self._eval_every, self._save_every = (
            config.interval_steps("eval"),
            config.interval_steps("checkpoint"),
        )
        self._retention = retention_policy(config)
        self._origin: dict[str, str] = {}  # digests of what the run starts from
        self._confirm_lock = lambda: None
        self._sample_offset = 0  # only a branch that reads other data than its trunk has another

    def start(self, fall_back: bool = False) -> TrainState | None:
        """Resumes the run from its latest checkpoint, or starts it; returns its state.

        With `fall_back`, a damaged checkpoint is set aside and the newest intact one is restored.
        Returns None if the run is at its stop already.
        """
        config, run_dir = self.config, self._directory
        self.saved_step = processes.broadcast(max(saved_steps(run_dir), default=0))
        with processes.fail_together():
            trunk = branching.find_trunk(config, self._dataset)
            pretrained = find_pretrained(config, self._dataset)
            identity = config.identity(self._dataset.fingerprint)
            self._origin = {"branch.checkpoint": trunk.digest} if trunk else {}
            self._origin |= {"initial_weights": pretrained.digest} if pretrained else {}
            identity |= self._origin
            run_directory.check_identity(run_dir, identity)
            if trunk:
                self._sample_offset = trunk.samples - config.clock.samples(trunk.step)
            self.step = self.saved_step or (trunk.step if trunk else 0)
            if not (self.saved_step or fall_back):
                preflight.check_not_lost(config, self.step)
            self._find_stop()
        if self._is_complete():
            return None
        with processes.fail_together():
            if processes.is_primary():
                check_wandb(config.log)
            self.program = preflight.make_checked_program(config, self._mesh)
            if processes.is_primary():
                self._claim(identity, trunk)
        preflight.check_shared(run_dir)
        preflight.print_summary(
            config,
            self._mesh,
            self._dataset,
            self._display,
            self.program,
            self.step,
            self._stop_step,
        )
        state, meta = self._restore_or_init(trunk, pretrained, fall_back)
        self._open_records(meta)
        self.missed_evaluation = self.is_evaluation_due() and not self._was_evaluated()
        self._resources.enter_context(self._display)
        return state

    def _samples(self, step: int) -> int:
        """Windows of the dataset consumed after a number of updates."""
        return self._sample_offset + self.config.clock.samples(step)

    def _find_stop(self) -> None:
        self._stop_step, self._stop_reason = preflight.find_stop(
            self.config, self._dataset, self.step, self._samples(self.step)
        )

    def _is_complete(self) -> bool:
        if self._stop_step is None or self.step < self._stop_step:
            return False
        if self.saved_step and not self._is_latest_readable():
            return False  # to restore it fails, and names the damage
        return self.step > self._stop_step or self._was_evaluated()

    def _is_latest_readable(self) -> bool:
        """Whether the latest checkpoint is that of its step and of this run."""
        path = checkpoint_listing.checkpoint_path(self._directory, self.saved_step)
        try:
            checkpoint_reader.read_meta(path)
        except RunError:
            return False
        return True

    def _was_evaluated(self) -> bool:
        """Whether the records that the primary process reads have an evaluation at this step."""
        return bool(processes.broadcast(is_evaluated(self._directory, self.step)))

    def _claim(self, identity: Mapping[str, Any], trunk: branching.Trunk | None) -> None:
        """Makes the directory belong to this run, and locks it until `close`."""
        config = self.config
        about = {"name": config.name, "version": __version__, "config": config.to_dict()}
        about["data_path"] = str(absolute_path(self._dataset.path))  # wherever one reads the run
        about |= {"branch": trunk.provenance} if trunk else {}
        run_directory.initialize(self._directory, identity, about)
        lock = run_directory.lock(self._directory, self._display.say)
        self._confirm_lock = self._resources.enter_context(lock)

    def _restore_or_init(
        self, trunk: branching.Trunk | None, pretrained: Pretrained | None, fall_back: bool
    ) -> tuple[TrainState, Mapping[str, Any]]:
        """Returns the state to train from and the meta of its checkpoint, if any."""
        config, abstract, clock = self.config, self.program.abstract_state, self.config.clock
        self._checkpoints = CheckpointManager(self._directory, self._retention, self._display.say)
        self._resources.callback(self._checkpoints.close)
        restored = self._checkpoints.restore_latest(abstract, fall_back)
        self.saved_step = restored.meta["step"] if restored else 0
        if trunk and not restored:
            restored = restore_checkpoint(trunk.path, abstract)
        step = restored.meta["step"] if restored else 0
        if step != self.step:
            self.step = step
            self._find_stop()
        stop = "no end" if self._stop_step is None else clock.describe(self._stop_step)
        self._display.say(f"from     {clock.describe(step)} to {stop}")
        if restored:
            self._set_start_of_averages(restored)
            return restored.state, restored.meta
        self._averages_since = dict.fromkeys(config.averaging_rules, 0)
        if pretrained:
            return init_from_pretrained(pretrained, config, self.program), {}
        return self.program.init(config.seed), {}

    def _set_start_of_averages(self, restored: RestoredCheckpoint) -> None:
        """Sets the step at which each average started; prints new and dropped ones."""
        since = restored.meta.get("averages_since", {})
        self._averages_since = {label: since.get(label, 0) for label in self.config.averaging_rules}
        for label in restored.added_averages:
            self._averages_since[label] = self.step
            self._display.say(
                f"average {label} is new: it starts from the weights at step {self.step:,}"
            )
        for label in restored.dropped_averages:
            self._display.say(f"average {label} is no longer kept")

    def _open_records(self, meta: Mapping[str, Any]) -> None:
        config, mesh = self.config, self._mesh
        header = {
            "version": __version__,
            "jax": jax.__version__,
            "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "devices": f"{mesh.size} x {mesh.devices.flat[0].device_kind}",
        }
        self._writers = Writers(self._directory, config.name, config.log, self.step, header)
        self._resources.callback(self._close_writers)
        found = self._writers.rows_before(self.step)
        is_resumed = self.saved_step and processes.is_primary()
        if is_resumed and (missing := metric_records.describe_missing(found, meta)):
            self._display.say(f"records  {missing}")
        spec = device_spec(mesh.devices.flat[0])
        self._meter = Meter(
            config.interval_steps("log"),
            config.clock.tokens,
            spec and spec.peak_flops * mesh.size / flops_per_token(config.model),
            meta.get("interval"),
        )
        self._batches = iterate_batches(
            config, mesh, self._dataset, self.step, self._samples(self.step)
        )

    def _close_writers(self) -> None:
        with contextlib.suppress(OSError):  # every row of a saved step is stored already
            self._writers.close()

    # The steps of the training loop

    def is_at_stop(self) -> bool:
        """Whether the run has reached its stop."""
        return self.step == self._stop_step

    def read_batch(self) -> Batch:
        """Returns the batch of the next update."""
        try:
            return next(self._batches)
        except RunError as error:
            raise self.error(str(error)) from error

    def finish_update(self, metrics: Metrics) -> None:
        """Counts an update, and passes its metrics to the meter."""
        self.step += 1
        self._write(self._meter.push(self.step, metrics))

    def is_save_due(self) -> bool:
        """Whether to save a checkpoint at this step."""
        due = self.step % self._save_every == 0 or self._retention.keeps_forever(self.step)
        return due or self.is_at_stop()

    def save(self, state: TrainState) -> None:
        """Saves a checkpoint; returns when the state is copied to host memory."""
        self.pause_meter()
        with processes.fail_together("keep the lock of the run", RunError):
            self._confirm_lock()
        self._writers.sync()
        self._checkpoints.save(state, self._meta())
        self._meter.resume()
        self.saved_step = self.step

    def is_evaluation_due(self) -> bool:
        """Whether to evaluate the weights at this step."""
        due = self.step % self._eval_every == 0 or self.config.clock.is_doubling(self.step)
        return (self.step > 0 and due) or self.is_at_stop()

    def pause_meter(self) -> None:
        """Waits for all dispatched updates, and excludes what follows from the measured speed."""
        self._write(self._meter.pause())

    def record_evaluation(self, losses: Mapping[str, float], seconds: float) -> None:
        """Writes the validation losses by label, and resumes the meter."""
        self._meter.resume()
        for label, loss in losses.items():
            if not math.isfinite(loss):
                what = f"the validation loss of {label} at step {self.step:,} is {loss}"
                raise self.error(what, "a lower peak rate, in a new run_dir")
        values = {f"eval/{label}/loss": loss for label, loss in losses.items()}
        tokens = self.config.clock.tokens(self.step)
        self._writers.write(self.step, tokens, {**values, "eval_seconds": seconds})
        self._display.evaluated(self.step, losses)

    def outcome(self, is_interrupted: bool) -> Outcome:
        """Returns how this start of the run ended."""
        reason = "interrupted" if is_interrupted else self._stop_reason
        return Outcome(self.step, reason, self._samples(self.step))

    def explain(self, error: Exception) -> Exception:
        """Closes the run after an error, and returns the error to raise."""
        failure = error
        if processes.is_sign_of_loss(error):
            failure = lost_process_exit.make_error(error)
        elif isinstance(error, jax.errors.JaxRuntimeError):
            advice = "more microbatches, remat or a smaller eval.batch_size, if memory ran out"
            failure = self.error(str(error)[:300], advice)
        elif isinstance(error, storage_errors()):
            failure = self.error(f"{error}. Fix the cause, then run the same command again")
            if is_temporary(error, self._directory):
                failure = BucketError(str(failure))
        if failure is not error:
            failure.__cause__ = error
        try:
            self.close()
        except RunError as failed_save:  # the checkpoint that `failure` names was not saved
            failure = failed_save
        return failure

    def close(self) -> None:
        """Waits for pending saves and unlocks the directory; raises a RunError if a save failed."""
        self._resources.close()

    def error(self, what: str, advice: str = "") -> RunError:
        """Returns an error that names the last good checkpoint."""
        last = f"that of step {self.saved_step:,}" if self.saved_step else "none"
        directory = absolute_path(self._directory) / checkpoint_listing.DIRECTORY
        message = f"{what}; the last good checkpoint in {directory} is {last}"
        return RunError(message + (f". Try {advice}" if advice else ""))

    def _write(self, measurements: Sequence[Measurement]) -> None:
        """Records measurements; raises a RunError at an update that ends the run."""
        for step, metrics, row in measurements:
            self._check_update(step, metrics)
            if row is not None:
                self._writers.write(step, self.config.clock.tokens(step), row)
                self._display.update(step, row)

    def _check_update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Prints a spike or a skipped update; raises a RunError at one that ends the run."""
        guard, skips = self.config.guard, int(metrics["consecutive_skips"])
        if not skips and not metrics["spiked"] and math.isfinite(metrics["update_norm"]):
            return
        slower = "a lower peak rate, a longer warmup or a smaller clip_norm, in a new run_dir"
        update = (
            f"update {step:,} (samples {self._samples(step - 1):,} to {self._samples(step) - 1:,}) "
            f"has a loss of {metrics['loss']:.4g}, after {metrics['recent_loss']:.4g} of late, and "
            f"a gradient of norm {metrics['grad_norm']:.4g}"
        )
        if skips > guard.limit:
            raise self.error(f"{update}: bad update number {skips} in a row", slower)
        if skips and guard.skip == "nothing":
            skip = "--config.guard.skip=nonfinite to skip such batches"
            raise self.error(update, f"{skip}, or {slower}")
        if not math.isfinite(metrics["update_norm"]):
            raise self.error(f"update {step:,} has a norm of {metrics['update_norm']}", slower)
        if skips:
            self._display.say(f"{update}: skipped, {int(metrics['skipped'])} so far")
        else:
            self._display.say(f"{update}: a spike, {int(metrics['spikes'])} so far")

    def _meta(self) -> dict[str, Any]:
        clock = self.config.clock
        return {
            "samples": self._samples(self.step),
            "tokens": clock.tokens(self.step),
            "multiple": clock.multiple(self.step),
            "interval": self._meter.interval,
            "averages_since": self._averages_since,
            "rows": self._writers.rows_before(self.step),
            "config": self.config.to_dict(),
            "origin": self._origin,
            "fingerprint": self._dataset.fingerprint,
            "vocabulary": self._dataset.vocabulary_sha256,
            "version": __version__,
            "jax": jax.__version__,
        }


@contextlib.contextmanager
def closing(run: TrainingRun) -> Iterator[None]:
    """Closes a run after the body, whose errors become those of the run."""
    try:
        yield
        run.close()
    except (
        InputError,
        RunError,
        jax.errors.JaxRuntimeError,
        *storage_errors(),
    ) as error:
        failure = run.explain(error)
        if failure is error:
            raise
        raise failure from error
    finally:
        run.close()
