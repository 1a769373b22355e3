"""Everything that is to be known of a GPU, in one command of less than nine minutes.

    python -m benchmarks.gpu
    python -m benchmarks.gpu --parts ceiling step-150m --output=now.json
    python -m benchmarks.gpu --smoke     every part at a tiny size, on a CPU too: does it run?

Each part is a command of its own in a process of its own, with a limit: a part that fails or takes
too long is a row that says so, and the others go on. What a part leaves unused of its time, the
later ones may take. The record is written anew after every part.
"""

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

from anytime_jax.commands.command_line import exit_status
from anytime_jax.errors import InputError, RunError
from anytime_jax.formatting import format_duration
from benchmarks import measure, record

_LONGEST = 200  # characters of a part's last words in the table
_ALL_WORDS = 3000  # and of what it said last in the record
# Asks what machine it is in a process that ends, so that this one holds nothing of a GPU.
_LOOK = (
    "import json, jax; from benchmarks import record; print(json.dumps(record.describe_machine()))"
)


@dataclasses.dataclass(frozen=True)
class Part:
    """A command that measures.

    Attributes:
      seconds: that it is given.
      module: what `python -m` runs.
      full: its arguments on a GPU. In these and the next, DATA stands for the dataset that `corpus`
        prepares, SCRATCH for a folder, TORCH for an interpreter that has torch.
      smoke: its arguments where all that is asked is whether it runs.
      columns: of its record, those told in the table; none for a command without a record.
    """

    seconds: float
    module: str
    full: str
    smoke: str
    columns: tuple[str, ...] = ()

    @property
    def needs_data(self) -> bool:
        """Whether it reads what `corpus` prepares."""
        return "--data=DATA" in self.full


_STEP = ("tokens_per_s", "of_ceiling", "averages_cost", "held_MB", "temporary_MB")
_TINY = "--batch 2 --microbatches 1 --steps 1 --rounds 1"
PARTS = {
    "ceiling": Part(
        seconds=25,
        module="benchmarks.ceiling",
        full="--model=150m --steps=5 --rounds=5",
        smoke="--steps=1 --rounds=1",
        columns=("GFLOP_per_s", "GB_per_s"),
    ),
    "step-150m": Part(
        seconds=52,
        module="benchmarks.train_step",
        full="--model 150m --batch 256 --microbatches 8 --steps 3 --rounds 3",
        smoke=_TINY,
        columns=_STEP,
    ),
    "step-300m": Part(
        seconds=57,
        module="benchmarks.train_step",
        full="--model 300m --batch 256 --microbatches 8 --steps 2 --rounds 3",
        smoke=f"{_TINY} --averages off",
        columns=_STEP,
    ),
    "peers": Part(
        seconds=100,
        module="benchmarks.peers",
        full="--torch-python=TORCH --model=150m --batch=256 --microbatches=16 --steps=2 --rounds=2",
        smoke=f"--torch-python=TORCH --kinds eager {_TINY}",
        columns=("how", "tokens_per_s", "times_ours", "first_loss", "after_5", "peak_MB"),
    ),
    "attention": Part(
        seconds=36,
        module="benchmarks.train_step",
        full="--model 150m --batch 8 --microbatches 1 --averages off --steps 10 --rounds 5 "
        "--attention cudnn xla plain",
        smoke=f"{_TINY} --averages off --attention xla plain",
        columns=("median_ms", "tokens_per_s", "temporary_MB"),
    ),
    "corpus": Part(
        seconds=20,
        module="anytime_jax.commands.prepare",
        full="--source=builtin --megabytes=40 --train-vocabulary=8192 --length=1024 --output=DATA",
        smoke="--source=builtin --megabytes=3 --train-vocabulary=512 --length=64 --output=DATA",
    ),
    "training": Part(
        seconds=80,
        module="benchmarks.training",
        full="--data=DATA --scratch=SCRATCH --model=150m --updates=40 --batch=32",
        smoke="--data=DATA --scratch=SCRATCH --updates=8 --batch=4",
        columns=("value", "met"),
    ),
    "evaluation": Part(
        seconds=20,
        module="benchmarks.evaluate",
        full="--data=DATA --model=150m --windows=256 --batch-size=32 --rounds=5",
        smoke="--data=DATA --windows=8 --batch-size=4 --rounds=1",
        columns=("seconds", "tokens_per_s", "times_one_tree", "met"),
    ),
    "saves": Part(
        seconds=25,
        module="benchmarks.checkpoint",
        full="--scratch=SCRATCH --width=512 --layers=12 --rounds=3",
        smoke="--scratch=SCRATCH --width=16 --layers=1 --rounds=1",
        columns=("seconds", "MB_per_s"),
    ),
    "startup": Part(
        seconds=45,
        module="benchmarks.startup",
        full="--data=DATA --rounds=1",
        smoke="--data=DATA --rounds=1",
        columns=("seconds", "compiling, first update", "cpu_seconds", "met"),
    ),
    "theory": Part(
        seconds=20,
        module="anytime_jax",
        full="theory --config=configs/theory_figure.py --config.out_dir=SCRATCH/theory",
        smoke="theory --config=configs/theory_figure.py --config.out_dir=SCRATCH/theory "
        "--config.steps=6000 --config.noise=(0.1,) --config.capacity=(1.5,)",
    ),
    "fleet": Part(  # last, as it is the one that may do with all that is left
        seconds=50,
        module="benchmarks.fleet",
        full="--runs 1 16 64 256 --steps 3 --rounds 3",
        smoke="--runs 2 --layers 1 --width 16 --mlp-width 48 --length 32 --batch 2 "
        "--steps 1 --rounds 1",
        columns=("how", "tokens_per_s", "times_alone", "held_MB", "temporary_MB"),
    ),
}
_BARE = ("value", "met", "how")  # columns whose values speak for themselves
_LOOKING = 10  # seconds of asking what machine it is: all parts and this make less than 540


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a part ended.

    Attributes:
      seconds: that it took.
      failure: what went wrong; "" where nothing did.
      left_out: why it was not run; "" where it was.
      words: what it said last, if it failed.
      found: its record; empty for a command without one.
    """

    seconds: float
    failure: str = ""
    left_out: str = ""
    words: str = ""
    found: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def main(argv: Sequence[str]) -> int:
    parser = measure.make_parser("gpu", __doc__)
    add = parser.add_argument
    add("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), help="default: all")
    add("--smoke", action="store_true", help="tiny sizes, on a CPU too; no record in results/")
    add("--torch-python", help="an interpreter with torch; this one on a GPU, if not given")
    options = parser.parse_args(argv)
    return exit_status(lambda: _measure(argv, options), debug=False)


def _measure(argv: Sequence[str], given: Any) -> int:
    deadline = time.monotonic() + _LOOKING + sum(part.seconds for part in PARTS.values())
    machine = _look()
    if machine["platform"] != "gpu" and not given.smoke:
        raise InputError(f"JAX sees no GPU here, only a {machine['platform']}: try --smoke")
    torch = given.torch_python or ("" if given.smoke else sys.executable)
    aside = Path(tempfile.gettempdir()) / "gpu-smoke.json"  # no record worth keeping
    output = given.output or (aside if given.smoke else record.default_path("gpu"))
    rows: list[record.Row] = []
    details: dict[str, Any] = {}
    for name, outcome in run_parts(choose(given.parts), given.smoke, torch, deadline):
        rows += make_rows(name, PARTS[name], outcome)
        details[name] = dataclasses.asdict(outcome)
        record.save("gpu", argv, rows, output, details, machine)
        said = outcome.failure or outcome.left_out or "done"
        print(f"{name}: {said}, after {format_duration(outcome.seconds)}", flush=True)
    record.show(f"{machine['devices']}", rows)
    print(f"written: {output}")
    return 1 if any(found["failure"] for found in details.values()) else 0


def _look() -> dict[str, Any]:
    try:
        done = _finish([sys.executable, "-c", _LOOK], 60)
    except subprocess.TimeoutExpired as error:
        raise RunError("JAX has not found its devices within a minute") from error
    if done.returncode:
        raise InputError(f"JAX finds no device here: {_last_words(done.stderr)}")
    return json.loads(done.stdout.splitlines()[-1])


def choose(names: Sequence[str]) -> list[str]:
    """Returns the parts asked for in their order, and with them the data that one reads."""
    wanted = {*names, *(["corpus"] if any(PARTS[name].needs_data for name in names) else [])}
    return [name for name in PARTS if name in wanted]


def run_parts(
    names: Sequence[str], smoke: bool, torch: str, deadline: float
) -> Iterator[tuple[str, Outcome]]:
    """Runs parts one after another.

    Args:
      names: of `PARTS`.
      smoke: whether at the tiny size.
      torch: an interpreter that has torch; "" for none.
      deadline: of all of them, on the monotonic clock.
    """
    with tempfile.TemporaryDirectory() as scratch:
        for i, name in enumerate(names):
            part = PARTS[name]
            later = sum(PARTS[other].seconds for other in names[i + 1 :])
            given = part.smoke if smoke else part.full
            if "TORCH" in given and not torch:
                yield name, Outcome(0.0, left_out="left out: it needs --torch-python")
                continue
            places = {"TORCH": torch, "DATA": f"{scratch}/data", "SCRATCH": scratch}
            arguments = [_fill(word, places) for word in given.split()]
            limit = deadline - time.monotonic() - later
            yield name, run_part(part, arguments, Path(scratch) / f"{name}.json", limit)


def _fill(word: str, places: Mapping[str, str]) -> str:
    return re.sub("|".join(places), lambda found: places[found[0]], word)


def run_part(part: Part, arguments: Sequence[str], output: Path, limit: float) -> Outcome:
    """Runs a part; never raises for what goes wrong in it.

    Args:
      part: which.
      arguments: its command line.
      output: where its record goes, if it has one.
      limit: seconds until it is ended.
    """
    command = [sys.executable, "-m", part.module, *arguments]
    began = time.monotonic()
    try:
        done = _finish([*command, f"--output={output}"] if part.columns else command, limit)
    except subprocess.TimeoutExpired as late:
        words = record.without_folders(str(late.stderr)[-_ALL_WORDS:])
        return Outcome(time.monotonic() - began, f"ended: it took over {limit:.0f} s", words=words)
    seconds = time.monotonic() - began
    if done.returncode:
        words = record.without_folders(done.stderr[-_ALL_WORDS:])
        return Outcome(seconds, f"failed: {_last_words(done.stderr)}", words=words)
    return Outcome(seconds, found=json.loads(output.read_text()) if part.columns else {})


def _finish(command: Sequence[str], limit: float) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end; at the limit it is ended, with its own children."""
    with subprocess.Popen(
        command,
        cwd=measure.REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=max(limit, 0))
        except subprocess.TimeoutExpired:
            _end(process)
            out, err = process.communicate()
            raise subprocess.TimeoutExpired(command, limit, out, err) from None
        finally:
            _end(process)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has left nothing
        os.killpg(process.pid, signal.SIGKILL)


def _last_words(text: str) -> str:
    """The last two lines that name errors: a worker's comes first, and JAX says more below."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["it said nothing"]
    named = [line for line in lines if re.match(r"error:|[\w.]*(Error|Exception)\b", line)]
    return record.without_folders("; ".join(named[-2:]) or lines[-1])[:_LONGEST]


def make_rows(name: str, part: Part, outcome: Outcome) -> list[record.Row]:
    """Returns what the table says of a part."""
    if said := outcome.failure or outcome.left_out:
        return [{"part": name, "what": "-", "measured": said}]
    if not outcome.found:
        took = f"{record.rounded(outcome.seconds)} s"
        return [{"part": name, "what": "the whole command", "measured": took}]
    rows = []
    for row in outcome.found["rows"]:
        key, first = next(iter(row.items()))
        what = str(first) if key == "what" else f"{first} {key}"
        row = {**row, "met": {"yes": "target met", "no": "target missed"}.get(row.get("met"))}
        told = {column: row[column] for column in part.columns if row.get(column) is not None}
        measured = ", ".join(_phrase(column, value) for column, value in told.items())
        rows.append({"part": name, "what": what, "measured": measured})
    return rows


def _phrase(column: str, value: Any) -> str:
    name = column.replace("_per_", "/").replace("_", " ")
    return record.text(value) + ("" if column in _BARE else f" {name}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
