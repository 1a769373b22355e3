"""One start of a run: what it asks for, update by update, and what it writes down.

What a run does, in which order, is a generator (`Run.asks`): it asks for updates, evaluations and
the state, and whoever drives it answers. `train` drives one run; `fleet` drives many, and makes
what they ask for at once in one program.
"""

import contextlib
import dataclasses
import datetime
import itertools
import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from anytime_jax import __version__
from anytime_jax.checkpoints.checkpoint_directory import saved_steps
from anytime_jax.checkpoints.manager import CheckpointManager, RestoredCheckpoint
from anytime_jax.checkpoints.records import is_evaluated
from anytime_jax.checkpoints.retention import retention_policy
from anytime_jax.config.schema import Config
from anytime_jax.data.dataset import DatasetInfo
from anytime_jax.data.windows import Windows, prefetch_batches
from anytime_jax.distributed import processes, sharding
from anytime_jax.errors import RunError
from anytime_jax.models import flops
from anytime_jax.training.metrics import Meter, NoWriters, Writers
from anytime_jax.training.progress import Display
from anytime_jax.training.step import Program, TrainState


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a call of `train` ended.

    Attributes:
      step: updates done.
      reason: "stop" (it reached its stop), "interrupted", or "data" (all windows were used).
      samples: of its data that were consumed.
    """

    step: int
    reason: str
    samples: int = dataclasses.field(default=0, compare=False)


@dataclasses.dataclass(frozen=True)
class Update:
    """Asks for an update; the answer is its metrics.

    Attributes:
      tokens: this process's rows of the batch.
      batch_size: rows of the batch over all processes.
      update_averages: whether the averages move.
    """

    tokens: np.ndarray
    batch_size: int
    update_averages: bool


class Evaluation:
    """Asks for the validation loss of every weight tree, by label; None if interrupted."""


class Current:
    """Asks for the state, after every update that was asked for."""


Ask = Update | Evaluation | Current
Asks = Generator[Ask, Any, Outcome]


def read_stream(
    config: Config, dataset: DatasetInfo, samples: int, batch_size: int, rows: slice
) -> Iterator[np.ndarray]:
    """Iterates over a run's batches from a sample on, reading ahead.

    Args:
      config: the run.
      dataset: prepared token windows.
      samples: those before the first batch.
      batch_size: rows of a batch, over all processes.
      rows: those of this process.
    """
    windows = Windows(
        dataset,
        "train",
        length=config.model.length,
        seed=config.data.seed,
        repeat=config.data.repeat,
    )
    return prefetch_batches(windows, samples, batch_size, rows)


def was_evaluated(run_dir: Path, step: int) -> bool:
    """Whether the records hold an evaluation of a step, as the process that writes them sees it."""
    return bool(processes.broadcast(is_evaluated(run_dir, step)))


class Run:
    """One start of a run.

    Attributes:
      config: the run.
      mesh: the device mesh.
      dataset: prepared token windows.
      program: its functions.
    """

    def __init__(
        self,
        config: Config,
        mesh: Mesh,
        dataset: DatasetInfo,
        display: Display,
        program: Program,
        checkpoints: CheckpointManager,
        restored: RestoredCheckpoint | None,
        read: Callable[..., Iterator[np.ndarray]],
        goal: int | None,
        reason: str,
    ):
        """Takes over what `begun` has found; see there."""
        self.config, self.mesh, self.dataset, self.program = config, mesh, dataset, program
        self._display, self._checkpoints, self._read = display, checkpoints, read
        self._goal, self._reason = goal, reason
        self._eval_every, self._save_every = config.every("eval"), config.every("checkpoint")
        self._keeps_forever = retention_policy(config).keeps_forever
        meta: dict[str, Any] = restored.meta if restored else {}
        self._state: TrainState | None = restored.state if restored else program.init()
        if restored:
            for label in restored.added_averages:
                step = f"{restored.meta['step']:,}"
                display.say(f"average {label} is new: it starts from the weights at step {step}")
            for label in restored.dropped_averages:
                display.say(f"average {label} is no longer kept")
        self._start = int(self._state.step)
        begun: dict[str, int] = meta.get("averages_since", {})
        added = restored.added_averages if restored else ()
        self._since = {
            label: self._start if label in added else begun.get(label, 0)
            for label in config.averages
        }
        self._saved = processes.broadcast(max(saved_steps(config.run_dir), default=0))
        self._samples = int(meta.get("samples", 0))
        self._start_samples = self._samples
        head = (Path(config.run_dir), config.name, config.log, self._start, _header(mesh))
        self._writers = Writers(*head) if processes.is_primary() else NoWriters()
        peak = flops.peak_flops(mesh.devices.flat[0])
        self._meter = Meter(
            config.every("log"),
            self._landed,
            self._logged,
            config.clock.tokens,
            peak and peak * mesh.size / flops.flops_per_token(config.model),
            meta.get("interval"),
        )

    def take_state(self) -> TrainState:
        """Returns the state that the run begins from, once: from here on others hold it."""
        state, self._state = self._state, None
        assert state is not None
        return state

    def asks(self, interrupted: Callable[[], bool]) -> Asks:
        """Makes the run: asks for what it needs until it is at its stop, or interrupted.

        Args:
          interrupted: asked after every update.

        Returns:
          how the run ended.
        """
        step, goal = self._start, self._goal
        batches = self._batches()
        try:
            due = step == goal or (step > 0 and self._evaluates(step))
            if due and not was_evaluated(Path(self.config.run_dir), step):
                yield from self._evaluate(step)  # the last start was ended before or in it
            while step != goal and not interrupted():
                update_averages = (step + 1) % self.config.average_every == 0
                metrics = yield Update(*next(batches), update_averages)
                step += 1
                self._samples += self.config.clock.batch_at(step - 1)
                self._meter.push(step, metrics)
                # Saved first: an evaluation that is cut short is made up for at the next start.
                if self._saves(step) or step == goal:
                    yield from self._save(step)
                if self._evaluates(step) or step == goal:
                    yield from self._evaluate(step)
            if step > self._saved:
                yield from self._save(step)
            ended = step == goal and not interrupted()
            return Outcome(step, self._reason if ended else "interrupted", self._samples)
        except jax.errors.JaxRuntimeError as error:
            advice = "more microbatches, remat or a smaller eval.batch_size, if memory ran out"
            if not processes.is_single():
                advice += "; the same lines again, if a process was lost"
            raise self._broken(str(error)[:300], advice) from error
        except OSError as error:
            raise self._broken(str(error), "to mend that, then the same line again") from error
        finally:
            with contextlib.suppress(OSError):  # every row is on its way to the disk already
                self._writers.close()
            self._checkpoints.wait()

    def _broken(self, what: str, advice: str = "") -> RunError:
        last = f"that of step {self._saved:,}" if self._saved else "none"
        where = f"the last good checkpoint in {self._checkpoints.directory} is {last}"
        return RunError(f"{what}; {where}" + (f". Try {advice}" if advice else ""))

    def _landed(self, step: int, values: Mapping[str, float]) -> None:
        """Looks at the metrics of an update: says what is odd, and stops what went wrong."""
        guard, in_a_row = self.config.guard, int(values["consecutive_skips"])
        if not in_a_row and not values["spiked"] and math.isfinite(values["update_norm"]):
            return
        clock = self.config.clock
        first = self._start_samples + clock.samples(step - 1) - clock.samples(self._start)
        batch = f"samples {first:,} to {first + clock.batch_at(step - 1) - 1:,}"
        slower = "a lower peak rate, a longer warmup or a smaller clip_norm, in a new run_dir"
        what = (
            f"update {step:,} ({batch}) has a loss of {values['loss']:.4g}, after "
            f"{values['recent_loss']:.4g} of late, and a gradient of norm {values['grad_norm']:.4g}"
        )
        if in_a_row > guard.limit:
            raise self._broken(f"{what}: bad update number {in_a_row} in a row", slower)
        if in_a_row and guard.skip == "nothing":
            skip = "--config.guard.skip=nonfinite to pass over such batches"
            raise self._broken(what, f"{skip}, or {slower}")
        if not math.isfinite(values["update_norm"]):
            raise self._broken(f"update {step:,} has a norm of {values['update_norm']}", slower)
        if in_a_row:
            self._display.say(f"{what}: skipped, {int(values['skipped'])} so far")
        else:
            self._display.say(f"{what}: a spike, {int(values['spikes'])} so far")

    def _batches(self) -> Iterator[tuple[np.ndarray, int]]:
        """This process's rows of the batches from the next sample on, and how large those are."""
        step, samples = self._start, self._samples
        for size, count in self.config.clock.batches(step):
            rows = sharding.local_rows(self.mesh, size)
            batches = self._read(self.config, self.dataset, samples, size, rows)
            for _ in itertools.count() if count is None else range(count):
                with self._reading():
                    tokens = np.asarray(next(batches))
                yield tokens, size
            samples += size * (count or 0)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Names the last good checkpoint where the data cannot be read."""
        try:
            yield
        except RunError as error:
            raise self._broken(str(error)) from error

    def _evaluates(self, step: int) -> bool:
        return step % self._eval_every == 0 or self.config.clock.is_doubling(step)

    def _saves(self, step: int) -> bool:
        return step % self._save_every == 0 or self._keeps_forever(step)

    def _logged(self, step: int, values: dict[str, float]) -> None:
        self._writers.write(step, self.config.clock.tokens(step), values)
        self._display.update(step, values)

    def _evaluate(self, step: int) -> Generator[Ask, Any, None]:
        with self._meter.paused(), self._reading():
            began = time.perf_counter()
            losses: dict[str, float] | None = yield Evaluation()
            seconds = time.perf_counter() - began
        if losses is None:  # interrupted: the next start makes up for it
            return
        for label, loss in losses.items():
            if not math.isfinite(loss):
                what = f"the validation loss of {label} at step {step:,} is {loss}"
                raise self._broken(what, "a lower peak rate, in a new run_dir")
        values = {f"eval/{label}/loss": loss for label, loss in losses.items()}
        tokens = self.config.clock.tokens(step)
        self._writers.write(step, tokens, {**values, "eval_seconds": seconds})
        self._display.evaluated(step, losses)

    def _save(self, step: int) -> Generator[Ask, Any, None]:
        with self._meter.paused():
            self._writers.sync()
            state: TrainState = yield Current()
            self._checkpoints.save(state, self._meta(step))
        self._saved = step

    def _meta(self, step: int) -> dict[str, Any]:
        clock = self.config.clock
        return {
            "samples": self._samples,
            "tokens": clock.tokens(step),
            "multiple": clock.multiple(step),
            "interval": self._meter.interval,
            "averages_since": self._since,
            "config": dict(self.config.source),
            "fingerprint": self.dataset.fingerprint,
            "vocabulary": self.dataset.vocabulary_sha256,
            "version": __version__,
            "jax": jax.__version__,
        }


def _header(mesh: Mesh) -> dict[str, Any]:
    now = datetime.datetime.now(datetime.UTC)
    return {
        "version": __version__,
        "jax": jax.__version__,
        "started": now.isoformat(timespec="seconds"),
        "devices": f"{mesh.size} x {mesh.devices.flat[0].device_kind}",
    }
