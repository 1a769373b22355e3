"""Search for the number of microbatches of a run with `microbatches = "auto"` or "again"."""

import bisect
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from anytime_jax.config.run_config import Config
from anytime_jax.distributed import processes
from anytime_jax.errors import InputError
from anytime_jax.formatting import format_bytes
from anytime_jax.training import preflight, step
from anytime_jax.training.objective import DocumentRules
from anytime_jax.training.state_memory import ADVICE, is_out_of_memory, measure_state

_ON_CPU = 8
_RECOMPUTED = ".remat"  # in the names of operations that XLA runs again to save memory

Compile = Callable[[jax.stages.Lowered], jax.stages.Compiled]


def possible_numbers(config: Config, mesh: Mesh) -> list[int]:
    """Returns, ascending, the numbers of microbatches whose rows the devices can share equally.

    Raises an InputError if there is no such number.
    """
    numbers = []
    for number in range(1, config.batch_size + 1):
        if config.batch_size % number == 0:
            try:
                preflight.check_batch(config, mesh, number)
            except InputError:
                continue
            numbers.append(number)
    if not numbers:  # says what is wrong
        preflight.check_batch(config, mesh, 1)
    return numbers


def find(
    config: Config,
    mesh: Mesh,
    rules: DocumentRules,
    numbers: Sequence[int],
    memory: int | None,
    say: Callable[[str], None],
    compile: Compile = lambda lowered: lowered.compile(),
) -> int:
    """Returns the smallest of some numbers of microbatches with which a run fits the devices.

    By the compiler's analysis, the update and an evaluation have to fit `memory`, the bytes of a
    device, and the compiler must not have chosen to compute arrays twice to save memory. All
    processes compile the same programs and take the answer of the primary process. On a CPU,
    `memory` is None, and the answer is 8 or the nearest number below.

    Raises an InputError if no number fits, or if `memory` is None on another device.
    """
    device = mesh.devices.flat[0]
    if memory is None and device.platform == "cpu":
        number = max((n for n in numbers if n <= _ON_CPU), default=numbers[0])
        say(f"update   microbatches = {number}: on a CPU none are compiled to find the fewest")
        return number
    if memory is None:
        raise InputError(
            f"the memory of a {device.device_kind} is unknown: give a number",
            "config.microbatches",
            config.microbatches,
        )

    def fits(number: int) -> bool:
        say(f"update   compiling with microbatches = {number} ...")
        with processes.fail_together():
            needed = measure_programs(config, mesh, rules, number, compile)
        taken = f"more than the {format_bytes(memory)} of a device"
        if needed is not None:
            taken = f"{format_bytes(needed)} of {format_bytes(memory)}"
        say(f"update   microbatches = {number} takes {taken}")
        return bool(processes.broadcast(needed is not None and needed <= memory))

    place = bisect.bisect_left(numbers, True, key=fits)
    if place == len(numbers):
        raise InputError(
            f"not even {numbers[-1]} fit the {format_bytes(memory)} of a device: take "
            f"{ADVICE.partition(', ')[2]}, or a smaller eval.batch_size",
            "config.microbatches",
            config.microbatches,
        )
    return numbers[place]


def measure_programs(
    config: Config,
    mesh: Mesh,
    rules: DocumentRules,
    microbatches: int,
    compile: Compile,
) -> int | None:
    """Returns the bytes on a device that the update takes, or an evaluation if it takes more.

    Returns None if the compiler runs out of memory, or computes arrays twice to save memory.
    """
    sizes = []
    for model in config.models:
        program = step.make_program(config, mesh, rules, model=model, microbatches=microbatches)
        state = sum(measure_state(program.abstract_state).sizes.values())
        for lowered, around in (
            (program.lower_update(), 0),
            (program.lower_evaluation(), state),  # of an average, beside it
        ):
            try:
                compiled = compile(lowered)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                return None
            if _RECOMPUTED in _text(compiled):
                return None
            analysis: Any = compiled.memory_analysis()
            sizes.append(around + analysis.argument_size_in_bytes + analysis.temp_size_in_bytes)
    return max(sizes)


def _text(compiled: jax.stages.Compiled) -> str:
    """Returns the program as text, which is empty if the compiler cannot write it."""
    try:
        return compiled.as_text() or ""
    except jax.errors.JaxRuntimeError:  # of libtpu, for some programs
        return ""
