"""Memory of a run's state on each device, by its shardings, without any array."""

import dataclasses
import math
from typing import Any

import jax

from anytime_jax import averaging
from anytime_jax.config.model import Dtype
from anytime_jax.formatting import format_bytes
from anytime_jax.train_state import TrainState

ADVICE = "take more microbatches, another model.remat, a larger mesh.fsdp or fewer averages"


@dataclasses.dataclass(frozen=True)
class StateMemory:
    """Bytes on each device of a state, and of the gradient of an update.

    Each part of the mesh axis `data` sums its own gradient of all parameters, so the gradient is
    not split over `data`.
    """

    parameters: int
    moments: int
    averages: int
    gradients: int

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each part of the state."""
        return {
            "parameters": self.parameters,
            "moments": self.moments,
            "averages": self.averages,
        }

    @property
    def least(self) -> int:
        """Bytes of state and gradient, a lower bound on the memory of an update."""
        return sum(self.sizes.values()) + self.gradients

    def describe(self, available: int | None) -> str:
        """Returns a line on the memory of each device; `available` is None if unknown."""
        parts = [f"{format_bytes(size)} {name}" for name, size in self.sizes.items() if size]
        text = " + ".join([*parts, f"{format_bytes(self.gradients)} gradients"])
        total = f" of {format_bytes(available)}" if available is not None else ""
        return f"{text} = {format_bytes(self.least)} at least{total} on each device"


def measure_state(
    state: TrainState, accumulation: Dtype = "float32", microbatches: int = 1
) -> StateMemory:
    """Returns the memory of a state, whose leaves are arrays or abstract arrays with shardings.

    `accumulation` is the type in which the gradients of several microbatches are summed.
    """
    averages = _bytes_on_device(averaging.averages(state.opt_state))
    moments = _bytes_on_device(state.opt_state) - averages
    parameters = _bytes_on_device(state.params)
    gathered = _bytes_on_device(state.params, "data")
    halves = microbatches > 1 and accumulation == "bfloat16"
    return StateMemory(parameters, moments, averages, gathered // 2 if halves else gathered)


def state_bytes(state: TrainState) -> int:
    """Returns the bytes of all arrays of a state, over all devices."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))


def describe_program(compiled: jax.stages.Compiled, available: int | None) -> str:
    """Returns a line on the memory that a compiled update takes on each device."""
    analysis: Any = compiled.memory_analysis()
    temporaries = analysis.temp_size_in_bytes
    total = analysis.argument_size_in_bytes + temporaries
    text = f"{format_bytes(temporaries)} temporaries, {format_bytes(total)} in all"
    if available is None:
        return f"{text} on each device"
    text += f" of {format_bytes(available)} on each device"
    if total <= available:
        return text
    return f"{text}, which is MORE THAN there is: if it does not fit, {ADVICE}"


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error says that a program needs more memory than a device has.

    XLA says so in the text of the error alone.
    """
    return isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error)


def _bytes_on_device(tree: Any, gathered: str = "") -> int:
    """Returns the bytes of arrays on each device; no array counts as split over `gathered`."""
    total = 0
    for x in jax.tree.leaves(tree):
        size = math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
        spec = getattr(x.sharding, "spec", ())
        names = {y for axis in spec for y in (axis if isinstance(axis, tuple) else (axis,))}
        total += size * (x.sharding.mesh.shape[gathered] if gathered in names else 1)
    return total
