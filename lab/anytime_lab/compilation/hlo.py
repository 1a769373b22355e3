"""Optimized XLA programs as text (HLO): their instructions, and the FLOPs and bytes of each.

A program is a set of computations: lists of instructions, of which the entry is run and the others
are called. On a device, every instruction of a computation that is run is a kernel, or is free; the
computation that a fusion calls is the inside of one kernel.

Source: https://openxla.org/xla/operation_semantics
"""

import dataclasses
import functools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

# Other types have the bits in their name.
_BITS = {"pred": 8, "s4": 4, "u4": 4, "c64": 64, "c128": 128}
_ARRAY = re.compile(r"\b([a-z]+\d*\w*)\[([\d,]*)\](\{[^}]*\})?")
_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) (?:\(.*)?\{$")
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = (.*)$")
COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
_ON_CHIP = re.compile(r"S\([1-46]\)")  # memory spaces of a TPU's cores, in a layout


@dataclasses.dataclass(frozen=True)
class Array:
    """Type of an array: element type, shape, and whether it is in a TPU's on-chip memory."""

    dtype: str
    shape: tuple[int, ...]
    on_chip: bool = False

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """Bytes of its elements."""
        return math.ceil(self.elements * _bits(self.dtype) / 8)

    @property
    def bytes(self) -> int:
        """Bytes in the device's main memory."""
        return 0 if self.on_chip else self.size


@dataclasses.dataclass(frozen=True)
class Instruction:
    """An instruction of a computation.

    Attributes:
      arrays: types of its results, one unless it returns a tuple.
      operands: names of the instructions that it uses.
      arguments: text between the parentheses.
      attributes: text after them.
    """

    name: str
    opcode: str
    arrays: tuple[Array, ...]
    operands: tuple[str, ...]
    arguments: str
    attributes: str

    @property
    def bytes(self) -> int:
        """Bytes of its results."""
        return sum(array.bytes for array in self.arrays)

    @property
    def op_name(self) -> str:
        """Path of the JAX operation that it was compiled from."""
        match = re.search(r'op_name="([^"]*)"', self.attributes)
        return match[1] if match else ""

    def attribute(self, name: str) -> str:
        """Returns the value of an attribute without spaces, such as `{0,1}`; empty if missing."""
        match = re.search(rf"\b{name}=(%?[\w.\-]+|\{{[^}}]*\}})", self.attributes)
        return match[1].removeprefix("%") if match else ""

    def numbers(self, name: str) -> tuple[int, ...]:
        """Returns the numbers of an attribute such as `dimensions={0,1}`."""
        return tuple(int(x) for x in re.findall(r"\d+", self.attribute(name)))

    @property
    def backend_config(self) -> dict:
        """The backend's settings of the instruction; empty if they are no JSON, as of a kernel."""
        _, found, text = self.attributes.partition("backend_config=")
        if not found or not text.startswith("{"):
            return {}
        try:
            return json.JSONDecoder().raw_decode(text)[0]
        except json.JSONDecodeError:  # of Pallas for GPUs, the program itself
            return {}


@dataclasses.dataclass(frozen=True)
class Computation:
    """Instructions by name, in an order in which they can run; `root` is the result."""

    name: str
    instructions: Mapping[str, Instruction]
    root: str

    @functools.cached_property
    def users(self) -> dict[str, list[Instruction]]:
        """The instructions that use each instruction."""
        users: dict[str, list[Instruction]] = {name: [] for name in self.instructions}
        for instruction in self.instructions.values():
            for operand in dict.fromkeys(instruction.operands):
                users.setdefault(operand, []).append(instruction)
        return users

    def arrays_of(self, name: str) -> tuple[Array, ...]:
        """Returns the types of an instruction's results."""
        return self.instructions[name].arrays if name in self.instructions else ()


@dataclasses.dataclass(frozen=True)
class Module:
    """A program: its computations by name, and the name of the entry."""

    computations: Mapping[str, Computation]
    entry: str


def parse(text: str) -> Module:
    """Parses `jax.stages.Compiled.as_text()`; raises a ValueError if it is no HLO module."""
    computations: dict[str, Computation] = {}
    entry = name = ""
    lines: list[str] | None = None  # instructions of the current computation
    for line in text.splitlines():
        if lines is None:
            match = _COMPUTATION.match(line)
            if match and not line.startswith("HloModule"):
                name, lines = match[2], []
                entry = name if match[1] else entry
        elif line == "}" or line.startswith("}, execution_thread="):
            computations[name] = _parse_computation(name, lines)
            lines = None
        elif _INSTRUCTION.match(line):
            lines.append(line)
        elif lines:  # the settings of a Pallas kernel have line breaks
            lines[-1] += line
    if not entry:
        raise ValueError("this is not the text of a compiled program: it has no ENTRY")
    return Module(computations, entry)


def _parse_computation(name: str, lines: Sequence[str]) -> Computation:
    instructions, root = {}, ""
    for match in map(_INSTRUCTION.match, lines):
        assert match is not None
        instructions[match[2]] = _parse_instruction(match[2], match[3])
        root = match[2] if match[1] else root
    return Computation(name, instructions, root)


def _parse_instruction(name: str, text: str) -> Instruction:
    types, rest = _split_type(text)
    opcode, _, rest = rest.partition("(")
    arguments, attributes = _split_parenthesis(rest)
    operands = tuple(re.findall(r"%([\w.\-]+)", arguments))
    return Instruction(name, opcode.strip(), _arrays(types), operands, arguments, attributes)


def _split_type(text: str) -> tuple[str, str]:
    if not text.startswith("("):
        types, _, rest = text.partition(" ")
        return types, rest
    types, rest = _split_parenthesis(text[1:])
    return types, rest.strip()


def _split_parenthesis(text: str) -> tuple[str, str]:
    """Splits text at the parenthesis that closes one opened before it."""
    depth = 1
    for match in re.finditer(r'[()]|"(?:\\.|[^"\\])*"', text):
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        if depth == 0:
            return text[: match.start()], text[match.end() :]
    return text, ""


def _arrays(text: str) -> tuple[Array, ...]:
    return tuple(
        Array(dtype, tuple(int(x) for x in shape.split(",") if x), bool(_ON_CHIP.search(layout)))
        for dtype, shape, layout in _ARRAY.findall(text)
        if dtype not in ("token", "opaque")
    )


def _bits(dtype: str) -> int:
    match = re.match(r"[a-z]+(\d+)", dtype)
    return _BITS.get(dtype) or (int(match[1]) if match else 0)


# FLOPs of matrix products


def flops(module: Module, computation: Computation, instruction: Instruction) -> float:
    """Returns the FLOPs of the matrix products in an instruction, or inside a fusion."""
    match instruction.opcode:
        case "dot":
            return _dot_flops(computation, instruction, instruction.numbers("lhs_contracting_dims"))
        case "convolution":
            return _convolution_flops(computation, instruction)
        case "custom-call":
            return _custom_call_flops(computation, instruction)
        case "fusion" | "call" | "async-start":
            inside = called(module, instruction)
            return sum(flops(module, inside, x) for x in inside.instructions.values())
    return 0.0


def called(module: Module, instruction: Instruction) -> Computation:
    """Returns the computation that a fusion, a call or an asynchronous call runs."""
    name = instruction.attribute("calls") or instruction.attribute("to_apply")
    return module.computations[name]


def _dot_flops(
    computation: Computation, instruction: Instruction, contracted: tuple[int, ...]
) -> float:
    (lhs, *_) = computation.arrays_of(instruction.operands[0])
    return 2.0 * instruction.arrays[0].elements * math.prod(lhs.shape[i] for i in contracted)


def _convolution_flops(computation: Computation, instruction: Instruction) -> float:
    """TPU compilers write matrix products as convolutions, batched ones with a window."""
    (lhs, *_) = computation.arrays_of(instruction.operands[0])
    (rhs, *_) = computation.arrays_of(instruction.operands[1])
    (out, *_) = instruction.arrays
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.attributes)
    if labels is None:
        return 0.0
    lhs_labels, rhs_labels, out_labels = labels.groups()
    total = 2.0 * out.shape[out_labels.index("b")] * out.shape[out_labels.index("f")]
    total *= rhs.shape[rhs_labels.index("i")]
    for at, window in enumerate(_windows(instruction, len(rhs_labels) - 2)):
        size = lhs.shape[lhs_labels.index(str(at))]
        total *= _window_pairs(window, size, out.shape[out_labels.index(str(at))])
    return total


@dataclasses.dataclass(frozen=True)
class _Window:
    size: int = 1
    stride: int = 1
    pad: int = 0
    lhs_dilate: int = 1
    rhs_dilate: int = 1


def _windows(instruction: Instruction, count: int) -> list[_Window]:
    """Returns the window of a convolution along each of its spatial axes."""
    fields: list[dict[str, int]] = [{} for _ in range(count)]
    text = instruction.attribute("window").strip("{}")
    for word in text.split():
        name, _, values = word.partition("=")
        for field, value in zip(fields, values.split("x"), strict=False):
            if name in ("size", "stride", "pad", "lhs_dilate", "rhs_dilate"):
                field[name] = int(value.partition("_")[0])
    return [_Window(**field) for field in fields]


def _window_pairs(window: _Window, size: int, outputs: int) -> int:
    """Returns the number of products along an axis, without padding and holes."""
    steps = np.arange(window.size) * window.rhs_dilate - window.pad
    places = np.arange(outputs)[:, None] * window.stride + steps
    inside = (places >= 0) & (places <= (size - 1) * window.lhs_dilate)
    return int((inside & (places % window.lhs_dilate == 0)).sum())


def _custom_call_flops(computation: Computation, instruction: Instruction) -> float:
    target = custom_call_target(instruction)
    config = instruction.backend_config
    if "gemm" in target or "matmul" in target:
        numbers = config.get("gemm_backend_config", config).get("dot_dimension_numbers", {})
        contracted = tuple(int(x) for x in numbers.get("lhs_contracting_dimensions", ()))
        return _dot_flops(computation, instruction, contracted) if contracted else 0.0
    if "fmha" in target:  # cuDNN
        return _attention_flops(computation, instruction, backward="Backward" in target)
    if "splash_mha" in instruction.op_name:  # JAX's Pallas kernels for TPUs
        return _attention_flops(computation, instruction, backward="_dkv" in instruction.op_name)
    estimate = config.get("custom_call_config", config).get("cost_estimate", {})
    return float(estimate.get("flops", 0))


def custom_call_target(instruction: Instruction) -> str:
    """Returns the name of the kernel that a custom call runs."""
    match = re.search(r'custom_call_target="([^"]*)"', instruction.attributes)
    return match[1] if match else ""


def _attention_flops(computation: Computation, instruction: Instruction, backward: bool) -> float:
    """FLOPs of causal attention: two products, of which half of the scores is needed.

    The backward pass has five products in place of two. Queries and keys are the first of
    three or four axes, after masks of integers.
    """
    arrays = (computation.arrays_of(name)[0] for name in instruction.operands)
    query, key, *_ = (x for x in arrays if len(x.shape) >= 3 and x.dtype in ("bf16", "f16", "f32"))
    scores = query.elements * sorted(key.shape[-3:-1])[-1]
    return 2.0 * scores * (2.5 if backward else 1.0)


def trip_count(module: Module, loop: Instruction) -> int:
    """Returns the iterations of a loop that counts from 0; 1 if they are unknown."""
    if match := re.search(r'known_trip_count":\{"n":"(\d+)"', loop.attributes):
        return int(match[1])
    condition = module.computations[loop.attribute("condition")]
    limits = [x for x in map(_integer, condition.instructions.values()) if x is not None]
    return math.ceil(limits[0] / _counter_step(module, loop)) if len(limits) == 1 else 1


def _counter_step(module: Module, loop: Instruction) -> int:
    """Returns what an iteration adds to the counter: more than 1 if the compiler unrolled it."""
    condition = module.computations[loop.attribute("condition")].instructions
    body = module.computations[loop.attribute("body")]
    results = body.instructions[body.root].operands
    counters = [x for x in condition.values() if x.opcode == "get-tuple-element"]
    if len(counters) != 1 or not counters[0].numbers("index"):
        return 1
    update = body.instructions[results[counters[0].numbers("index")[0]]]
    added = [_integer(body.instructions[x]) for x in update.operands if x in body.instructions]
    steps = [x for x in added if x] if update.opcode == "add" else []
    return steps[0] if len(steps) == 1 else 1


def _integer(instruction: Instruction) -> int | None:
    """Returns the value of an integer constant."""
    is_integer = instruction.opcode == "constant" and instruction.arguments.isdecimal()
    return int(instruction.arguments) if is_integer else None


# Bytes read and written


def bytes_accessed(module: Module, computation: Computation, instruction: Instruction) -> int:
    """Returns the bytes that a kernel reads and writes.

    A fusion that uses a slice of an operand reads only the slice; a fusion that updates a slice or
    scattered rows in place reads and writes only these.
    """
    if instruction.opcode == "fusion":
        return _fusion_bytes(module, computation, instruction)
    if custom_call_target(instruction) in _NO_KERNEL:
        return 0
    arrays = [computation.arrays_of(name) for name in instruction.operands]
    read = sum(array.bytes for operand in arrays for array in operand)
    match instruction.opcode:
        case "dynamic-slice" | "slice" | "gather":
            return 2 * instruction.bytes
        case "dynamic-update-slice":
            return 2 * sum(array.bytes for array in arrays[1])
        case "scatter":
            return read - arrays[0][0].bytes + 2 * arrays[2][0].bytes
        case "copy-start":
            return instruction.arrays[0].bytes + read
        case "slice-start":
            source, sliced, *_ = instruction.arrays
            return sliced.bytes + (0 if source.on_chip else sliced.size)
        case "async-start":
            inside = called(module, instruction)
            return 2 * inside.instructions[inside.root].bytes
    return instruction.bytes + read


# Custom calls that run no kernel.
_NO_KERNEL = {"AllocateBuffer", "ConcatBitcast", "AssumeGatherIndicesInBound"}
_SLICES = {"dynamic-slice", "slice", "gather"}
_VIEWS = {"bitcast", "convert", "copy", "get-tuple-element", "reshape"}


def _fusion_bytes(module: Module, computation: Computation, instruction: Instruction) -> int:
    inside = called(module, instruction)
    parameters = {
        int(x.arguments): x.name for x in inside.instructions.values() if x.opcode == "parameter"
    }
    total = 0
    for number, operand in enumerate(instruction.operands):
        size = sum(array.bytes for array in computation.arrays_of(operand))
        total += min(size, _bytes_read(module, inside, parameters[number], size))
    return total + sum(_bytes_written(module, inside, name) for name in _results(inside))


def _bytes_read(module: Module, inside: Computation, name: str, size: int) -> int:
    """Returns the bytes that the users of a value inside a fusion read of it."""
    total = 0
    for user in inside.users[name]:
        is_updated = user.opcode == "dynamic-update-slice" and user.operands[0] == name
        if user.opcode in _SLICES and user.operands[0] == name:
            total += user.bytes
        elif is_updated or user.opcode in COLLECTIVES:
            continue
        elif user.opcode == "scatter" and user.operands[0] == name:
            total += sum(array.bytes for array in inside.arrays_of(user.operands[2]))
        elif user.opcode == "tuple" and inside.instructions[name].opcode == "parameter":
            continue  # the buffers of overlapping communication are returned unchanged
        elif user.opcode == "fusion":
            nested = called(module, user)
            for parameter in nested.instructions.values():
                is_parameter = parameter.opcode == "parameter"
                if is_parameter and user.operands[int(parameter.arguments)] == name:
                    total += _bytes_read(module, nested, parameter.name, size)
        elif user.opcode in _VIEWS and user.name != inside.root:
            total += _bytes_read(module, inside, user.name, size)
        else:
            return size
    return total


def _results(inside: Computation) -> Iterator[str]:
    root = inside.instructions[inside.root]
    yield from root.operands if root.opcode == "tuple" else (root.name,)


def _bytes_written(module: Module, inside: Computation, name: str) -> int:
    instruction = inside.instructions[name]
    source = _without_views(inside, name)
    if source.opcode == "fusion":
        nested = called(module, source)
        return _bytes_written(module, nested, nested.root)
    if source.opcode == "dynamic-update-slice":
        return sum(array.bytes for array in inside.arrays_of(source.operands[1]))
    if source.opcode == "scatter":
        updated = _without_views(inside, source.operands[0])
        if updated.opcode == "parameter":
            return sum(array.bytes for array in inside.arrays_of(source.operands[2]))
    if instruction.opcode in ("parameter", *COLLECTIVES) and inside.root != name:
        return 0
    return instruction.bytes


def _without_views(inside: Computation, name: str) -> Instruction:
    """Returns the instruction whose result another one is or views."""
    source = inside.instructions[name]
    while source.opcode in _VIEWS and source.operands[0] in inside.instructions:
        source = inside.instructions[source.operands[0]]
    return source
