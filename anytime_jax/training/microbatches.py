"""Number of microbatches of a run that leaves it to the compiler: `microbatches = "auto"`."""

import bisect
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from anytime_jax.checkpoints import run_directory
from anytime_jax.config.schema import Config
from anytime_jax.distributed import processes, sharding
from anytime_jax.distributed.device_specs import device_spec
from anytime_jax.errors import InputError
from anytime_jax.formatting import format_bytes
from anytime_jax.storage.paths import storage_path
from anytime_jax.training import preflight, step
from anytime_jax.training.state_memory import ADVICE, measure_state

_ON_CPU = 8
_RECOMPUTED = ".remat"  # in the names of operations that XLA runs again to save memory

Compile = Callable[[jax.stages.Lowered], jax.stages.Compiled]


def resolve(
    config: Config,
    mesh: Mesh,
    say: Callable[[str], None],
    compile: Compile = lambda lowered: lowered.compile(),
) -> Config:
    """Returns a configuration with a number of microbatches.

    "auto" is the number that the run or its trunk has, as losses depend on it in their last bits.
    For a new run, and for "again", it is the fewest with which the update and an evaluation fit the
    memory of a device, by the figures of its kind and the compiler's analysis, without computing
    anything twice for that. All processes compile the same programs, and believe the primary. On a
    CPU, whose memory is the machine's, it is 8 or the nearest number below.

    Raises an InputError if no number fits, or the memory of the device is unknown.
    """
    if isinstance(config.microbatches, int):
        return config
    allowed = _allowed(config, mesh)
    with processes.fail_together():
        kept = _kept(config) if config.microbatches == "auto" else 0
    kept = processes.broadcast(kept)
    if kept in allowed:
        say(f"update   microbatches = {kept}, as before")
        return config.replace(microbatches=kept)
    if kept:
        say(f"update   microbatches = {kept} before, which these {mesh.size} devices cannot share")
    device = mesh.devices.flat[0]
    spec = device_spec(device)
    if spec is None and device.platform == "cpu":
        number = max((n for n in allowed if n <= _ON_CPU), default=allowed[0])
        say(f"update   microbatches = {number}: on a CPU none are compiled to find the fewest")
        return config.replace(microbatches=number)
    memory = (spec.memory if spec else 0) or sharding.device_memory(mesh)
    if not memory:
        raise InputError(
            f"config.microbatches = {config.microbatches!r}: the memory of a {device.device_kind} "
            "is unknown: give a number"
        )

    def fits(number: int) -> bool:
        say(f"update   compiling with microbatches = {number} ...")
        with processes.fail_together():
            needed = measure_programs(config.replace(microbatches=number), mesh, compile)
        taken = f"more than the {format_bytes(memory)} of a device"
        if needed is not None:
            taken = f"{format_bytes(needed)} of {format_bytes(memory)}"
        say(f"update   microbatches = {number} takes {taken}")
        return bool(processes.broadcast(needed is not None and needed <= memory))

    place = bisect.bisect_left(allowed, True, key=fits)
    if place == len(allowed):
        raise InputError(
            f"config.microbatches = {config.microbatches!r}: not even {allowed[-1]} fit the "
            f"{format_bytes(memory)} of a device: take {ADVICE.partition(', ')[2]}, or a smaller "
            "eval.batch_size"
        )
    return config.replace(microbatches=allowed[place])


def measure_programs(config: Config, mesh: Mesh, compile: Compile) -> int | None:
    """Returns the bytes on a device of the update or an evaluation, whichever takes more.

    Returns None if the compiler runs out of memory, or computes arrays twice to save memory.
    """
    config = dataclasses.replace(config, end_of_text=config.end_of_text or 0)
    sizes = []
    for stage in {x.model: config.at(x.step) for x in config.stages}.values():
        program = step.make_program(stage, mesh)
        state = sum(measure_state(program.abstract_state).sizes.values())
        for lowered, around in (
            (step.lower_update(program, stage, mesh), 0),
            (step.lower_evaluation(program, stage, mesh), state),  # of an average, beside the state
        ):
            try:
                compiled = compile(lowered)
            except jax.errors.JaxRuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                return None
            if _RECOMPUTED in (compiled.as_text() or ""):
                return None
            analysis: Any = compiled.memory_analysis()
            sizes.append(around + analysis.argument_size_in_bytes + analysis.temp_size_in_bytes)
    return max(sizes)


def is_out_of_memory(error: Exception) -> bool:
    """Returns whether the compiler gave up because the program exceeds the device's memory."""
    return "RESOURCE_EXHAUSTED" in str(error)


def _allowed(config: Config, mesh: Mesh) -> list[int]:
    """Returns the numbers of microbatches with which the devices can share each, ascending."""
    numbers = []
    for number in range(1, config.batch_size + 1):
        if config.batch_size % number == 0:
            try:
                preflight.check_layout(config.replace(microbatches=number), mesh)
            except (InputError, ValueError):
                continue
            numbers.append(number)
    if not numbers:  # says what is wrong
        preflight.check_layout(config.replace(microbatches=1), mesh)
    return numbers


def _kept(config: Config) -> int:
    """Returns the number of the run, or else of its trunk; 0 for none, or a damaged run file."""
    for directory in filter(None, (config.run_dir, config.branch.from_run)):
        about = run_directory.read_run_file(storage_path(directory)) or {}
        settings = about.get("config")
        number = settings.get("microbatches") if isinstance(settings, dict) else None
        if isinstance(number, int) and not isinstance(number, bool):
            return number
    return 0
