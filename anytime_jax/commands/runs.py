"""List runs and their checkpoints, and verify them.

The run may be training. Nothing in its directory is changed, except for `verified.json`, a note of
the verified checkpoints. The exit status is 1 if a checkpoint is damaged.
"""

import argparse
import datetime
import hashlib
import json
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from anytime_jax.atomic import atomic_write
from anytime_jax.checkpoints import checkpoint_listing, checkpoint_reader, run_directory
from anytime_jax.checkpoints.metric_records import read_records
from anytime_jax.commands.console import open_console
from anytime_jax.errors import InputError, RunError
from anytime_jax.formatting import format_bytes, format_count
from anytime_jax.json_files import load_json

EXAMPLES = ("", "--run=runs/quickstart --verify")

# File in the run directory: for each verified checkpoint, the time and a hash of file metadata.
NOTE = "verified.json"
_KINDS = {
    "half-written": "half-written: a save in progress, or cut short by a kill",
    "set aside": "set aside as damaged",
    "foreign": "not a checkpoint: ignored",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    add = parser.add_argument
    add(
        "--run",
        nargs="+",
        type=Path,
        default=[Path("runs")],
        metavar="DIR",
        help="run directories, or directories above them (default: runs)",
    )
    add("--verify", action="store_true", help="compare the checksum of every saved array")


def run(arguments: argparse.Namespace) -> int:
    """Prints all runs; returns 1 if a checkpoint is damaged."""
    console = open_console()
    runs = [run for folder in arguments.run for run in _find_runs(folder)]
    damaged = [_show(run, arguments.verify, console) for run in runs]
    return 1 if any(damaged) else 0


def _find_runs(folder: Path) -> list[Path]:
    """Lists the run directories in a folder, including the folder itself."""
    runs = sorted(file.parent for file in folder.rglob(run_directory.RUN_FILE))
    if not runs:
        problem = f"has no {run_directory.RUN_FILE} in it" if folder.is_dir() else "is no directory"
        raise InputError(f"--run={folder} {problem}: choose a run, or a directory above runs")
    return runs


def _show(run_dir: Path, verify: bool, console: Console) -> bool:
    """Prints a run and its checkpoints; returns whether one of them is damaged."""
    console.print(f"{run_dir}: {_describe(run_dir)}")
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))
    for name in ("step", "tokens", "multiple", "size"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("content", "verified"):
        table.add_column(name, overflow="fold")
    damaged = _add_checkpoints(table, run_dir, verify)
    console.print(table if table.rows else "  no checkpoint yet")
    warnings: list[str] = []
    records = read_records(run_dir, warnings.append)
    last = f", the last of step {records[-1].step:,}" if records else ""
    for line in (f"{len(records):,} rows of records{last}", *warnings):
        console.print(f"  {line}")
    return damaged


def _describe(run_dir: Path) -> str:
    try:
        about = load_json(run_dir / run_directory.RUN_FILE)
        config, branch = about["config"], about.get("branch")
        model, schedule = config["model"], config["schedule"]
        origin = f"branch of {branch['from_run']} at step {branch['step']:,}, " if branch else ""
        return (
            f"{about['name']}, {model['layers']} layers of width {model['width']}, "
            f"{schedule['kind']} at {schedule['peak']:g}, {origin}stop {config['stop']}, "
            f"started by version {about['version']}"
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"its {run_directory.RUN_FILE} is damaged ({error!r})"


def _add_checkpoints(table: Table, run_dir: Path, verify: bool) -> bool:
    """Adds a row for each checkpoint of a run; returns whether one of them is damaged."""
    saved_notes = _read_notes(run_dir)
    notes, damaged = dict(saved_notes), False
    for entry in checkpoint_listing.list_entries(run_dir):
        name, step = entry.path.name, "" if entry.step is None else f"{entry.step:,}"
        size = format_bytes(checkpoint_listing.disk_usage(entry.path))
        if entry.kind in _KINDS:
            table.add_row(step, "", "", size, name, _KINDS[entry.kind])
            continue
        try:
            if verify or entry.kind == "incomplete":
                meta = checkpoint_reader.verify_checkpoint(entry.path)
            else:
                meta = checkpoint_reader.read_meta(entry.path)
        except RunError as error:
            notes.pop(name, None)
            reason = str(error).removeprefix(f"checkpoint {entry.path}").removeprefix(": ")
            table.add_row(step, "", "", size, "", f"DAMAGED: {reason.strip()}")
            damaged = True
            continue
        if verify:
            now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
            notes[name] = {"when": now, "files": _hash_of_files(entry.path)}
        table.add_row(
            step,
            format_count(meta["tokens"]),
            f"{meta['multiple']:.4g}x",
            size,
            f"params, opt, {', '.join(meta['averages']) or 'no averages'}",
            _verified(entry.path, notes.get(name)),
        )
    if verify and notes != saved_notes:
        with atomic_write(run_dir / NOTE) as part:
            part.write_text(json.dumps(notes, indent=1), encoding="utf-8")
    return damaged


def _verified(path: Path, note: dict[str, str] | None) -> str:
    if note is None:
        return "no"
    if note.get("files") == _hash_of_files(path):
        return str(note.get("when", "no"))
    return f"no: changed since {note.get('when')}"


def _read_notes(run_dir: Path) -> dict[str, Any]:
    try:
        return dict(load_json(run_dir / NOTE))
    except (OSError, ValueError, TypeError):
        return {}  # a damaged note counts as missing


def _hash_of_files(path: Path) -> str:
    """Hashes the names, sizes and times of all files below a path."""
    files = sorted(file for file in path.rglob("*") if file.is_file())
    stats = [(str(x.relative_to(path)), x.stat().st_size, x.stat().st_mtime_ns) for x in files]
    return hashlib.sha256(json.dumps(stats).encode("utf-8")).hexdigest()
