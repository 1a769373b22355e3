"""List runs and their checkpoints, and verify them.

Nothing is changed in a run's directory but for a note of the verified checkpoints, and the run may
train meanwhile. The exit status is 1 if a checkpoint is damaged.
"""

import argparse
import datetime
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from anytime_jax.atomic import atomic_write
from anytime_jax.checkpoints import checkpoint_directory, checkpoint_reader, run_directory
from anytime_jax.checkpoints.checkpoint_directory import Entry
from anytime_jax.checkpoints.checkpoint_reader import Meta
from anytime_jax.checkpoints.records import read_records
from anytime_jax.commands.console import open_console
from anytime_jax.errors import InputError, RunError
from anytime_jax.formatting import format_bytes, format_count

EXAMPLES = (
    "",
    "--run=runs/quickstart --verify",
)

# In the run's directory: for each checkpoint that was verified, when, and its files' state then.
NOTE = "verified.json"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    add = parser.add_argument
    add(
        "--run",
        nargs="+",
        type=Path,
        default=[Path("runs")],
        metavar="DIR",
        help="a run's directory, or one that holds runs (default: runs)",
    )
    add("--verify", action="store_true", help="compare the checksum of every saved array")


def run(arguments: argparse.Namespace) -> int:
    """Runs the command and returns the exit status."""
    console = open_console()
    runs = [run for folder in arguments.run for run in _find_runs(folder)]
    damaged = sum(_show(run, arguments.verify, console) for run in runs)
    return 1 if damaged else 0


def _find_runs(folder: Path) -> list[Path]:
    """The run directories in a folder, or the folder itself if it is one."""
    if not folder.is_dir():
        raise InputError(f"--run={folder} is no directory: give a run's, or one that holds runs")
    found = sorted(file.parent for file in folder.rglob(run_directory.RUN_FILE))
    if not found:
        raise InputError(
            f"--run={folder} holds no run (no {run_directory.RUN_FILE} in it): give a run's "
            "directory, or one that holds runs"
        )
    return found


def _show(run_dir: Path, verify: bool, console: Console) -> int:
    """Prints a run and its checkpoints; returns how many of them are damaged."""
    console.print(f"{run_dir}: {_describe(run_dir)}", markup=False)
    lines = list(_lines(run_dir, verify))
    if lines:
        table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))
        for name in ("step", "tokens", "multiple", "size"):
            table.add_column(name, justify="right", no_wrap=True)
        for name in ("holds", "verified"):
            table.add_column(name, overflow="fold")
        for cells, _ in lines:
            table.add_row(*cells)
        console.print(table)
    else:
        console.print("  no checkpoint yet")
    remarks: list[str] = []
    rows = read_records(run_dir, remarks.append)
    last = f", the last of step {rows[-1].step:,}" if rows else ""
    console.print(f"  {len(rows):,} rows of records{last}", markup=False)
    for remark in remarks:
        console.print(f"  {remark}", markup=False)
    return sum(damaged for _, damaged in lines)


def _describe(run_dir: Path) -> str:
    """What a run is, in a few words."""
    try:
        about = json.loads((run_dir / run_directory.RUN_FILE).read_text(encoding="utf-8"))
        given = about["config"]
        model, schedule = given["model"], given["schedule"]
        branch = about.get("branch")
        left = f"a branch of {branch['from_run']} at step {branch['step']:,}, " if branch else ""
        return (
            f"{about['name']}, {model['layers']} layers of width {model['width']}, "
            f"{schedule['kind']} at {schedule['peak']:g}, {left}stop {given['stop']}, "
            f"begun by version {about['version']}"
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"its {run_directory.RUN_FILE} is damaged ({error!r})"


def _lines(run_dir: Path, verify: bool) -> Iterator[tuple[tuple[str, ...], bool]]:
    """The cells of every line of a run's table, and whether that line is damage."""
    before = _read_notes(run_dir)
    notes = dict(before)
    for found in checkpoint_directory.list_entries(run_dir):
        if found.kind != "complete":
            yield _odd_line(found)
            continue
        try:
            meta = (
                checkpoint_reader.verify_checkpoint(found.path)
                if verify
                else checkpoint_reader.read_meta(found.path)
            )
        except RunError as error:
            notes.pop(found.path.name, None)
            nothing = (
                f"{found.step:,}",
                "",
                "",
                format_bytes(checkpoint_directory.disk_usage(found.path)),
                "",
            )
            yield (*nothing, f"DAMAGED: {_without_path(error, found)}"), True
            continue
        if verify:
            now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
            notes[found.path.name] = {"when": now, "files": _state_of_files(found.path)}
        yield _line(found, meta, notes.get(found.path.name)), False
    if verify and notes != before:
        with atomic_write(run_dir / NOTE) as part:
            part.write_text(json.dumps(notes, indent=1), encoding="utf-8")


def _line(found: Entry, meta: Meta, note: dict[str, str] | None) -> tuple[str, ...]:
    averages = ", ".join(meta["averages"]) or "no averages"
    if note is None:
        verified = "no"
    elif note.get("files") == _state_of_files(found.path):
        verified = str(note.get("when", "no"))
    else:
        verified = f"no: changed since {note.get('when')}"
    return (
        f"{found.step:,}",
        format_count(meta["tokens"]) if "tokens" in meta else "",
        f"{meta['multiple']:.4g}x" if "multiple" in meta else "",
        format_bytes(checkpoint_directory.disk_usage(found.path)),
        f"params, opt, {averages}",
        verified,
    )


def _odd_line(found: Entry) -> tuple[tuple[str, ...], bool]:
    """A line for what lies among the checkpoints and is none, and whether it is damage."""
    if found.kind == "incomplete":
        what = "DAMAGED: " + ("incomplete" if any(found.path.iterdir()) else "empty")
    else:
        what = {
            "half-written": "half-written: under way, or cut short by a kill",
            "set aside": "set aside as damaged",
            "foreign": "no checkpoint: passed over",
        }[found.kind]
    there = found.path
    count = checkpoint_directory.disk_usage(there)
    step = "" if found.step is None else f"{found.step:,}"
    return (step, "", "", format_bytes(count), there.name, what), found.kind == "incomplete"


def _without_path(error: RunError, found: Entry) -> str:
    return str(error).removeprefix(f"checkpoint {found.path}: ")


def _read_notes(run_dir: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((run_dir / NOTE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}  # never verified, as far as anybody knows


def _state_of_files(path: Path) -> str:
    """A hash of the names, sizes and times of all files under a path."""
    files = sorted(file for file in path.rglob("*") if file.is_file())
    stats = [(str(x.relative_to(path)), x.stat().st_size, x.stat().st_mtime_ns) for x in files]
    return hashlib.sha256(json.dumps(stats).encode("utf-8")).hexdigest()
