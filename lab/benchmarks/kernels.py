"""Where the time of an update goes: its kernels, traced, beside the least time of each.

    python -m lab.benchmarks.kernels --model=150m --program=program.json

Traces some updates of a run (with `jax.profiler`), and joins the trace with the compiled program.
Kernels of one kind that come from the same JAX operation are a row, over all layers and
microbatches. A kernel's limit is the larger of its FLOPs over the device's peak and its bytes over
the bandwidth of the memory. On a device without figures, such as a CPU, there are no limits.

On a GPU the command turns CUDA graphs off, since a trace does not say from which operation a kernel
inside a graph comes. `--program` writes the program and the times of its kernels.
"""

import argparse
import collections
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from anytime_jax.distributed import sharding
from anytime_jax.distributed.device_specs import DeviceSpec, device_spec
from anytime_jax.distributed.jax_settings import configure
from anytime_jax.errors import RunError
from anytime_lab.compilation import hlo
from anytime_lab.compilation.roofline import Kernel, analyze
from benchmarks import harness, record
from lab.benchmarks.train_step import Update, make_update

_NO_GRAPHS = "--xla_gpu_enable_command_buffer="
# They say nothing of the model.
_CALLS = ("while", "body", "closed_call", "eval_jaxpr", "run_block", "blocks", "")
# For a device without figures: nothing takes any time.
_NO_LIMITS = DeviceSpec(peak_flops=float("inf"), bandwidth=float("inf"), memory=0)


def main(argv: Sequence[str]) -> int:
    parser = harness.make_parser("lab.benchmarks.kernels", __doc__, steps=3, model=True)
    add = parser.add_argument
    add("--batch", type=int, help="sequences (default: the configuration's)")
    add("--microbatches", type=int, help="default: the configuration's")
    add("--least", type=float, default=0.01, help="share of an update to show (default 0.01)")
    add("--program", type=Path, metavar="FILE", help="write the program and the times of kernels")
    return record.run(parser, argv, _measure)


def _measure(options: argparse.Namespace) -> record.Result:
    config = harness.load_config(
        options.model, batch_size=options.batch, microbatches=options.microbatches
    )
    mesh = sharding.make_mesh(config.mesh)
    update = make_update(config, mesh)
    jax.block_until_ready([update.function() for _ in range(2)])
    wall, times = trace(update, options.steps)
    if options.program:
        contents = {"text": update.program, "seconds": times, "update_seconds": wall}
        record.write(contents, options.program)
    device = device_spec(mesh.devices.flat[0]) or _NO_LIMITS
    kernels = analyze(hlo.parse(update.program), device, dict(mesh.shape)).kernels
    rows = make_rows(kernels, times, wall, options.least)
    return record.Result(f"One update of {config.name}: {1e3 * wall:.1f} ms", rows, {})


def trace(update: Update, steps: int) -> tuple[float, dict[str, float]]:
    """Returns the seconds of an update, and in it the seconds of each instruction by name."""
    with tempfile.TemporaryDirectory() as directory:
        with jax.profiler.trace(directory):
            wall = harness.seconds_per_call(update.function, steps)
        files = list(Path(directory).rglob("*.xplane.pb"))
        if not files:
            raise RunError("the profiler wrote no trace")
        profile = jax.profiler.ProfileData.from_file(str(files[0]))
        times: collections.Counter[str] = collections.Counter()
        for plane in profile.planes:
            # On a GPU, lines of the host name the same instructions when they start them.
            if plane.name.startswith("/device:") or jax.default_backend() == "cpu":
                for line in plane.lines:
                    for event in line.events:
                        name = dict(event.stats).get("hlo_op")
                        if name:
                            times[str(name)] += event.duration_ns / 1e9 / steps
    return wall, dict(times)


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
    gaps = wall - sum(times.values())
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
