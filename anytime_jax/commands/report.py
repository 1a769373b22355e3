"""Draw the figures and tables of a study, or show one run.

Everything is computed from records. A study's report is written into STUDY/report, or --output:
every figure as PNG, PDF and CSV, every table as CSV, and `index.html` with all of them. What lacks
runs is named, and the rest is drawn. With --pack the plan and the records are copied there too, so
that the report can be made again from that directory, elsewhere, without checkpoints.
"""

import argparse
import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from rich.console import Console

from anytime_jax.atomic import make_writable_directory
from anytime_jax.checkpoints import records, run_directory
from anytime_jax.commands.console import open_console
from anytime_jax.errors import InputError
from anytime_jax.formatting import format_count
from anytime_jax.study import html_page, plan, published, report_items, run_report
from anytime_jax.study.results import Results
from anytime_jax.study.selection import Reading

EXAMPLES = (
    "--study=configs/studies/laptop.py",
    "--run=runs/quickstart --watch=30",
)

_RUNS = "runs"  # in a packed report: the records of every run


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--study", metavar="FILE", help="a study's file, or its directory")
    what.add_argument("--run", metavar="DIR", help="one run, in progress or not")
    add = parser.add_argument
    add("--output", type=Path, help="directory for the report (default: report/ in the study's)")
    add("--average", default="f25", help="read out of horizon-free runs (default: f25)")
    add(
        "--published",
        choices=tuple(published.losses()),
        help="draw the paper's differences of this model too (default: what the study says)",
    )
    add("--pack", action="store_true", help="copy the plan and the records to --output as well")
    add("--watch", type=float, metavar="SECONDS", help="look at --run again and again")


def run(arguments: argparse.Namespace) -> int:
    """Runs the command and returns the exit status."""
    console = open_console()
    with contextlib.suppress(KeyboardInterrupt):  # how one leaves --watch
        if arguments.run is not None:
            run_report.show(arguments.run, console, arguments.watch)
        else:
            _report(arguments, console)
    return 0


def _report(arguments: argparse.Namespace, console: Console) -> None:
    study = plan.load(arguments.study)
    root = Path(study.root)
    if not root.is_dir():
        raise InputError(
            f"--study={arguments.study}: it has not begun (there is no {study.root}): run it with "
            f"python -m anytime_jax sweep --study={arguments.study} --run"
        )
    remarks: list[str] = []
    results = Results(study, remarks.append)
    if arguments.average not in results.labels:
        known = ", ".join(results.labels)
        raise InputError(f"--average={arguments.average}: no run has it; they have {known}")
    out = arguments.output or root / "report"
    inside = {run.run_dir.resolve().parent for run in study.runs}
    if arguments.pack and {out.resolve(), (out / _RUNS).resolve()} & {*inside, root.resolve()}:
        raise InputError(f"--pack: {out} is the study's own directory: give another --output")
    try:
        make_writable_directory(out)
    except OSError as error:
        raise InputError(
            f"--output={out} cannot be made or written into ({error.strerror}): choose another"
        ) from error
    for remark in remarks:
        console.print(remark, markup=False)
    model = arguments.published or study.published
    made, left_out = report_items.make(results, Reading(arguments.average), model)
    done = sum(x.is_finished for x in results.results)
    clock = results.clock
    about = [
        study.title,
        f"{done} of {len(results.results)} runs are finished. 1x is "
        f"{format_count(clock.tokens(clock.chinchilla_steps))} tokens: "
        f"{clock.chinchilla_steps:,} updates of {format_count(clock.tokens_per_step)} tokens. Horizon-free runs are read out through "
        f"{arguments.average}, cosine and WSD by their live weights.",
        *remarks,
    ]
    title = f"{study.name}: pretraining without a horizon"
    files = html_page.write(out, title, about, made, left_out)
    if arguments.pack:
        files += _pack(study, out)
    for line in left_out:
        console.print(f"left out {line}", markup=False)
    for note in dict.fromkeys(note for exhibit in made for note in exhibit.notes):
        console.print(f"note     {note}", markup=False)
    console.print(f"{done} of {len(results.results)} runs; {len(files)} files in {out}")
    console.print(f"the page: {files[0]}", markup=False)


def _pack(study: plan.Study, out: Path) -> list[Path]:
    """Copies what a report is made from into a directory: the plan and every run's records."""
    if (out / _RUNS).exists():
        if not (out / plan.FILE).exists():
            raise InputError(f"--pack: {out / _RUNS} holds something else: give another --output")
        shutil.rmtree(out / _RUNS)  # an earlier copy: old segments would be read with the new
    files = [plan.write(study, out, _RUNS)]
    for run in study.runs:
        home = out / _RUNS / run.name
        segments = sorted((run.run_dir / records.DIRECTORY).glob("[0-9]*.jsonl"))
        for file in segments:
            copy = home / file.relative_to(run.run_dir)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
            files.append(copy)
        about = run_directory.read_run_file(run.run_dir)
        if segments and about is not None:
            files.append(_write_about(about, run.run_dir, home))
    return files


def _write_about(about: dict[str, Any], run_dir: Path, home: Path) -> Path:
    """Copies what a run wrote down when it began, with the trunk named as seen from the study."""
    if "branch" in about:
        there = about["branch"]["from_run"]
        about["branch"]["from_run"] = os.path.relpath(there, run_dir.absolute().parent)
    copy = home / run_directory.RUN_FILE
    copy.write_text(json.dumps(about), encoding="utf-8")
    return copy
