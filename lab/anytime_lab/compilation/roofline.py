"""Roofline of a compiled program: the least time of every kernel on a device, loops included.

A kernel takes at least the larger of its FLOPs over the device's peak and its bytes over the
bandwidth of the memory. Kernels run one after another, except for copies to a TPU's on-chip memory
("prefetch"), which overlap them. The kernels take at least the sum over the others, and at least
all bytes over the bandwidth. A collective takes at least the bytes that a device receives over the
bandwidth of its links; what the kernels between its start and its end do not hide is added.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import numpy as np

from anytime_jax.distributed.device_specs import DeviceSpec
from anytime_lab.compilation import hlo

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
      seconds: the least time of one call.
      exposed: what of that time one call has without a kernel at the same time.
    """

    kind: str
    axes: str
    bytes: int
    calls: int
    in_loop: bool
    overlaps: bool
    seconds: float = 0.0
    exposed: float = 0.0


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Kernels and communication of a program on one device."""

    kernels: Sequence[Kernel]
    collectives: Sequence[Collective]
    bandwidth: float

    @property
    def seconds(self) -> float:
        """Least time of an execution."""
        return self.kernel_seconds + self.exposed_seconds

    @property
    def exposed_seconds(self) -> float:
        """Least time of the communication that no kernel hides."""
        return sum(one.calls * one.exposed for one in self.collectives)

    @property
    def kernel_seconds(self) -> float:
        """Least time of the kernels; copies to on-chip memory overlap the others."""
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
        """Returns the roofline of the kernels of some kinds, without communication."""
        kernels = [x for x in self.kernels if x.kind in kinds]
        return dataclasses.replace(self, kernels=kernels, collectives=())


def analyze(module: hlo.Module, device: DeviceSpec, mesh_shape: Mapping[str, int]) -> Roofline:
    """Returns the roofline of a program that runs on a mesh of such devices."""
    analysis = _Analysis(module, device, mesh_shape)
    analysis.run(module.entry, 1, False)
    return Roofline(analysis.kernels, analysis.collectives, device.bandwidth)


class _Analysis:
    """Kernels and collectives of a program, in the order in which a device starts them."""

    def __init__(self, module: hlo.Module, device: DeviceSpec, mesh_shape: Mapping[str, int]):
        self._module, self._device, self._mesh_shape = module, device, mesh_shape
        self.kernels: list[Kernel] = []
        self.collectives: list[Collective] = []

    def run(self, name: str, calls: int, in_loop: bool) -> float:
        """Adds what a computation runs in some calls; returns the least seconds of one of them.

        A device runs one kernel at a time, and beside it one collective, which begins once it is
        started and the one before it has ended. The device waits for it where it is done.
        """
        module, computation = self._module, self._module.computations[name]
        now = free = 0.0  # seconds on the device, and when its links are free
        running: dict[str, int] = {}  # collectives by the names of values that they will complete
        ends: dict[int, float] = {}

        def wait(number: int) -> None:
            nonlocal now
            end = ends.pop(number, now)
            exposed = max(0.0, end - now)
            self.collectives[number] = dataclasses.replace(
                self.collectives[number], exposed=exposed
            )
            now = max(now, end)

        for instruction in computation.instructions.values():
            if (inner := _inner(module, instruction)) is not None:
                is_loop = instruction.opcode == "while"
                trips = hlo.trip_count(module, instruction) if is_loop else 1
                now += trips * self.run(inner, calls * trips, in_loop or is_loop)
                continue
            used = [running[x] for x in instruction.operands if x in running]
            if _is_done(module, instruction):
                for number in used:
                    wait(number)
                continue
            if used and _passes_on(module, instruction):
                running[instruction.name] = max(used)
            if instruction.opcode in _FREE:
                continue
            communication = _find_communication(module, instruction)
            if communication is not None:
                number = len(self.collectives)
                is_start = _is_start(module, instruction)
                overlaps = is_start and _overlaps(module, computation, instruction)
                one = self._collective(communication, calls, in_loop, overlaps)
                self.collectives.append(one)
                ends[number] = free = max(free, now) + one.seconds
                if is_start:
                    running[instruction.name] = number
                    continue
                wait(number)
                if instruction.opcode != "fusion" or _is_reduce_scatter(instruction):
                    continue
            kernel = self._kernel(computation, instruction, calls)
            self.kernels.append(kernel)
            now += kernel.seconds if kernel.kind != "prefetch" else 0.0
        for number in list(ends):
            wait(number)
        return now

    def _collective(
        self, communication: hlo.Instruction, calls: int, in_loop: bool, overlaps: bool
    ) -> Collective:
        group = _first_group(communication.attributes, math.prod(self._mesh_shape.values()))
        kind, size = communication.opcode.removesuffix("-start"), _result_size(communication)
        return Collective(
            kind,
            _spanned_axes(group, self._mesh_shape),
            size,
            calls,
            in_loop,
            overlaps,
            communication_seconds(kind, size, group, self._device),
        )

    def _kernel(
        self, computation: hlo.Computation, instruction: hlo.Instruction, calls: int
    ) -> Kernel:
        module, device = self._module, self._device
        flops = hlo.flops(module, computation, instruction)
        moved = hlo.bytes_accessed(module, computation, instruction)
        return Kernel(
            instruction.name,
            instruction.op_name,
            _kernel_kind(module, computation, instruction, flops),
            calls,
            flops,
            moved,
            max(flops / device.peak_flops, moved / device.bandwidth),
        )


def communication_seconds(kind: str, size: int, group: np.ndarray, device: DeviceSpec) -> float:
    """Returns the least seconds in which a group of devices communicates.

    Every device uses all its links. Where the group is on several hosts, the devices of a host
    share what it receives over the network.

    Args:
      kind: kind of collective, such as "all-gather".
      size: bytes of the result on each device.
      group: int[n], numbers of the devices; those of a host follow one another.
      device: figures of a device; without those of its links, the time is 0.
    """
    devices = len(group)
    hosts = len(set((group // device.host_devices).tolist())) if device.network else 1
    moved = {"all-reduce": 2 * size, "reduce-scatter": size * devices}.get(kind, size)
    received, from_hosts = moved * (1 - 1 / devices), moved * (1 - 1 / hosts)
    if kind == "collective-permute":
        received, from_hosts = size, size * (hosts > 1)
    elif kind != "all-to-all":
        from_hosts *= hosts / devices
    seconds = received / device.links if device.links else 0.0
    return max(seconds, from_hosts / device.network if device.network else 0.0)


def _inner(module: hlo.Module, instruction: hlo.Instruction) -> str | None:
    """Returns the computation that a loop, a conditional or a call runs; None for others."""
    match instruction.opcode:
        case "while":
            return instruction.attribute("body")
        case "conditional":
            return _longest_branch(module, instruction)
        case "call":
            return instruction.attribute("to_apply")
    return None


def _is_done(module: hlo.Module, instruction: hlo.Instruction) -> bool:
    return instruction.opcode.endswith("-done") or _async_part(module, instruction) == "Done"


def _is_start(module: hlo.Module, instruction: hlo.Instruction) -> bool:
    return instruction.opcode.endswith("-start") or _async_part(module, instruction) == "Start"


def _passes_on(module: hlo.Module, instruction: hlo.Instruction) -> bool:
    """Whether the values of an instruction may be those of a collective that still runs."""
    return instruction.opcode in _FREE or _async_part(module, instruction) == "Middle"


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
        found = next((x for x in inside if x.opcode in hlo.COLLECTIVES), None)
        if found is None or not _is_reduce_scatter(instruction):
            return found
        return dataclasses.replace(
            instruction, opcode="reduce-scatter", attributes=found.attributes
        )
    is_communication = instruction.opcode.removesuffix("-start") in hlo.COLLECTIVES
    return instruction if is_communication else None


def _is_reduce_scatter(instruction: hlo.Instruction) -> bool:
    """Whether it is the fusion of a sum and a slice that a TPU runs as one reduce-scatter."""
    is_fusion = instruction.opcode == "fusion"
    return is_fusion and instruction.attribute("calls").startswith("all-reduce-scatter")


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
        is_kernel = not (other.opcode in _FREE or _is_done(module, other))
        if is_kernel and not other.opcode.endswith("-start"):
            return True
    return False


def _users(computation: hlo.Computation, start: hlo.Instruction) -> Iterator[hlo.Instruction]:
    """Yields the instructions that use an instruction or an element of its results."""
    for user in computation.users[start.name]:
        if user.opcode == "get-tuple-element":
            yield from computation.users[user.name]
        else:
            yield user


def _spanned_axes(group: np.ndarray, mesh_shape: Mapping[str, int]) -> str:
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
