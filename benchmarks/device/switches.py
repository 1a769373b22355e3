"""Which kernels, how many microbatches and which of XLA's switches make an update faster on a GPU?

    python -m benchmarks.device.switches --seconds=500
    python -m benchmarks.device.switches --model=300m --flags --torch-python=/path/to/python
    python -m benchmarks.device.switches --smoke      tiny sizes, on a CPU too

Times the update with five averages once for each case, each in its own process; about 30 s a case
on an H100. The cases are each of `model.kernels` alone and all together, other numbers of
microbatches with all kernels and with none, PyTorch if there is an interpreter, and XLA's switches.
The first case, the configuration as it is, is timed again at the end: the difference of the two is
what another moment of the same machine makes. Every case has the losses of its first updates, in
which a wrong kernel shows: between cases they differ by rounding, about 1e-4.

Cases that do not fit into `--seconds` are left out; one that fails has the end of its output in the
record.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from anytime_jax.commands import exit_status
from anytime_jax.commands.argument_parser import seconds
from anytime_jax.config.model import KERNELS
from benchmarks import gpu, harness, record

_UPDATE = "lab.benchmarks.train_step --averages=on --steps=3 --rounds=3 --model="
_TINY = "lab.benchmarks.train_step --averages=on --steps=1 --rounds=1 --batch=2 --model="
_TORCH = "benchmarks.torch_comparison --modes=compiled --microbatches=16 --steps=2 --rounds=2"
FLAGS = (
    "xla_gpu_enable_command_buffer=",
    "xla_gpu_enable_triton_gemm=false",
    "xla_gpu_experimental_enable_fusion_block_level_rewriter=true",
    "xla_gpu_experimental_enable_fusion_autotuner=true",
    "xla_gpu_triton_gemm_any=true",
    "xla_gpu_cudnn_gemm_fusion_level=2",
    "xla_gpu_enable_latency_hiding_scheduler=false",
    "xla_gpu_experimental_all_fusions_with_triton=true",
)
MICROBATCHES = (4, 16)  # beside the configuration's 8
_ALL = ",".join(KERNELS)


def main(argv: Sequence[str]) -> int:
    parser = harness.make_parser(
        "benchmarks.device.switches", __doc__, output=Path("switches.json")
    )
    parser.add_argument("--model", default="150m", help=f"{harness.MODEL_HELP} (default 150m)")
    parser.add_argument("--torch-python", help="interpreter with torch, for one more case")
    parser.add_argument("--seconds", type=seconds, default=480, help="in all (default 480)")
    parser.add_argument("--flags", nargs="*", default=FLAGS, help="without dashes (default: all)")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, on a CPU too")
    options = parser.parse_args(argv)
    return exit_status.run(lambda: _measure(argv, options))


def _measure(argv: Sequence[str], options: argparse.Namespace) -> int:
    deadline = time.monotonic() + options.seconds
    harness.config_file(options.model)  # before processes are started
    update = f"{_TINY}small" if options.smoke else f"{_UPDATE}{options.model}"
    longest, rows, details = 0.0, [], []
    cases = list(_cases(update, options))
    with tempfile.TemporaryDirectory() as scratch:
        for i, (case, flags, words) in enumerate([*cases, cases[0]]):
            if i < len(cases) and deadline - time.monotonic() < 2.2 * longest:
                continue  # the first case again fits behind it
            environment = f"XLA_FLAGS={os.environ.get('XLA_FLAGS', '')} {flags}".rstrip()
            command = ["env", environment, sys.executable, "-m", *words.split()]
            outcome = gpu.run_part(
                command, Path(scratch) / f"{len(details)}.json", deadline - time.monotonic()
            )
            longest = max(longest, outcome.seconds)
            row = {"tokens_per_s": None, **([*outcome.record.get("rows", ())] or [{}])[-1]}
            row = {**row, "first_losses": row.get("first_losses", row.get("first_loss"))}
            tokens_per_s = row["tokens_per_s"]
            first = rows[0]["tokens_per_s"] if rows else tokens_per_s
            rows.append(
                {
                    "case": case,
                    "tokens_per_s": tokens_per_s,
                    "median_ms": row.get("median_ms"),
                    "of the first": tokens_per_s / first if tokens_per_s and first else None,
                    "first losses": row["first_losses"],
                    "temporary_MB": row.get("temporary_MB"),
                    "seconds": outcome.seconds,
                    "failure": outcome.failure,
                }
            )
            details.append({"output": outcome.output, **outcome.record.get("details", {})})
            result = record.make("benchmarks.device.switches", argv, rows, {"cases": details})
            record.write(result, options.output)
            print(rows[-1], flush=True)
    record.show(f"The {'small' if options.smoke else options.model} update", rows)
    print(f"record: {options.output}")
    return 0


def _cases(update: str, options: argparse.Namespace) -> Iterator[tuple[str, str, str]]:
    """Yields each case, flags of XLA and the words of a command."""
    yield "as it is", "", update
    for kernels in (*KERNELS, _ALL):
        yield f"kernels {kernels}", "", f"{update} --kernels={kernels}"
    for count in (1,) if options.smoke else MICROBATCHES:
        words = f"{update} --microbatches={count}"
        yield f"{count} microbatches", "", words
        yield f"{count} microbatches, all kernels", "", f"{words} --kernels={_ALL}"
    if options.torch_python:
        words = f"{_TORCH} --model={options.model} --torch-python={options.torch_python}"
        yield "16 microbatches, torch.compile", "", words
    for flag in options.flags:
        yield f"--{flag}", f"--{flag}", update


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
