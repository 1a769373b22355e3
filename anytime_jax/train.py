"""The training loop: from where the run stands to where it is to stop."""

import contextlib
import dataclasses
import datetime
import itertools
import math
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from anytime_jax import __version__, branch, flops, hosts, identity, initial, sharding
from anytime_jax.checkpoint import Checkpoints, Restored
from anytime_jax.config import Config
from anytime_jax.data.dataset import DatasetInfo
from anytime_jax.data.windows import Windows, stream
from anytime_jax.errors import InputError, RunError
from anytime_jax.evaluator import Evaluator
from anytime_jax.integrity import saved_steps
from anytime_jax.metrics import Meter, NoWriters, Writers, check_mirrors
from anytime_jax.preflight import announce, checked_program, find_goal
from anytime_jax.progress import Display
from anytime_jax.records import is_evaluated
from anytime_jax.retention import retention
from anytime_jax.step import Program


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


def train(
    config: Config,
    mesh: Mesh,
    dataset: DatasetInfo,
    display: Display,
    interrupted: Callable[[], bool] = lambda: False,
    fall_back: bool = False,
) -> Outcome:
    """Trains from the run's latest checkpoint, or from the start, to its stop.

    Args:
      config: the run.
      mesh: the device mesh.
      dataset: prepared token windows.
      display: what a person sees.
      interrupted: asked after every update and between the batches of an evaluation; once true, the
        run saves and ends.
      fall_back: whether to set a damaged checkpoint aside and go on from the newest good one.

    Returns:
      how it ended; the state is saved in any case.

    Raises:
      InputError: if the data, the devices or the disk do not fit the configuration; before anything
        is compiled.
      RunError: if the run breaks in flight; the message names the last good checkpoint.
    """
    run_dir, named = Path(config.run_dir), config.identity(dataset.fingerprint)
    with hosts.together():
        if trunk := branch.find_trunk(config, dataset):
            named["branch.checkpoint"] = trunk.digest
        if given := initial.find_initial(config, dataset):
            named["initial_weights"] = given.digest
        identity.check(run_dir, named)
    begin, first = (trunk.step, trunk.samples) if trunk else (0, 0)

    def consumed(step: int) -> int:
        return first + config.clock.samples(step) - config.clock.samples(begin)

    start = hosts.agree(max(saved_steps(run_dir), default=begin))
    with hosts.together():
        goal, reason = find_goal(config, dataset, start, consumed(start))
    if goal is not None and (start > goal or (start == goal and _is_evaluated(run_dir, start))):
        return Outcome(start, reason, consumed(start))
    about = {"name": config.name, "version": __version__, "config": dict(config.source)}
    about |= {"branch": trunk.provenance} if trunk else {}
    with contextlib.ExitStack() as stack:
        with hosts.together():
            if hosts.is_first():
                check_mirrors(config.log)
            program = checked_program(config, mesh)
            if hosts.is_first():
                identity.claim(run_dir, named, about)
                stack.enter_context(identity.alone(run_dir))
        _check_shared(run_dir)
        announce(config, mesh, dataset, display, program, start, goal, trunk)
        checkpoints = Checkpoints(run_dir, retention(config), display.say)
        stack.callback(checkpoints.close)
        restored = checkpoints.restore_newest(program.abstract_state, fall_back)
        if trunk and not restored:
            restored = branch.restore(trunk, program.abstract_state)
        if given and not restored:
            restored = initial.begin(given, config, program)
        if (found := restored.meta["step"] if restored else 0) != start:
            goal, reason = find_goal(config, dataset, start := found, consumed(found))
        end = "no end" if goal is None else config.clock.describe(goal)
        display.say(f"from     {config.clock.describe(start)} to {end}")
        loop = _Loop(config, mesh, dataset, display, program, checkpoints, restored)
        stack.enter_context(display)
        done, ended = loop.run(goal, interrupted)
    return Outcome(done, reason if ended else "interrupted", consumed(done))


def _check_shared(run_dir: Path) -> None:
    """Checks that every process sees the run's directory, which the first holds from now on."""

    def mark() -> int:
        return zlib.crc32(identity.holder(run_dir).encode("utf-8")) >> 1

    held = hosts.agree(mark() if hosts.is_first() else 0)
    with hosts.together():
        if not hosts.see(lambda: mark() == held):
            raise InputError(
                f"config.run_dir = {str(run_dir)!r} is not the same place on every host (process "
                f"{jax.process_index()} does not see what process 0 wrote there): give a directory "
                "on storage that all of them share"
            )


def _is_evaluated(run_dir: Path, step: int) -> bool:
    """Whether the records hold an evaluation of a step, as the process that writes them sees it."""
    return bool(hosts.agree(is_evaluated(run_dir, step)))


class _Loop:
    """One start of a run."""

    def __init__(
        self,
        config: Config,
        mesh: Mesh,
        dataset: DatasetInfo,
        display: Display,
        program: Program,
        checkpoints: Checkpoints,
        restored: Restored | None,
    ):
        self._config, self._mesh, self._dataset = config, mesh, dataset
        self._display, self._program, self._checkpoints = display, program, checkpoints
        self._eval_every, self._save_every = config.every("eval"), config.every("checkpoint")
        self._keeps_forever = retention(config).keeps_forever
        meta: dict[str, Any] = restored.meta if restored else {}
        if restored:
            self._state = restored.state
            for label in restored.added:
                step = f"{restored.meta['step']:,}"
                display.say(f"average {label} is new: it starts from the weights at step {step}")
            for label in restored.dropped:
                display.say(f"average {label} is no longer kept")
        else:
            self._state = program.init()
        self._start = int(self._state.step)
        begun: dict[str, int] = meta.get("averages_since", {})
        added = restored.added if restored else ()
        self._since = {
            label: self._start if label in added else begun.get(label, 0)
            for label in config.averages
        }
        self._saved = hosts.agree(max(saved_steps(config.run_dir), default=0))
        self._samples = int(meta.get("samples", 0))
        self._start_samples = self._samples
        head = (Path(config.run_dir), config.name, config.log, self._start, _header(mesh))
        self._writers = Writers(*head) if hosts.is_first() else NoWriters()
        peak = flops.peak_flops(mesh.devices.flat[0])
        self._meter = Meter(
            config.every("log"),
            self._landed,
            self._logged,
            config.clock.tokens,
            peak and peak * mesh.size / flops.flops_per_token(config.model),
            meta.get("interval"),
        )
        length = config.model.length
        validation = Windows(
            dataset, "validation", length=length, seed=0, repeat=True, shuffle=False
        )
        self._evaluate_trees = Evaluator(
            program.eval_step,
            validation,
            length,
            config.eval_windows,
            config.eval.batch_size,
            mesh,
        )

    def run(self, goal: int | None, interrupted: Callable[[], bool]) -> tuple[int, bool]:
        """Makes updates up to `goal` or an interruption.

        Returns:
          the step it got to, and whether that is the goal with nothing left to do there.
        """
        config, step = self._config, self._start
        batches = self._batches()
        try:
            due = step == goal or (step > 0 and self._evaluates(step))
            if due and not _is_evaluated(Path(config.run_dir), step):
                self._evaluate(step, interrupted)  # the last start was ended before or in it
            while step != goal and not interrupted():
                moves = (step + 1) % config.average_every == 0
                self._state, metrics = self._program.train_step(self._state, next(batches), moves)
                step += 1
                self._samples += config.clock.batch_at(step - 1)
                self._meter.push(step, metrics)
                # Saved first: an evaluation that is cut short is made up for at the next start.
                if self._saves(step) or step == goal:
                    self._save(step)
                if self._evaluates(step) or step == goal:
                    self._evaluate(step, interrupted)
            if step > self._saved:
                self._save(step)
            return step, step == goal and not interrupted()
        except jax.errors.JaxRuntimeError as error:
            advice = "more microbatches, remat or a smaller eval.batch_size, if memory ran out"
            if not hosts.is_alone():
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
        guard, in_a_row = self._config.guard, int(values["in_a_row"])
        if not in_a_row and not values["spiked"] and math.isfinite(values["update_norm"]):
            return
        clock = self._config.clock
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

    def _batches(self) -> Iterator[jax.Array]:
        """Global batches from the next sample on, read ahead of the device."""
        config = self._config
        windows = Windows(
            self._dataset,
            "train",
            length=config.model.length,
            seed=config.data.seed,
            repeat=config.data.repeat,
        )
        step, samples = self._start, self._samples
        for size, count in config.clock.batches(step):
            rows = sharding.local_rows(self._mesh, size)
            batches = stream(windows, samples, size, rows)
            for _ in itertools.count() if count is None else range(count):
                with self._reading():
                    tokens = np.asarray(next(batches))
                yield sharding.put_batch(self._mesh, tokens, size)
            samples += size * (count or 0)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Names the last good checkpoint where the data cannot be read."""
        try:
            yield
        except RunError as error:
            raise self._broken(str(error)) from error

    def _evaluates(self, step: int) -> bool:
        return step % self._eval_every == 0 or self._config.clock.is_doubling(step)

    def _saves(self, step: int) -> bool:
        return step % self._save_every == 0 or self._keeps_forever(step)

    def _logged(self, step: int, values: dict[str, float]) -> None:
        self._writers.write(step, self._config.clock.tokens(step), values)
        self._display.update(step, values)

    def _evaluate(self, step: int, interrupted: Callable[[], bool]) -> None:
        with self._meter.paused(), self._reading():
            began = time.perf_counter()
            losses = self._evaluate_trees(self._state, interrupted)
            seconds = time.perf_counter() - began
        if losses is None:  # interrupted: the next start makes up for it
            return
        for label, loss in losses.items():
            if not math.isfinite(loss):
                what = f"the validation loss of {label} at step {step:,} is {loss}"
                raise self._broken(what, "a lower peak rate, in a new run_dir")
        values = {f"eval/{label}/loss": loss for label, loss in losses.items()}
        tokens = self._config.clock.tokens(step)
        self._writers.write(step, tokens, {**values, "eval_seconds": seconds})
        self._display.evaluated(step, losses)

    def _save(self, step: int) -> None:
        with self._meter.paused():
            self._writers.sync()
            self._checkpoints.save(self._state, self._meta(step))
        self._saved = step

    def _meta(self, step: int) -> dict[str, Any]:
        clock = self._config.clock
        return {
            "samples": self._samples,
            "tokens": clock.tokens(step),
            "multiple": clock.multiple(step),
            "interval": self._meter.interval,
            "averages_since": self._since,
            "config": dict(self._config.source),
            "fingerprint": self._dataset.fingerprint,
            "vocabulary": self._dataset.vocabulary_sha256,
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
