"""All benchmarks on a GPU, in one command of at most nine minutes.

    python -m benchmarks.gpu
    python -m benchmarks.gpu --parts roofline step-150m --output=now.json
    python -m benchmarks.gpu --smoke     every part at a tiny size, also on a CPU, as a test

Each part is a command in its own process, with a time limit. A part that fails or exceeds the
limit is reported in its row. Time that a part does not use is available to later ones. The record,
by default gpu.json, is rewritten after every part.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from anytime_jax.commands import exit_status
from anytime_jax.errors import InputError, RunError
from anytime_jax.formatting import format_duration
from benchmarks import harness, record

_DEVICE_SECONDS = 10  # time limit for finding the devices; all parts together take at most 540
# Runs in a separate process, so that this one allocates nothing on a GPU.
_DESCRIBE = (
    "import json, jax; from benchmarks import record; print(json.dumps(record.describe_machine()))"
)


@dataclasses.dataclass(frozen=True)
class Part:
    """A command to run.

    Attributes:
      seconds: time limit.
      module: module for `python -m`.
      arguments: DATA is replaced by the dataset that `corpus` prepares, SCRATCH by a directory,
        TORCH by an interpreter with torch.
      smoke_arguments: arguments for a tiny size.
      columns: columns of its record to show; empty for a command without a record.
    """

    seconds: float
    module: str
    arguments: str
    smoke_arguments: str
    columns: tuple[str, ...] = ()


_STEP = ("tokens_per_s", "of_peak", "of_roofline", "averages_cost", "state_MB", "temporary_MB")
_TINY = "--batch 2 --microbatches 1 --steps 1 --rounds 1"
PARTS = {
    "roofline": Part(
        12,
        "benchmarks.peak_rates",
        "--model=150m --steps=5 --rounds=5",
        "--steps=1 --rounds=1",
        columns=("GFLOP_per_s", "GB_per_s"),
    ),
    "step-150m": Part(
        54,
        "lab.benchmarks.train_step",
        "--model 150m --batch 256 --microbatches 8 --steps 3 --rounds 3",
        _TINY,
        columns=_STEP,
    ),
    "step-300m": Part(
        62,
        "lab.benchmarks.train_step",
        "--model 300m --batch 256 --microbatches 8 --steps 2 --rounds 3",
        f"{_TINY} --averages off",
        columns=_STEP,
    ),
    "peers": Part(
        104,
        "benchmarks.torch_comparison",
        "--torch-python=TORCH --model=150m --batch=256 --microbatches=16 --steps=2 --rounds=2",
        f"--torch-python=TORCH --modes eager {_TINY}",
        columns=("mode", "tokens_per_s", "times_ours", "first_loss", "after_5", "peak_MB"),
    ),
    "attention": Part(
        56,
        "lab.benchmarks.train_step",
        "--model 150m --batch 8 --microbatches 1 --averages off --steps 10 --rounds 5 "
        "--attention cudnn xla plain",
        f"{_TINY} --averages off --attention xla plain",
        columns=("median_ms", "tokens_per_s", "of_roofline", "temporary_MB"),
    ),
    "attention-errors": Part(
        55,
        "benchmarks.attention",
        "--steps=5 --rounds=3",
        "--attention plain xla --rows=1 --length=64 --heads=4 --head-size=16 --steps=1 --rounds=1",
        columns=("median_ms", "error_out", "error_dq", "error_dk", "error_dv"),
    ),
    "corpus": Part(
        14,
        "anytime_jax",
        "prepare --source=builtin --megabytes=40 --train-vocabulary=8192 --output=DATA",
        "prepare --source=builtin --megabytes=3 --train-vocabulary=512 --output=DATA",
    ),
    "short_run": Part(
        65,
        "benchmarks.short_run",
        "--data=DATA --scratch=SCRATCH --model=150m --updates=24 --batch=32 --microbatches=4",
        "--data=DATA --scratch=SCRATCH --updates=8 --batch=4",
        columns=("value", "met"),
    ),
    "evaluation": Part(
        24,
        "benchmarks.evaluate",
        "--data=DATA --model=150m --windows=256 --batch-size=32 --rounds=5",
        "--data=DATA --windows=8 --batch-size=4 --rounds=1",
        columns=("seconds", "tokens_per_s", "times_one_tree", "met"),
    ),
    "saves": Part(
        24,
        "benchmarks.checkpoint",
        "--scratch=SCRATCH --width=512 --layers=12 --rounds=3",
        "--scratch=SCRATCH --width=16 --layers=1 --rounds=1",
        columns=("seconds", "MB_per_s"),
    ),
    "startup": Part(
        40,
        "benchmarks.startup",
        "--data=DATA --rounds=1",
        "--data=DATA --rounds=1",
        columns=("seconds", "compiling, first update", "cpu_seconds", "met"),
    ),
    "theory": Part(
        20,
        "anytime_jax",
        "theory --config=theory_figure --config.out_dir=SCRATCH/theory",
        "theory --config=theory_figure --config.out_dir=SCRATCH/theory "
        "--config.steps=6000 --config.noise=(0.1,) --config.capacity=(1.5,)",
    ),
}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Result of a part; without a record, the reason and the end of its output."""

    seconds: float
    failure: str = ""
    skipped: str = ""
    output: str = ""
    record: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def main(argv: Sequence[str]) -> int:
    parser = harness.make_parser("benchmarks.gpu", __doc__, output=Path("gpu.json"))
    add = parser.add_argument
    add("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), help="default: all")
    add("--smoke", action="store_true", help="tiny sizes, on a CPU too")
    add("--torch-python", help="interpreter with torch (default on a GPU: this one)")
    options = parser.parse_args(argv)
    return exit_status.run(lambda: _measure(argv, options))


def _measure(argv: Sequence[str], options: argparse.Namespace) -> int:
    deadline = time.monotonic() + _DEVICE_SECONDS + sum(part.seconds for part in PARTS.values())
    machine = _describe_machine()
    if machine["platform"] != "gpu" and not options.smoke:
        raise InputError(f"JAX finds no GPU, only a {machine['platform']}: try --smoke")
    torch = options.torch_python or ("" if options.smoke else sys.executable)
    rows: list[record.Row] = []
    outcomes: dict[str, Any] = {}
    for name, outcome in run_parts(select(options.parts), options.smoke, torch, deadline):
        rows += make_rows(name, outcome)
        outcomes[name] = dataclasses.asdict(outcome)
        record.write(record.make("benchmarks.gpu", argv, rows, outcomes, machine), options.output)
        status = outcome.failure or outcome.skipped or "done"
        print(f"{name}: {status}, after {format_duration(outcome.seconds)}", flush=True)
    record.show(machine["devices"], rows)
    print(f"record: {options.output}")
    return 1 if any(outcome["failure"] for outcome in outcomes.values()) else 0


def _describe_machine() -> dict[str, Any]:
    try:
        process = _run([sys.executable, "-c", _DESCRIBE], 60)
    except subprocess.TimeoutExpired as error:
        raise RunError("JAX found no devices within a minute") from error
    if process.returncode:
        raise InputError(f"JAX finds no device: {error_lines(process.stderr)}")
    return json.loads(process.stdout.splitlines()[-1])


def select(names: Sequence[str]) -> list[str]:
    """Returns parts in their order of execution, with `corpus` if any of them reads data."""
    needs_data = any("--data=DATA" in PARTS[name].arguments for name in names)
    return [name for name in PARTS if name in names or (name == "corpus" and needs_data)]


def run_parts(
    names: Sequence[str], smoke: bool, torch: str, deadline: float
) -> Iterator[tuple[str, Outcome]]:
    """Runs parts one after another; `torch` may be "", `deadline` is on the monotonic clock."""
    with tempfile.TemporaryDirectory() as scratch:
        values = {"TORCH": torch, "DATA": f"{scratch}/data", "SCRATCH": scratch}
        for i, name in enumerate(names):
            part = PARTS[name]
            arguments = part.smoke_arguments if smoke else part.arguments
            if "TORCH" in arguments and not torch:
                yield name, Outcome(0.0, skipped="skipped: it needs --torch-python")
                continue
            reserved = sum(PARTS[later].seconds for later in names[i + 1 :])
            words = [
                re.sub("|".join(values), lambda match: values[match[0]], word)
                for word in arguments.split()
            ]
            command = [sys.executable, "-m", part.module, *words]
            output = Path(scratch) / f"{name}.json" if part.columns else None
            yield name, run_part(command, output, deadline - time.monotonic() - reserved)


def run_part(command: Sequence[str], output: Path | None, limit: float) -> Outcome:
    """Runs a command that may write a record; any failure is part of the outcome."""
    start = time.monotonic()
    try:
        process = _run([*command, f"--output={output}"] if output else command, limit)
    except subprocess.TimeoutExpired as error:
        failure, text = f"stopped: it took over {limit:.0f} s", str(error.stderr)
    else:
        failure, text = f"failed: {error_lines(process.stderr)}", process.stderr
        if not process.returncode:
            contents = json.loads(output.read_text()) if output else {}
            return Outcome(time.monotonic() - start, record=contents)
    text = record.drop_directories(text[-3000:])
    return Outcome(time.monotonic() - start, failure, output=text)


def _run(command: Sequence[str], limit: float) -> subprocess.CompletedProcess[str]:
    """Runs a command; at the limit kills it with its children and raises TimeoutExpired."""
    with subprocess.Popen(
        command,
        cwd=harness.REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=max(limit, 0))
        except subprocess.TimeoutExpired:
            _kill(process)
            out, err = process.communicate()
            raise subprocess.TimeoutExpired(command, limit, out, err) from None
        finally:
            _kill(process)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):  # the process left no children
        os.killpg(process.pid, signal.SIGKILL)


def error_lines(text: str) -> str:
    """Returns the last two lines of some output that name errors, or else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no output"]
    errors = [line for line in lines if re.match(r"error:|[\w.]*(Error|Exception)\b", line)]
    return record.drop_directories("; ".join(errors[-2:]) or lines[-1])[:200]


def make_rows(name: str, outcome: Outcome) -> list[record.Row]:
    """Returns the rows of the table for a part."""
    if status := outcome.failure or outcome.skipped:
        return [{"part": name, "what": "-", "measured": status}]
    if not outcome.record:
        seconds = record.format_cell(outcome.seconds)
        return [{"part": name, "what": "the whole command", "measured": f"{seconds} s"}]
    rows = []
    for row in outcome.record["rows"]:
        key, first = next(iter(row.items()))
        cells = [_cell(c, row[c]) for c in PARTS[name].columns if row.get(c) is not None]
        what = str(first) if key == "what" else f"{first} {key}"
        rows.append({"part": name, "what": what, "measured": ", ".join(cells)})
    return rows


def _cell(column: str, value: Any) -> str:
    if column == "met":
        return "target met" if value == "yes" else "target missed"
    text = record.format_cell(value)
    if column in ("value", "mode", "program"):
        return text
    return f"{text} {column.replace('_per_', '/').replace('_', ' ')}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
