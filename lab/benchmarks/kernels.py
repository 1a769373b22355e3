"""Where the time of an update goes: its kernels, traced, beside the least time of each.

    python -m lab.benchmarks.kernels --model=150m --keep=trace
    python -m lab.benchmarks.kernels --trace=runs/profiled/profile --device=h100

Traces some updates of a run with `jax.profiler`, or reads a finished trace, such as the profile of
a run or what `--keep` kept, also on a machine without the device. A trace has the compiled program,
so that kernels of one kind that come from the same JAX operation are a row, over all layers and
microbatches. A kernel's limit is the larger of its FLOPs over the device's peak and its bytes over
the bandwidth of the memory. On a device without figures, such as a CPU, there are no limits. A CPU
runs several kernels at a time, so that the shares may add up to more than 1.

On a GPU, a trace does not say from which operation a kernel inside a CUDA graph comes. This command
turns graphs off for its own traces; set XLA_FLAGS=--xla_gpu_enable_command_buffer= for others.
"""

import argparse
import collections
import contextlib
import dataclasses
import importlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from google.protobuf import descriptor_pb2, message_factory, text_format

from anytime_jax.commands.argument_parser import positive_int
from anytime_jax.distributed import sharding
from anytime_jax.distributed.device_specs import DEVICE_SPECS, DeviceSpec, device_spec
from anytime_jax.distributed.jax_settings import configure
from anytime_jax.errors import InputError
from anytime_lab.compilation import hlo
from anytime_lab.compilation.roofline import Kernel, analyze
from benchmarks import harness, record
from lab.benchmarks.train_step import make_update

_NO_GRAPHS = "--xla_gpu_enable_command_buffer="
# They say nothing of the model.
_CALLS = ("while", "body", "closed_call", "eval_jaxpr", "run_block", "blocks", "")
# For a device without figures: nothing takes any time.
_NO_LIMITS = DeviceSpec(peak_flops=float("inf"), bandwidth=float("inf"), memory=0)
_CONTAINERS = ("while", "conditional", "call")  # a trace has what they run, too
# The programs in a trace (source: `xplane.proto` and `hlo.proto` of OpenXLA); all else is skipped.
_PROTOS = """
name: "trace"
message_type {
  name: "Space"
  field { name: "planes" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: "Plane" }
}
message_type {
  name: "Plane"
  field { name: "name" number: 2 type: TYPE_STRING }
  field { name: "events" number: 4 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: "Entry" }
}
message_type {
  name: "Entry"
  field { name: "event" number: 2 type: TYPE_MESSAGE type_name: "Event" }
}
message_type {
  name: "Event"
  field { name: "name" number: 2 type: TYPE_STRING }
  field { name: "stats" number: 5 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: "Stat" }
}
message_type { name: "Stat" field { name: "hlo_proto" number: 6 type: TYPE_BYTES } }
message_type { name: "HloProto" field { name: "module" number: 1 type: TYPE_BYTES } }
"""


@dataclasses.dataclass(frozen=True)
class Trace:
    """Updates in a trace.

    Attributes:
      program: the compiled update.
      devices: on which the program runs.
      seconds: of an update, from the start of a first kernel to the end of a last one.
      kernel_seconds: of each instruction on one device in an update, by name.
    """

    program: hlo.Module
    devices: int
    seconds: float
    kernel_seconds: Mapping[str, float]


def main(argv: Sequence[str]) -> int:
    parser = harness.make_parser("lab.benchmarks.kernels", __doc__, steps=3, model=True)
    add = parser.add_argument
    add("--batch", type=positive_int, help="sequences (default: the configuration's)")
    add("--microbatches", type=positive_int, help="default: the configuration's")
    add("--least", type=float, default=0.01, help="share of an update to show (default 0.01)")
    of_trace = parser.add_mutually_exclusive_group().add_argument
    of_trace("--keep", type=Path, metavar="DIR", help="keep the trace in this directory")
    of_trace("--trace", type=Path, metavar="DIR", help="read the newest trace below this directory")
    add("--device", choices=DEVICE_SPECS, help="device with the limits (default: this machine's)")
    return record.run(parser, argv, _measure)


def _measure(options: argparse.Namespace) -> record.Result:
    if options.trace:
        trace, name = read_trace(options.trace), str(options.trace)
    else:
        config = harness.load_config(
            options.model, batch_size=options.batch, microbatches=options.microbatches
        )
        name = config.name
        update = make_update(config, sharding.make_mesh(config.mesh))
        jax.block_until_ready([update.function() for _ in range(2)])
        with _directory(options.keep) as directory:
            _write_trace(update.function, options.steps, directory)
            trace = read_trace(directory)
    device = DEVICE_SPECS.get(options.device) or device_spec(jax.devices()[0]) or _NO_LIMITS
    kernels = analyze(trace.program, device, {"devices": trace.devices}).kernels
    rows = make_rows(kernels, trace.kernel_seconds, trace.seconds, options.least)
    return record.Result(f"One update of {name}: {1e3 * trace.seconds:.1f} ms", rows, {})


@contextlib.contextmanager
def _directory(keep: Path | None) -> Iterator[Path]:
    with contextlib.ExitStack() as stack:
        yield keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))


def _write_trace(function: Callable[[], jax.Array], steps: int, directory: Path) -> None:
    results = []
    with jax.profiler.trace(directory):
        for i in range(steps):
            with jax.profiler.StepTraceAnnotation("train", step_num=i):
                results.append(function())
        jax.block_until_ready(results)


def read_trace(directory: Path) -> Trace:
    """Returns the updates of one device in the newest trace below a directory.

    An update is a step of `jax.profiler.StepTraceAnnotation`. Of the programs in the trace, the
    update is the one that took longest.
    """
    files = sorted(directory.rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    if not files:
        raise InputError(f"{directory} has no trace, a file *.xplane.pb")
    contents = files[-1].read_bytes()
    steps: set[int] = set()
    # By place and program: name, start and end of each event, in nanoseconds.
    events: dict[tuple[str, int], dict[str, list[tuple[str, float, float]]]] = {}
    try:
        planes = jax.profiler.ProfileData.from_serialized_xspace(contents).planes
    except RuntimeError as error:
        raise InputError(f"{files[-1]} is damaged: {error}") from error
    for plane in planes:
        for event in (event for line in plane.lines for event in line.events):
            stats = dict(event.stats)
            if "step_num" in stats:
                steps.add(stats["step_num"])
            if "hlo_op" in stats:
                device = plane.name, stats.get("device_ordinal", 0)
                programs = events.setdefault(device, collections.defaultdict(list))
                span = event.start_ns, event.start_ns + event.duration_ns
                programs[str(stats["hlo_module"])].append((str(stats["hlo_op"]), *span))
    if not steps or not events:
        raise InputError(f"{files[-1]} has no steps of JAX, or no kernels with names of operations")
    # "/device:" is before "/host:", whose lines say when kernels of a GPU were started.
    programs = events[min(events)]
    name = max(programs, key=lambda name: sum(end - start for _, start, end in programs[name]))
    times: dict[str, float] = collections.defaultdict(float)
    for operation, start, end in programs[name]:
        times[operation] += (end - start) / 1e9 / len(steps)
    first = min(start for _, start, _ in programs[name])
    last = max(end for _, _, end in programs[name])
    # Of several programs of a name in one process, the one that has the operations.
    parsed = [(text, hlo.parse(text)) for text in _programs(contents, name)]
    text, program = max(parsed, key=lambda pair: len(times.keys() & _opcodes(pair[1])))
    containers = {x for x, opcode in _opcodes(program).items() if opcode in _CONTAINERS}
    return Trace(
        program,
        devices=int(number[1]) if (number := re.search(r"num_partitions=(\d+)", text)) else 1,
        seconds=(last - first) / 1e9 / len(steps),
        kernel_seconds={name: t for name, t in times.items() if name not in containers},
    )


def _opcodes(program: hlo.Module) -> dict[str, str]:
    """Returns the opcodes of a program's instructions, by their names."""
    computations = program.computations.values()
    return {x.name: x.opcode for c in computations for x in c.instructions.values()}


def _programs(contents: bytes, name: str) -> list[str]:
    """Returns the texts of the programs of a name in a trace (a serialized XSpace)."""
    # No public function reads a serialized program.
    module: Any = importlib.import_module("jax._src.lib").hlo.HloModule
    file = text_format.Parse(_PROTOS, descriptor_pb2.FileDescriptorProto())
    classes: Mapping[str, Any] = dict(message_factory.GetMessages([file]))
    programs = [
        classes["HloProto"].FromString(stat.hlo_proto).module
        for plane in classes["Space"].FromString(contents).planes
        if plane.name == "/host:metadata"
        for entry in plane.events
        if entry.event.name.startswith(f"{name}(")
        for stat in entry.event.stats
        if stat.hlo_proto
    ]
    if not programs:
        raise InputError(f"the trace has no program {name}")
    return [module.from_serialized_hlo_module_proto(x).to_string() for x in programs]


def make_rows(
    kernels: Sequence[Kernel], times: Mapping[str, float], wall: float, least: float
) -> list[record.Row]:
    """Returns a row for each operation above a share of the update, then sums and the gaps.

    Args:
      kernels: kernels of the program.
      times: seconds of each instruction in an update, by name.
      wall: seconds of an update.
      least: smallest share of an update to show.
    """
    groups: dict[tuple[str, str], list[Kernel]] = {}
    for kernel in kernels:
        groups.setdefault((kernel.kind, _operation(kernel.op_name)), []).append(kernel)
    rows: list[record.Row] = [
        _row(f"{kind}: {operation}", group, times, wall)
        for (kind, operation), group in groups.items()
    ]
    rows = [row for row in rows if row["share"] >= least]
    rows.sort(key=lambda row: -row["ms"])
    for kind in dict.fromkeys(kernel.kind for kernel in kernels):
        group = [kernel for kernel in kernels if kernel.kind == kind]
        rows.append(_row(f"all {kind}", group, times, wall))
    known = {kernel.name for kernel in kernels}
    unknown = sum(seconds for name, seconds in times.items() if name not in known)
    gaps = max(0.0, wall - sum(times.values()))
    for name, seconds in (("not in the program", unknown), ("no kernel", gaps)):
        rows.append(_row(name, [], {}, wall) | {"ms": 1e3 * seconds, "share": seconds / wall})
    return rows


def _row(
    name: str, kernels: Sequence[Kernel], times: Mapping[str, float], wall: float
) -> dict[str, Any]:
    seconds = sum(times.get(kernel.name, 0.0) for kernel in kernels)
    limit = sum(kernel.calls * kernel.seconds for kernel in kernels)
    return {
        "kernels": name,
        "calls": sum(kernel.calls for kernel in kernels),
        "ms": 1e3 * seconds,
        "share": seconds / wall,
        "GB": sum(kernel.calls * kernel.bytes for kernel in kernels) / 1e9,
        "TFLOP": sum(kernel.calls * kernel.flops for kernel in kernels) / 1e12,
        "limit_ms": 1e3 * limit or None,
        "of_limit": limit / seconds if limit and seconds else None,
    }


def _operation(op_name: str) -> str:
    """Returns the path of a JAX operation, over all layers; transposed ones are "backward"."""
    parts = (re.sub(r".*\(|\).*|[._]?\d+$", "", part) for part in op_name.split("/")[1:])
    path = "/".join(part for part in parts if part not in _CALLS) or "unnamed"
    return f"backward {path}" if "transpose(" in op_name else path


if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_NO_GRAPHS}".strip()
    configure()
    sys.exit(main(sys.argv[1:]))
