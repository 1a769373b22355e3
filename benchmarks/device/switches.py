"""Which of XLA's switches, and how many microbatches, make the 150M update faster on a GPU?

    python -m benchmarks.device.switches --seconds=300
    python -m benchmarks.device.switches --smoke      tiny sizes, on a CPU too

Times the update with five averages once for each case, each in its own process; about 30 s a case
on an H100. The first case, XLA's own choices, is timed again at the end: the difference of the two
is what another moment of the same machine makes. Cases that do not fit into `--seconds` are left
out; one that fails has the end of its output in the record.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from anytime_jax.commands import exit_status
from benchmarks import gpu, harness, record

_UPDATE = "--model=150m --averages=on --steps=3 --rounds=3"
_TINY = "--model=small --averages=on --steps=1 --rounds=1 --batch=8"
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


def main(argv: Sequence[str]) -> int:
    parser = harness.make_parser("benchmarks.device.switches", __doc__)
    parser.add_argument("--seconds", type=float, default=480, help="in all (default 480)")
    parser.add_argument("--flags", nargs="*", default=FLAGS, help="without dashes (default: all)")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, on a CPU too")
    options = parser.parse_args(argv)
    return exit_status.run(lambda: _measure(argv, options))


def _measure(argv: Sequence[str], options: argparse.Namespace) -> int:
    deadline = time.monotonic() + options.seconds
    output = options.output or Path("switches.json")
    counts = () if options.flags is not FLAGS else (2,) if options.smoke else MICROBATCHES
    cases = [("", ""), *(("", f"--microbatches={n}") for n in counts)]
    cases += [(f"--{flag}", "") for flag in options.flags]
    longest, rows, details = 0.0, [], []
    update = _TINY if options.smoke else _UPDATE
    with tempfile.TemporaryDirectory() as scratch:
        for i, (flags, microbatches) in enumerate([*cases, cases[0]]):
            if i < len(cases) and deadline - time.monotonic() < 2.2 * longest:
                continue  # the first case again fits behind it
            words = f"lab.benchmarks.train_step {update} {microbatches}".split()
            environment = f"XLA_FLAGS={os.environ.get('XLA_FLAGS', '')} {flags}".rstrip()
            command = ["env", environment, sys.executable, "-m", *words]
            outcome = gpu.run_part(
                command, Path(scratch) / f"{len(details)}.json", deadline - time.monotonic()
            )
            longest = max(longest, outcome.seconds)
            case = f"{flags} {microbatches}".strip() or "XLA's own"
            row = next(iter(outcome.record.get("rows", ())), {})
            tokens_per_s = row.get("tokens_per_s")
            first = rows[0]["tokens_per_s"] if rows else tokens_per_s
            rows.append(
                {
                    "case": case,
                    "tokens_per_s": tokens_per_s,
                    "median_ms": row.get("median_ms"),
                    "of the first": tokens_per_s / first if tokens_per_s and first else None,
                    "temporary_MB": row.get("temporary_MB"),
                    "seconds": outcome.seconds,
                    "failure": outcome.failure,
                }
            )
            details.append({"output": outcome.output, **outcome.record.get("details", {})})
            record.write(
                record.make("benchmarks.device.switches", argv, rows, {"cases": details}), output
            )
            print(rows[-1], flush=True)
    record.show("The 150M update", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
