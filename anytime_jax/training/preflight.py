"""What is checked, decided and said before a run makes its first update."""

from pathlib import Path

import jax
from jax.sharding import Mesh

from anytime_jax.checkpoints.retention import checkpoint_bytes, free_bytes, retention_policy
from anytime_jax.config.schema import Config
from anytime_jax.data.dataset import DatasetInfo
from anytime_jax.distributed import sharding
from anytime_jax.errors import InputError
from anytime_jax.formatting import format_bytes, format_count
from anytime_jax.models import flops
from anytime_jax.models.decoder import count_params
from anytime_jax.training import memory
from anytime_jax.training.branching import Trunk
from anytime_jax.training.progress import Display
from anytime_jax.training.step import Program, make_program


def checked_program(config: Config, mesh: Mesh) -> Program:
    """Returns the functions of a run, once the machine is known to have room for it.

    Raises:
      InputError: if the mesh does not divide the parameters, or as `check_machine`.
    """
    try:
        program = make_program(config, mesh)
    except ValueError as error:
        raise InputError(f"config.mesh: {error}") from error
    check_machine(config, mesh, program)
    return program


def check_machine(config: Config, mesh: Mesh, program: Program) -> None:
    """Checks that the state and a gradient fit the devices, and a checkpoint the disk.

    What activations take is estimated, and an estimate forbids nothing: `announce` warns of it.

    Raises:
      InputError: if it does not.
    """
    there, takes = sharding.device_memory(mesh), measure_on(config, mesh)
    if there is not None and takes.least > there:
        raise InputError(
            f"config.model: {format_bytes(takes.parameters)} parameters + {format_bytes(takes.moments)} moments + "
            f"{format_bytes(takes.averages)} averages ({len(config.averages)}) + {format_bytes(takes.parameters)} "
            f"gradients take {format_bytes(takes.least)} on each device, which has {format_bytes(there)}, and "
            "activations come on top: choose a larger mesh.fsdp, fewer averages, average_memory = "
            "'host' or a smaller model"
        )
    free = free_bytes(Path(config.run_dir))
    if (each := checkpoint_bytes(state_bytes(program))) > free:
        raise InputError(
            f"config.run_dir = {config.run_dir!r}: a checkpoint takes {format_bytes(each)} and the disk "
            f"has {format_bytes(free)} free: make room, choose a directory on another disk, or a smaller "
            "config.model"
        )


def measure_on(config: Config, mesh: Mesh) -> memory.Memory:
    """Returns what a run takes of each device of a mesh."""
    return memory.measure(config, dict(mesh.shape), mesh.devices.flat[0].platform)


def state_bytes(program: Program) -> int:
    """Returns the size of a run's state in bytes."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(program.abstract_state))


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
            f"vocabulary of {dataset.vocab_size}: "
            + (
                f"prepare the text with that of {config.initial_weights}"
                if config.initial_weights
                else "set that size, or prepare the text with the other"
            )
        )
    held = dataset.splits["validation"].windows
    if config.eval_windows > held:
        raise InputError(
            f"config.eval.tokens = {config.eval.tokens:,}, but the validation split of {where} has "
            f"{held * dataset.length:,}: set at most that"
        )


def find_goal(
    config: Config, dataset: DatasetInfo, start: int, samples: int
) -> tuple[int | None, str]:
    """Returns the update to stop at, None for never, and what ends the run there.

    Args:
      config: the run.
      dataset: prepared token windows.
      start: updates done.
      samples: of the data that were consumed.

    Raises:
      InputError: if the data end before it.
    """
    goal = config.stop_rule.after(start, config.clock)
    horizon = config.learning_rate.horizon_steps
    if goal is not None and horizon is not None and goal > horizon:
        goal = horizon
    if config.data.repeat:
        return goal, "stop"
    windows = dataset.splits["train"].windows
    seen = config.clock.samples(start)
    last = config.clock.steps_within(seen + windows - samples)
    if goal is None:
        return last, "data"
    if goal > last:
        needed = samples + config.clock.samples(goal) - seen
        raise InputError(
            f"config.stop = {config.stop!r} needs {needed:,} windows; "
            f"the dataset at {dataset.path} has {windows:,}, enough for "
            f"{config.clock.describe(last)}: prepare more text, stop earlier, or set "
            "config.data.repeat=True"
        )
    return goal, "stop"


def announce(
    config: Config,
    mesh: Mesh,
    dataset: DatasetInfo,
    display: Display,
    program: Program,
    start: int,
    goal: int | None,
    trunk: Trunk | None,
) -> None:
    """Says what is about to be run, on what, and what it will leave on disk."""
    counts, device = count_params(config.model), mesh.devices.flat[0]
    shape = " x ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
    peak = flops.peak_flops(device)
    speed = f"{peak / 1e12:,.0f} TFLOP/s peak" if peak else "unknown device peak: no MFU"
    policy, free = retention_policy(config), free_bytes(Path(config.run_dir))
    each = checkpoint_bytes(state_bytes(program))
    disk = f"{format_bytes(each)} a checkpoint"
    if goal is not None:
        kept = policy.count_kept(start, goal)
        # One more is being written while the last of the rolling ones is still there.
        total = (kept + policy.rolling + 1) * each
        disk += f", {kept} to keep + {policy.rolling} rolling + 1 under way: {format_bytes(total)} at most"
        disk += f"; {format_bytes(free)} free" + (", which is TOO LITTLE" if total > free else "")
    display.say(f"run      {config.name} in {config.run_dir}")
    if trunk is not None:
        leaves = config.clock.describe(trunk.step)
        display.say(f"branch   of {config.branch.from_run}, which it leaves at {leaves}")
    if config.initial_weights and start == 0:
        display.say(f"begins   with the weights in {config.initial_weights}")
    display.say(
        f"model    {config.model.architecture}, {format_count(counts['blocks'])} in blocks, "
        f"{format_count(counts['all'])} parameters in all; averages "
        + (", ".join(config.averaging_rules) or "none")
    )
    display.say(f"data     {dataset.path}: {format_count(dataset.splits['train'].tokens)} tokens")
    display.say(f"device   {mesh.size} x {device.device_kind} ({shape}), {speed}")
    display.say(
        f"memory   {describe_memory(measure_on(config, mesh), sharding.device_memory(mesh))}"
    )
    display.say(f"disk     {disk}")


def describe_memory(takes: memory.Memory, there: int | None) -> str:
    """Returns what is taken of each device, in words.

    Args:
      takes: the bytes.
      there: what each device has; None if it is not known.
    """
    parts = [
        f"{format_bytes(getattr(takes, name))} {name}"
        for name in ("parameters", "moments", "averages", "gradients")
        if getattr(takes, name)
    ]
    total = (
        f"about {format_bytes(takes.activations)} activations = about {format_bytes(takes.total)}"
    )
    said = " + ".join([*parts, total])
    if there is None:
        return f"{said} on each device"
    said += f" of {format_bytes(there)} on each device"
    if takes.total <= there:
        return said
    return (
        f"{said}, which is MORE THAN there is: if it does not fit, take more microbatches, another "
        "model.remat, a larger mesh.fsdp or fewer averages"
    )
