"""Checks before the first update of a run, and the summary that it prints."""

import itertools
import math
import zlib
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from anytime_jax.checkpoints import checkpoint_listing, run_directory
from anytime_jax.checkpoints.metric_records import read_records
from anytime_jax.checkpoints.retention import checkpoint_bytes, retention_policy
from anytime_jax.config.schema import Config
from anytime_jax.data.dataset import DatasetInfo
from anytime_jax.distributed import processes, sharding
from anytime_jax.distributed.device_specs import device_spec
from anytime_jax.errors import InputError
from anytime_jax.formatting import format_bytes, format_count
from anytime_jax.models.decoder import count_params
from anytime_jax.storage.files import directory_id, free_bytes
from anytime_jax.storage.paths import storage_path
from anytime_jax.training.memory import describe, measure_state
from anytime_jax.training.progress import Display
from anytime_jax.training.step import Program, make_program


def make_checked_program(config: Config, mesh: Mesh) -> Program:
    """Returns the functions of a run after `check_capacity`.

    Also raises an InputError if the mesh does not divide the parameters.
    """
    program = make_program(config, mesh)
    check_capacity(config, mesh, program)
    return program


def check_capacity(config: Config, mesh: Mesh, program: Program) -> None:
    """Raises an InputError if state and gradient exceed memory, or a checkpoint the free disk.

    Activations are not counted: the compiler knows their memory, of which `LoopProgram` warns.
    """
    available, memory = sharding.device_memory(mesh), measure_state(program.abstract_state)
    if available is not None and memory.least > available:
        parameters = format_bytes(memory.parameters)
        raise InputError(
            f"config.model: {parameters} parameters + {format_bytes(memory.moments)} moments + "
            f"{format_bytes(memory.averages)} averages ({len(config.averaging_rules)}) + "
            f"{parameters} gradients take {format_bytes(memory.least)} on each device, which has "
            f"{format_bytes(available)}, and activations come on top: choose a larger mesh.fsdp, "
            "fewer averages or a smaller model"
        )
    free, needed = free_bytes(storage_path(config.run_dir)), checkpoint_bytes(_state_bytes(program))
    if needed > free:
        raise InputError(
            f"config.run_dir = {config.run_dir!r}: a checkpoint takes {format_bytes(needed)} and "
            f"the disk has {format_bytes(free)} free: free some, choose a directory on another "
            "disk, or a smaller config.model"
        )


def _state_bytes(program: Program) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(program.abstract_state))


def check_data(config: Config, dataset: DatasetInfo) -> None:
    """Raises an InputError that names every setting that does not fit a dataset, and one that does.

    Of pretrained weights, length and vocabulary are given: the dataset has to fit them.
    """
    model, available = config.model, dataset.splits["validation"].windows
    fitting: dict[str, Any] = {}
    problems = []
    for name, ours, theirs in (
        ("model.length", model.length, dataset.length),
        ("model.vocab_size", model.vocab_size, dataset.vocab_size),
    ):
        if ours != theirs:
            problems.append(f"config.{name} = {ours}, but it has {theirs}")
            fitting[name] = theirs
    if "model.vocab_size" in fitting and model.embedding_rows < dataset.vocab_size:
        fitting["model.embedding_rows"] = dataset.vocab_size
    tokens = available * dataset.length
    if not isinstance(config.eval.tokens, str) and config.eval.tokens > tokens:
        problems.append(f"config.eval.tokens = {config.eval.tokens:,}, but it has {tokens:,}")
        fitting["eval.tokens"] = "all"
    if not problems:
        return
    advice = "set " + " ".join(f"--config.{name}={value}" for name, value in fitting.items())
    if config.initial_weights and "model.vocab_size" in fitting:
        advice = f"prepare the text with the vocabulary of {config.initial_weights}"
    raise InputError(f"the dataset at {dataset.path} does not fit: {'; '.join(problems)}: {advice}")


def check_not_lost(config: Config, step: int) -> None:
    """Raises an InputError if records show that a run without checkpoints had one after `step`."""
    run_dir = storage_path(config.run_dir)
    rows = read_records(run_dir)
    if not rows:
        return
    policy, every = retention_policy(config), config.interval_steps("checkpoint")
    saves = (x for x in range(step + 1, rows[-1].step) if not x % every or policy.keeps_forever(x))
    # A second save waits for the first one, which a kill can leave half-written.
    had_saved = next(itertools.islice(saves, 1, None), None) is not None
    is_removed = directory_id(run_dir / checkpoint_listing.DIRECTORY) is None
    if had_saved or is_removed:
        raise InputError(
            f"config.run_dir = {config.run_dir!r} has records to step {rows[-1].step:,}, but its "
            "checkpoints are gone: put them back, choose another run_dir, or --fall-back to start "
            "again"
        )


def check_shared(run_dir: Path) -> None:
    """Raises an InputError unless every process sees the lock of the primary one in `run_dir`."""

    def read_lock() -> int:
        return zlib.crc32(run_directory.lock_holder(run_dir).encode("utf-8")) >> 1

    expected = processes.broadcast(read_lock() if processes.is_primary() else 0)
    with processes.fail_together():
        if not processes.wait_until_visible(lambda: read_lock() == expected):
            raise InputError(
                f"config.run_dir = {str(run_dir)!r} is not the same place on every host (process "
                f"{jax.process_index()} does not see what process 0 wrote there): give a directory "
                "on storage that all of them share"
            )


def find_stop(
    config: Config, dataset: DatasetInfo, step: int, samples: int
) -> tuple[int | None, str]:
    """Returns the update to stop at, None for never, and the reason: "stop" or "data".

    `step` counts the updates done and `samples` the windows of the dataset consumed. Raises an
    InputError if the data end before the configured stop.
    """
    clock, horizon = config.clock, config.learning_rate.horizon_steps
    stop = config.stop_rule.after(step, clock)
    if stop is not None and horizon is not None:
        stop = min(stop, horizon)
    if config.data.repeat:
        return stop, "stop"
    windows = dataset.splits["train"].windows
    last = clock.steps_within(clock.samples(step) + windows - samples)
    if stop is None:
        return last, "data"
    if stop > last:
        needed = samples + clock.samples(stop) - clock.samples(step)
        raise InputError(
            f"config.stop = {config.stop!r} needs {needed:,} windows; the dataset at "
            f"{dataset.path} has {windows:,}, enough for {clock.describe(last)}: prepare more "
            "text, stop earlier, or repeat it with --config.data.repeat=True"
        )
    return stop, "stop"


def print_summary(
    config: Config,
    mesh: Mesh,
    dataset: DatasetInfo,
    display: Display,
    program: Program,
    step: int,
    stop_step: int | None,
) -> None:
    """Prints model, data and devices of a run, and the memory and disk that it needs."""
    counts, device = count_params(config.model), mesh.devices.flat[0]
    axes = " x ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
    spec = device_spec(device)
    speed = f"{spec.peak_flops / 1e12:,.0f} TFLOP/s peak" if spec else "unknown device peak: no MFU"
    memory = describe(measure_state(program.abstract_state), sharding.device_memory(mesh))
    display.say(f"run      {config.name} in {config.run_dir}")
    if config.branch_step is not None:
        point = config.clock.describe(config.branch_step)
        display.say(f"branch   of {config.branch.from_run}, which it leaves at {point}")
    display.say(f"rate     {_describe_rate(config)}")
    if config.clock.growth:
        display.say(f"batch    {_describe_batch(config, stop_step)}")
    if config.initial_weights and step == 0:
        display.say(f"weights  pretrained, from {config.initial_weights}")
    display.say(
        f"model    {config.model.architecture}, {format_count(counts['blocks'])} in blocks, "
        f"{format_count(counts['all'])} parameters in all; averages "
        + (", ".join(config.averaging_rules) or "none")
    )
    display.say(f"data     {_describe_data(config, dataset, stop_step)}")
    display.say(f"device   {mesh.size} x {device.device_kind} ({axes}), {speed}")
    display.say(f"memory   {memory}")
    display.say(f"disk     {_describe_disk(config, program, step, stop_step)}")


def _describe_rate(config: Config) -> str:
    """The learning rate: its kind and settings, and where it ends."""
    schedule = config.schedule.to_dict()
    kind, horizon = schedule.pop("kind"), config.learning_rate.horizon_steps
    text = ", ".join([kind, *(f"{name} {value}" for name, value in schedule.items())])
    if horizon is not None:
        return f"{text}; ends at {config.clock.describe(horizon)}"
    if config.branch_step is None:
        return f"{text}; no end"
    return f"{text}; NO DECAY: this branch trains on as its trunk does"


def _describe_batch(config: Config, stop_step: int | None) -> str:
    """The batch sizes up to the stop."""
    first, *later = config.clock.stages
    text = f"{first.batch_size:,} sequences"
    for stage in later:
        if stop_step is None or stage.step < stop_step:
            text += f"; {stage.batch_size:,} from {config.clock.describe(stage.step)}"
    if config.batch_growth == "seesaw":
        text += "; the rate falls by sqrt(2) where the batch doubles, and nowhere else"
    return text


def _describe_data(config: Config, dataset: DatasetInfo, stop_step: int | None) -> str:
    """The dataset: its size, and how often it is read up to the stop and in an evaluation."""
    train, validation = dataset.splits["train"], dataset.splits["validation"].windows
    text = f"{dataset.path}: {format_count(train.tokens)} tokens"
    if stop_step is not None:
        passes = config.clock.samples(stop_step) / max(train.windows, 1)
        text += f", {passes:.3g} epochs to the stop"
    evaluated = config.eval_windows(validation) * dataset.length
    return f"{text}; {format_count(evaluated)} tokens in an evaluation"


def _describe_disk(config: Config, program: Program, step: int, stop_step: int | None) -> str:
    policy, free = retention_policy(config), free_bytes(storage_path(config.run_dir))
    each = checkpoint_bytes(_state_bytes(program))
    if stop_step is None:
        return f"{format_bytes(each)} a checkpoint"
    kept = policy.count_kept(step, stop_step)
    # A new one is written before the oldest of the rolling ones is deleted.
    total = (kept + policy.rolling + 1) * each
    return (
        f"{format_bytes(each)} a checkpoint, {kept} to keep + {policy.rolling} rolling + 1 being "
        f"written: {format_bytes(total)} at most"
        + (f"; {format_bytes(free)} free" if math.isfinite(free) else "")
        + (", which is TOO LITTLE" if total > free else "")
    )
