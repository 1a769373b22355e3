"""Roofline of a compiled program: the least time of every kernel on a device, loops included.

A kernel takes at least the larger of its FLOPs over the device's peak and its bytes over the
bandwidth of the memory. Kernels run one after another, except for copies to a TPU's on-chip memory
("prefetch"), which overlap them. The time of the program is at least the sum over the other
kernels, and at least all bytes over the bandwidth. Communication between devices is listed, not
added.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import numpy as np

from anytime_jax.distributed.device_specs import DeviceSpec
from anytime_jax.lab.compilation import hlo

KernelKind = Literal["matmul", "attention", "memory", "prefetch"]
_FREE = {
    *("parameter", "tuple", "get-tuple-element", "bitcast", "constant", "after-all", "iota"),
    *("partition-id", "replica-id", "opt-barrier", "async-update"),
}
_IOTA = r"\(?\[([\d,]+)\](?:T\(([\d,]+)\))?"  # device groups as a range, reshaped and transposed
_ATTENTION = ("mha", "splash", "flash")


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A kernel of a program.

    Attributes:
      kind: "prefetch" is a copy, mostly to a TPU's on-chip memory, that overlaps other kernels.
      op_name: path of the JAX operation that it was compiled from.
      calls: how often an execution of the program runs it.
      flops: FLOPs of the matrix products in one call.
      bytes: bytes read and written by one call.
      seconds: the least time of one call.
    """

    name: str
    op_name: str
    kind: KernelKind
    calls: int
    flops: float
    bytes: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Collective:
    """Communication between devices.

    Attributes:
      kind: kind of collective, such as "all-gather".
      axes: axes of the mesh along which the devices communicate, such as "fsdp" or "data, fsdp".
      bytes: bytes of the result of one call on each device.
      calls: how often an execution of the program runs it.
      in_loop: whether it is inside a loop of the program.
      overlaps: whether kernels may run at the same time.
    """

    kind: str
    axes: str
    bytes: int
    calls: int
    in_loop: bool
    overlaps: bool


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Kernels and communication of a program on one device."""

    kernels: Sequence[Kernel]
    collectives: Sequence[Collective]
    bandwidth: float

    @property
    def seconds(self) -> float:
        """Least time of an execution; copies to on-chip memory overlap the other kernels."""
        kernels = (x for x in self.kernels if x.kind != "prefetch")
        in_turn = sum(kernel.calls * kernel.seconds for kernel in kernels)
        return max(in_turn, self.bytes / self.bandwidth)

    @property
    def flops(self) -> float:
        """FLOPs of the matrix products of an execution."""
        return sum(kernel.calls * kernel.flops for kernel in self.kernels)

    @property
    def bytes(self) -> int:
        """Bytes read and written by an execution."""
        return sum(kernel.calls * kernel.bytes for kernel in self.kernels)

    def of_kind(self, *kinds: KernelKind) -> "Roofline":
        """Returns the roofline of the kernels of some kinds."""
        kernels = [x for x in self.kernels if x.kind in kinds]
        return dataclasses.replace(self, kernels=kernels)


def analyze(module: hlo.Module, device: DeviceSpec, mesh_shape: Mapping[str, int]) -> Roofline:
    """Returns the roofline of a program that runs on a mesh of such devices."""
    kernels: list[Kernel] = []
    collectives: list[Collective] = []
    for computation, instruction, calls, in_loop in _executed(module, module.entry, 1, False):
        if (communication := _find_communication(module, instruction)) is not None:
            collectives.append(
                Collective(
                    communication.opcode.removesuffix("-start"),
                    mesh_axes(communication.attributes, mesh_shape),
                    _result_size(communication),
                    calls,
                    in_loop,
                    _overlaps(module, computation, instruction),
                )
            )
            if instruction.opcode != "fusion" or _async_part(module, instruction) == "Start":
                continue  # other fusions do compute
        flops = hlo.flops(module, computation, instruction)
        moved = hlo.bytes_accessed(module, computation, instruction)
        seconds = max(flops / device.peak_flops, moved / device.bandwidth)
        kernels.append(
            Kernel(
                instruction.name,
                instruction.op_name,
                _kernel_kind(module, computation, instruction, flops),
                calls,
                flops,
                moved,
                seconds,
            )
        )
    return Roofline(kernels, collectives, device.bandwidth)


def _executed(
    module: hlo.Module, name: str, calls: int, in_loop: bool
) -> Iterator[tuple[hlo.Computation, hlo.Instruction, int, bool]]:
    """Yields the instructions that take time, with the number of their executions."""
    computation = module.computations[name]
    for instruction in computation.instructions.values():
        match instruction.opcode:
            case "while":
                trips = hlo.trip_count(module, instruction)
                yield from _executed(module, instruction.attribute("body"), calls * trips, True)
            case "conditional":
                yield from _executed(module, _longest_branch(module, instruction), calls, in_loop)
            case "call":
                yield from _executed(module, instruction.attribute("to_apply"), calls, in_loop)
            case _ if not _is_free(module, instruction):
                yield computation, instruction, calls, in_loop


def _is_free(module: hlo.Module, instruction: hlo.Instruction) -> bool:
    is_done = instruction.opcode.endswith("-done") or _async_part(module, instruction) == "Done"
    return is_done or instruction.opcode in _FREE


def _async_part(module: hlo.Module, instruction: hlo.Instruction) -> str:
    """Returns which part of a communication that overlaps kernels a fusion of a TPU program is.

    It is "Start", "Done", or "Middle" for a kernel that it overlaps; empty for all others.
    """
    if instruction.opcode != "fusion":
        return ""
    inside = hlo.called(module, instruction)
    targets = (hlo.custom_call_target(x) for x in inside.instructions.values())
    part = next((x for x in targets if x.startswith("AsyncCollective")), "")
    middle = "Middle" if inside.name.startswith("async_collective_fusion") else ""
    return part.removeprefix("AsyncCollective") or middle


def _longest_branch(module: hlo.Module, instruction: hlo.Instruction) -> str:
    names = re.findall(r"%?([\w.\-]+)", instruction.attribute("branch_computations"))
    names += [instruction.attribute(f"{x}_computation") for x in ("true", "false")]
    return max(
        (name for name in names if name in module.computations),
        key=lambda name: len(module.computations[name].instructions),
    )


def _kernel_kind(
    module: hlo.Module,
    computation: hlo.Computation,
    instruction: hlo.Instruction,
    flops: float,
) -> KernelKind:
    target = hlo.custom_call_target(instruction)
    if any(word in f"{target} {instruction.op_name}" for word in _ATTENTION) and target:
        return "attention"
    is_copy = instruction.opcode in ("copy-start", "slice-start")
    if is_copy and _overlaps(module, computation, instruction):
        return "prefetch"
    return "matmul" if flops else "memory"


def _find_communication(module: hlo.Module, instruction: hlo.Instruction) -> hlo.Instruction | None:
    """Returns the communication that an instruction is or has inside, if any."""
    if _async_part(module, instruction) == "Middle":
        return None
    if instruction.opcode in ("async-start", "fusion"):
        inside = hlo.called(module, instruction).instructions.values()
        return next((x for x in inside if x.opcode in hlo.COLLECTIVES), None)
    is_communication = instruction.opcode.removesuffix("-start") in hlo.COLLECTIVES
    return instruction if is_communication else None


def _result_size(communication: hlo.Instruction) -> int:
    """Returns the bytes of the results; the start of a communication has its operands too."""
    arrays = communication.arrays
    if communication.opcode.endswith("-start") and len(arrays) > 1:
        arrays = [array for array in arrays if array.shape]  # leaves out the numbers of semaphores
        arrays = arrays[len(arrays) // 2 :]
    return sum(array.size for array in arrays)


def _overlaps(module: hlo.Module, computation: hlo.Computation, start: hlo.Instruction) -> bool:
    """Returns whether a kernel is scheduled between start and end of a communication or copy."""
    if _async_part(module, start) == "Start":
        return any(_async_part(module, user) == "Middle" for user in _users(computation, start))
    if not start.opcode.endswith("-start"):
        return False
    names = list(computation.instructions)
    between = itertools.dropwhile(lambda name: name != start.name, names)
    next(between)
    for name in between:
        other = computation.instructions[name]
        if start.name in other.operands and other.opcode.endswith("-done"):
            return False
        if not _is_free(module, other) and not other.opcode.endswith("-start"):
            return True
    return False


def _users(computation: hlo.Computation, start: hlo.Instruction) -> Iterator[hlo.Instruction]:
    """Yields the instructions that use an instruction or an element of its results."""
    for user in computation.users[start.name]:
        if user.opcode == "get-tuple-element":
            yield from computation.users[user.name]
        else:
            yield user


def mesh_axes(attributes: str, mesh_shape: Mapping[str, int]) -> str:
    """Returns the axes of the mesh that the groups of devices in an instruction span."""
    group = _first_group(attributes, math.prod(mesh_shape.values()))
    coordinates = np.unravel_index(group, tuple(mesh_shape.values()))
    spanned = [len(set(x.tolist())) > 1 for x in coordinates]
    return ", ".join(name for name, spans in zip(mesh_shape, spanned, strict=True) if spans)


def _first_group(attributes: str, devices: int) -> np.ndarray:
    """Returns the first group of devices, in any of the three forms in which XLA writes groups."""
    listed = re.search(r"(?:replica_groups|source_target_pairs)=\{\{([\d,]+)\}", attributes)
    if listed:
        return np.array(_numbers(listed[1]))
    if match := re.search(rf"replica_groups=\[([\d,]+)\]<={_IOTA}", attributes):
        return _iota(match[2], match[3]).reshape(_numbers(match[1]))[0]
    if match := re.search(r"replica_groups=mesh\[([^\]]*)\](.*?)\{([^}]*)\}", attributes):
        sizes = {x: int(size) for x, size in re.findall(r"'(\w+)'=(\d+)", match[1])}
        order = re.search(_IOTA, match[2])
        ids = _iota(order[1], order[2]) if order else np.arange(devices)
        spanned = re.findall(r"'(\w+)'", match[3])
        corner = tuple(slice(None) if name in spanned else 0 for name in sizes)
        return ids.reshape(list(sizes.values()))[corner].ravel()
    return np.arange(devices)


def _iota(shape: str, order: str | None) -> np.ndarray:
    sizes = _numbers(shape)
    ids = np.arange(math.prod(sizes)).reshape(sizes)
    return ids.transpose(_numbers(order)) if order else ids


def _numbers(text: str) -> list[int]:
    return [int(x) for x in text.split(",")]
