"""The training loop: from where the run stands to where it is to stop."""

import contextlib
import dataclasses
import datetime
import itertools
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from anytime_jax import __version__, flops, identity, sharding
from anytime_jax.checkpoint import Checkpoints, saved_steps
from anytime_jax.clock import human
from anytime_jax.config import Config
from anytime_jax.data.dataset import DatasetInfo
from anytime_jax.data.windows import Windows, stream
from anytime_jax.errors import InputError, RunError
from anytime_jax.evaluate import Evaluator
from anytime_jax.metrics import Meter, NonFiniteError, Writers, check_mirrors
from anytime_jax.model import count_params
from anytime_jax.progress import Display, size
from anytime_jax.step import Program, make_program


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a call of `train` ended.

    Attributes:
      step: updates done.
      reason: "stop" (it reached its stop), "interrupted", or "data" (all windows were used).
    """

    step: int
    reason: str


def train(
    config: Config,
    mesh: Mesh,
    dataset: DatasetInfo,
    display: Display,
    interrupted: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Trains from the run's latest checkpoint, or from the start, to its stop.

    Args:
      config: the run.
      mesh: the device mesh.
      dataset: prepared token windows.
      display: what a person sees.
      interrupted: asked after every update; once true, the run saves and ends.

    Returns:
      how it ended; the state is saved in any case.

    Raises:
      InputError: if the data do not fit the configuration; before anything is compiled.
      RunError: if the run breaks in flight; the message names the last good checkpoint.
    """
    run_dir, named = Path(config.run_dir), config.identity(dataset.fingerprint)
    identity.check(run_dir, named)
    saved = saved_steps(run_dir)
    start = saved[-1] if saved else 0
    goal, reason = _goal(config, dataset, start)
    if goal is not None and start >= goal:
        return Outcome(start, reason)
    check_mirrors(config.log)
    try:
        program = make_program(config, mesh)
    except ValueError as error:
        raise InputError(f"config.mesh: {error}") from error
    about = {"name": config.name, "version": __version__, "config": dict(config.source)}
    identity.claim(run_dir, named, about)
    with contextlib.ExitStack() as stack:
        stack.enter_context(identity.alone(run_dir))
        _announce(config, mesh, dataset, display, program, start, goal)
        checkpoints = Checkpoints(run_dir, config.checkpoint.keep, keeps_forever(config))
        stack.callback(checkpoints.close)
        loop = _Loop(config, mesh, dataset, display, program, checkpoints, start)
        stack.enter_context(display)
        done = loop.run(goal, interrupted)
    return Outcome(done, reason if done == goal else "interrupted")


def keeps_forever(config: Config) -> Callable[[int], bool]:
    """Returns whether the checkpoint of a step is kept for ever."""
    every = config.keep_every_steps
    return lambda step: config.clock.is_landmark(step) or (every is not None and step % every == 0)


def _kept_until(config: Config, goal: int) -> set[int]:
    """The steps up to `goal` whose checkpoints are kept for ever."""
    landmarks = itertools.takewhile(lambda step: step <= goal, config.clock.landmarks())
    every = config.keep_every_steps
    return {*landmarks, *(range(every, goal + 1, every) if every else ())}


def check_data(config: Config, dataset: DatasetInfo) -> None:
    """Checks that a dataset fits the model and the evaluation.

    Raises:
      InputError: if it does not; the message says what to change.
    """
    where = f"the dataset at {dataset.path}"
    if dataset.length != config.model.length:
        raise InputError(
            f"config.model.length = {config.model.length}, but {where} has windows of "
            f"{dataset.length}: set that length, or prepare the text with the other"
        )
    if dataset.vocab_size != config.model.vocab_size:
        raise InputError(
            f"config.model.vocab_size = {config.model.vocab_size}, but {where} was made with a "
            f"vocabulary of {dataset.vocab_size}: set that size, or prepare the text with the other"
        )
    held = dataset.splits["validation"].windows
    if config.eval_windows > held:
        raise InputError(
            f"config.eval.tokens = {config.eval.tokens:,}, but the validation split of {where} has "
            f"{held * dataset.length:,}: set at most that"
        )


def _goal(config: Config, dataset: DatasetInfo, start: int) -> tuple[int | None, str]:
    """The update to stop at, and what ends the run there."""
    goal = config.stop.after(start, config.clock)
    horizon = config.schedule.horizon_steps
    if goal is not None and horizon is not None and goal > horizon:
        goal = horizon
    if config.data.repeat:
        return goal, "stop"
    windows = dataset.splits["train"].windows
    last = windows // config.batch_size
    if goal is None:
        return last, "data"
    if goal > last:
        raise InputError(
            f"config.stop = {config.source['stop']!r} needs {goal * config.batch_size:,} windows; "
            f"the dataset at {dataset.path} has {windows:,}, enough for "
            f"{config.clock.describe(last)}: prepare more text, stop earlier, or set "
            "config.data.repeat=True"
        )
    return goal, "stop"


def _announce(
    config: Config,
    mesh: Mesh,
    dataset: DatasetInfo,
    display: Display,
    program: Program,
    start: int,
    goal: int | None,
) -> None:
    """Says what is about to be run, on what, and what it will leave on disk."""
    clock, counts, device = config.clock, count_params(config.model), mesh.devices.flat[0]
    shape = " x ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
    peak = flops.peak_flops(device)
    speed = f"{peak / 1e12:,.0f} TFLOP/s peak" if peak else "unknown device peak: no MFU"
    bytes_each = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(program.abstract_state))
    disk = f"{size(bytes_each)} a checkpoint"
    if goal is not None:
        kept = len(_kept_until(config, goal))
        rolling = config.checkpoint.keep
        disk += f", {kept} kept + {rolling} rolling: {size((kept + rolling) * bytes_each)} at most"
    end = "no end" if goal is None else clock.describe(goal)
    display.say(f"run      {config.name} in {config.run_dir}")
    display.say(
        f"model    {config.model.architecture}, {human(counts['blocks'])} in blocks, "
        f"{human(counts['all'])} parameters in all; averages "
        + (", ".join(config.averages) or "none")
    )
    display.say(f"data     {dataset.path}: {human(dataset.splits['train'].tokens)} tokens")
    display.say(f"device   {mesh.size} x {device.device_kind} ({shape}), {speed}")
    display.say(f"disk     {disk}")
    display.say(f"from     {clock.describe(start)} to {end}")


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
        start: int,
    ):
        self._config, self._mesh, self._dataset = config, mesh, dataset
        self._display, self._program, self._checkpoints = display, program, checkpoints
        self._eval_every, self._save_every = config.every("eval"), config.every("checkpoint")
        self._keeps_forever = keeps_forever(config)
        self._saved = start
        meta: dict[str, Any] = {}
        if start:
            restored = checkpoints.restore(start, program.abstract_state)
            self._state, meta = restored.state, restored.meta
            for label in restored.added:
                display.say(f"average {label} is new: it starts from the weights at step {start:,}")
            for label in restored.dropped:
                display.say(f"average {label} is no longer kept")
        else:
            self._state = program.init()
        self._samples = int(meta.get("samples", 0))
        self._writers = Writers(Path(config.run_dir), config.name, config.log, start, _header(mesh))
        peak = flops.peak_flops(mesh.devices.flat[0])
        self._meter = Meter(
            config.every("log"),
            self._logged,
            config.clock.tokens_per_step,
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

    def run(self, goal: int | None, interrupted: Callable[[], bool]) -> int:
        """Makes updates up to `goal` or an interruption; returns the step it got to."""
        config, step = self._config, self._saved
        batches = self._batches()
        try:
            while step != goal and not interrupted():
                self._state, metrics = self._program.train_step(self._state, next(batches))
                step += 1
                self._samples += config.batch_size
                self._meter.push(step, metrics)
                if self._evaluates(step) or step == goal:
                    self._evaluate(step)
                if self._saves(step):
                    self._save(step)
            if step > self._saved:
                self._save(step)
            return step
        except NonFiniteError as error:
            advice = "a lower peak rate, a longer warmup or a smaller clip_norm, in a new run_dir"
            raise self._broken(error, advice) from error
        except jax.errors.JaxRuntimeError as error:
            advice = "more microbatches, remat or a smaller eval.batch_size, if memory ran out"
            raise self._broken(error, advice) from error
        finally:
            self._writers.close()
            self._checkpoints.wait()

    def _broken(self, error: Exception, advice: str) -> RunError:
        last = f"that of step {self._saved:,}" if self._saved else "none"
        return RunError(
            f"{str(error)[:300]}; the last checkpoint in {self._checkpoints.directory} is {last}. "
            f"Try {advice}"
        )

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
        rows = sharding.local_rows(self._mesh, config.batch_size)
        for tokens in stream(windows, self._samples, config.batch_size, rows):
            yield sharding.put_batch(self._mesh, np.asarray(tokens), config.batch_size)

    def _evaluates(self, step: int) -> bool:
        return step % self._eval_every == 0 or self._config.clock.is_doubling(step)

    def _saves(self, step: int) -> bool:
        return step % self._save_every == 0 or self._keeps_forever(step)

    def _logged(self, step: int, values: dict[str, float]) -> None:
        self._writers.write(step, self._config.clock.tokens(step), values)
        self._display.update(step, values)

    def _evaluate(self, step: int) -> None:
        with self._meter.paused():
            began = time.perf_counter()
            losses = self._evaluate_trees(self._state)
            seconds = time.perf_counter() - began
        for label, loss in losses.items():
            if not math.isfinite(loss):
                raise NonFiniteError(f"the validation loss of {label} at step {step:,} is {loss}")
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
            "config": dict(self._config.source),
            "fingerprint": self._dataset.fingerprint,
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
