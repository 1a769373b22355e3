"""List runs and their checkpoints, and verify them.

With `--describe`, prints what a report of a problem needs too. The run may be training. Nothing in
its directory is changed, except for `verified.json`, a note of the verified checkpoints. The exit
status is 1 if a checkpoint is damaged.
"""

import argparse
import dataclasses
import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from anytime_jax import __version__
from anytime_jax.averaging import LIVE, label_order
from anytime_jax.checkpoints import checkpoint_listing, checkpoint_reader, run_json
from anytime_jax.checkpoints.metric_records import (
    TASKS,
    Row,
    count_before,
    describe_missing,
    read_records,
    read_starts,
)
from anytime_jax.checkpoints.run_json import RunFile
from anytime_jax.commands import argument_parser, loss_table
from anytime_jax.commands.rich_console import open_console
from anytime_jax.config import settings_reader
from anytime_jax.config.run_settings import Settings
from anytime_jax.errors import InputError
from anytime_jax.formatting import format_bytes, format_count, format_time
from anytime_jax.storage.atomic import atomic_write
from anytime_jax.storage.files import file_versions, find_named, list_files
from anytime_jax.storage.json_files import json_digest, load_json
from anytime_jax.tables import Column, Table, numbers

EXAMPLES = (
    "",
    "--run=runs/quickstart --verify",
    "--run=runs/quickstart --describe",
)

# File in the run directory: for each verified checkpoint, the time and a hash of file metadata.
NOTE = "verified.json"
_REMOVAL_SECONDS = 0.5  # seconds within which a removal in progress deletes a file
_RUNS = Path("runs")
# What a description has of this machine: packages that compute or store, and what steers them.
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "tensorstore", "grain", "numpy")
_VARIABLES = ("JAX_", "XLA_", "LIBTPU_", "NCCL_", "CUDA_VISIBLE_DEVICES")
_LAST = 5  # starts and rows of the records that it has
_STATES = {
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
        action="extend",
        type=argument_parser.path,
        metavar="DIR",
        help="run directories, or directories above them (default: runs)",
    )
    add("--verify", action="store_true", help="compare the checksum of every saved array")
    add(
        "--describe",
        action="store_true",
        help="also print versions, devices, changed settings and the last records, for a report "
        "of a problem",
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints all runs; returns 1 if a checkpoint is damaged."""
    console = open_console()
    runs = [run for folder in arguments.run or [_RUNS] for run in _find_runs(folder)]
    if arguments.describe:
        for line in _describe_machine():
            console.print(line)
    damaged = []
    for run in runs:
        try:
            run_file = run_json.read_run_file(run, "restore it, or choose another run")
        except InputError as error:
            run_file = None
            console.print(f"{run}: {error}")
        damaged.append(_show(run, run_file, arguments.verify, console))
        for line in _describe_history(run, run_file) if arguments.describe else ():
            console.print(f"  {line}")
    return 1 if any(damaged) else 0


def _find_runs(folder: Path) -> list[Path]:
    """Lists the run directories in a folder, including the folder itself."""
    try:
        runs = [file.parent for file in find_named(folder, run_json.RUN_FILE)]
    except FileNotFoundError:  # a bucket cannot be reached
        runs = []
    if not runs:
        if folder == _RUNS and not folder.exists():
            raise InputError("there is no directory runs here: choose a run with --run=DIR")
        problem = f"has no {run_json.RUN_FILE} in it" if folder.is_dir() else "is no directory"
        raise InputError(f"--run={folder} {problem}: choose a run, or a directory above runs")
    return runs


def _show(run_dir: Path, run_file: RunFile | None, verify: bool, console: Console) -> bool:
    """Prints a run and its checkpoints; returns whether one of them is damaged."""
    if run_file:
        console.print(f"{run_dir}: {_describe(run_file)}")
        for line in _describe_stages(run_file):
            console.print(f"  {line}")
    notes = _read_notes(run_dir)
    entries = checkpoint_listing.list_entries(run_dir)
    listed = [_inspect(x, run_file, verify, notes.get(x.path.name)) for x in entries]
    warnings: list[str] = []
    # Read after the checkpoints: records are written before them.
    rows = read_records(run_dir, warnings.append)
    console.print(_table(listed, rows) if listed else "  no checkpoint yet")
    metas = [x.meta for x in listed if x.meta is not None]
    for meta in metas[-1:]:
        if missing := describe_missing(count_before(rows, meta.step), meta.rows, meta.step):
            warnings.append(f"warning: {missing}")
    for line in (*_describe_losses(rows), *warnings):
        console.print(f"  {line}")
    if verify:
        verified = {x.entry.path.name: x.note for x in listed if x.note is not None}
        if verified != notes and (problem := _write_notes(run_dir, verified)):
            console.print(f"  {problem}")
    return any(x.is_damaged for x in listed)


def _describe(run_file: RunFile) -> str:
    settings, branch = settings_reader.flatten(run_file.config), run_file.branch
    origin = f"branch of {branch.from_run} at step {branch.step:,}, " if branch else ""
    layers, width = settings.get("model.layers"), settings.get("model.width")
    kind, peak = settings.get("schedule.kind"), settings.get("schedule.peak")
    return (
        f"{run_file.name}, {layers} layers of width {width}, {kind} at {peak}, {origin}"
        f"started by version {run_file.version}"
    )


def _describe_stages(run_file: RunFile) -> Iterator[str]:
    """The stages of a run that has several, and when those to come were changed."""
    stages, changes = run_file.stages, run_file.stage_changes
    for stage in stages if len(stages) > 1 or changes else ():
        yield (
            f"stage from step {stage.step:,}: windows of {stage.length:,} tokens, {stage.mixture}"
        )
    for change in changes:
        was = "; ".join(f"from step {x.step:,}: {x.mixture}" for x in change.was)
        yield f"stages changed at step {change.step:,}; they were {was}"


def _describe_machine() -> Iterator[str]:
    """Versions of this machine, and the environment variables that steer JAX.

    The devices are those that a run has recorded: asking JAX would take memory of a device on which
    a run may be training.
    """
    yield f"anytime_jax {__version__}, Python {platform.python_version()}, {platform.platform()}"
    yield ", ".join(f"{x} {importlib.metadata.version(x)}" for x in _PACKAGES)
    yield from (f"{x}={y}" for x, y in sorted(os.environ.items()) if x.startswith(_VARIABLES))


def _describe_history(run_dir: Path, run_file: RunFile | None) -> Iterator[str]:
    """The last starts of a run, the settings that are not the default, and the last records."""
    for start in read_starts(run_dir)[-_LAST:]:
        facts = (f"{x} {start[x]}" for x in ("started", "devices", "version", "jax") if x in start)
        yield f"start at step {start['from_step']:,}: {', '.join(facts)}"
    settings = run_file.config if run_file else {}
    try:
        changes, title = _changed_settings(settings), "settings that are not the default:"
    except (ValueError, KeyError, TypeError) as error:
        changes, title = settings_reader.flatten(settings), f"all settings ({error}):"
    yield from [title] if changes else []
    yield from (f"  {name} = {value!r}" for name, value in changes.items())
    yield f"the last rows of its records, of {_LAST} at most:"
    for row in read_records(run_dir)[-_LAST:]:
        values = ", ".join(f"{name} {value:.6g}" for name, value in row.values.items())
        yield f"  step {row.step:,}: {values}"


def _changed_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a run that differ from the default of their kind, by name.

    A class that they name is not imported: only classes of this package are.
    """
    kinds = {group: {"kind": settings[group]["kind"]} for group in ("model", "optimizer")}
    required = {"name": settings["name"], "schedule": settings["schedule"]}
    given, default = (
        settings_reader.flatten(settings_reader.to_dict(settings_reader.read(Settings, x)))
        for x in (settings, {**required, **kinds})
    )
    always = ("name", "schedule.", "model.kind", "optimizer.kind")
    return {x: y for x, y in given.items() if default.get(x) != y or x.startswith(always)}


@dataclasses.dataclass(frozen=True)
class _Listed:
    """An entry of the checkpoint directory as it is listed.

    `meta` is None unless it is a readable checkpoint; `note` is from its last verification.
    """

    entry: checkpoint_listing.Entry
    size: str
    state: str
    is_damaged: bool = False
    meta: checkpoint_reader.Meta | None = None
    note: Mapping[str, str] | None = None


def _inspect(
    entry: checkpoint_listing.Entry,
    run_file: RunFile | None,
    verify: bool,
    note: Mapping[str, str] | None,
) -> _Listed:
    """Reads the metadata of a checkpoint, or compares its checksums."""
    size = format_bytes(checkpoint_listing.disk_usage(entry.path))
    if entry.state in _STATES:
        return _Listed(entry, size, _STATES[entry.state])
    try:
        if verify or entry.state == "incomplete":
            meta = checkpoint_reader.verify_checkpoint(entry.path, run_file)
        else:
            meta = checkpoint_reader.read_meta(entry.path, run_file)
        files = _hash_of_files(entry.path)
    except (checkpoint_reader.CheckpointError, OSError) as error:
        if _is_being_removed(entry.path):
            return _Listed(entry, "", "removed meanwhile by the run")
        reason = (
            error.reason if isinstance(error, checkpoint_reader.CheckpointError) else str(error)
        )
        return _Listed(entry, size, f"DAMAGED: {reason}", is_damaged=True)
    if verify:
        note = {"when": format_time(time.time()), "files": files}
    state = "no"
    if note is not None:
        is_same = note.get("files") == files
        state = str(note.get("when", "no")) if is_same else f"no: changed since {note.get('when')}"
    return _Listed(entry, size, state, meta=meta, note=note)


def _is_being_removed(path: Path) -> bool:
    """Returns whether a run in training has removed, or is removing, a checkpoint."""
    before = None
    while path.exists():
        files = len(list_files(path))
        if files == before:
            return False
        before = files
        time.sleep(_REMOVAL_SECONDS)
    return True


def _table(listed: Sequence[_Listed], rows: Sequence[Row]) -> Table:
    losses = {
        row.step: {loss_table.name_at(row, label): loss for label, loss in losses.items()}
        for row, losses in loss_table.evaluated_rows(rows)
    }
    has_losses = any(x.entry.step in losses for x in listed)
    columns = [*numbers("step", format=","), *numbers("tokens", "multiple", "size")]
    columns += [Column("validation loss")] if has_losses else []
    table = Table("", [*columns, *(Column(x, wrap="fold") for x in ("averages", "verified"))])
    for x in listed:
        cells, content = ["", ""], "" if x.is_damaged else x.entry.path.name
        if x.meta is not None:
            cells = [format_count(x.meta.tokens), f"{x.meta.multiple:.4g}x"]
            content = ", ".join(sorted(x.meta.averages, key=label_order)) or "none"
        loss = []
        if has_losses:
            at_step = losses.get(x.entry.step or 0, {}) if x.meta is not None else {}
            best = min(at_step, key=lambda label: at_step[label], default="")
            loss = [f"{at_step[best]:.4f} {best}" if best else ""]
        table.add_row(x.entry.step, *cells, x.size, *loss, content, x.state)
    return table


def _describe_losses(rows: Sequence[Row]) -> list[str]:
    """The latest training loss, validation loss of the live weights and of the best read-out.

    Then the latest scores in tasks, if there are any.
    """
    lines = []
    trained = [row for row in rows if "train/loss" in row.values]
    if trained:
        row = trained[-1]
        lines.append(f"training loss {row.values['train/loss']:.4f} at step {row.step:,}")
    if evaluated := loss_table.evaluated_rows(rows):
        row, losses = evaluated[-1]
        others = {label: loss for label, loss in losses.items() if label != LIVE}
        parts = [f"{losses[LIVE]:.4f} {LIVE}"] if LIVE in losses else []
        if others:
            best = min(others, key=lambda label: others[label])
            name = loss_table.name_at(row, best)
            parts.append(f"{others[best]:.4f} {name} (the best read-out)")
        lines.append(f"validation loss {', '.join(parts)} at step {row.step:,}")
    scored = [row for row in rows if any(name.startswith(TASKS) for name in row.values)]
    for row in scored[-1:]:
        scores = {x.removeprefix(TASKS): y for x, y in row.values.items() if x.startswith(TASKS)}
        parts = ", ".join(f"{score:.4g} {name}" for name, score in scores.items())
        lines.append(f"scores {parts} at step {row.step:,}")
    last = f", the last of step {rows[-1].step:,}" if rows else ""
    return [*lines, f"{len(rows):,} rows of records{last}"]


def _read_notes(run_dir: Path) -> dict[str, Any]:
    try:
        return dict(load_json(run_dir / NOTE))
    except (OSError, ValueError, TypeError):
        return {}  # a damaged file of notes counts as missing


def _write_notes(run_dir: Path, notes: Mapping[str, Any]) -> str:
    """Writes the notes; returns a warning if they cannot be written."""
    try:
        with atomic_write(run_dir / NOTE) as part:
            part.write_text(json.dumps(notes, indent=1), encoding="utf-8")
    except OSError as error:
        return f"warning: {run_dir / NOTE} cannot be written ({error.strerror}): nothing is noted"
    return ""


def _hash_of_files(path: Path) -> str:
    """Hashes the names, sizes and times of all files below a path."""
    return json_digest(file_versions(path))
