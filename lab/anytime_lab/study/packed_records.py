"""Packed records of a study: the finished runs in an archive, and their run directories.

A run is taken from an archive if its directory is still empty, and the packed records reach its
stop with the settings, data and evaluations that it would have here. An archive has no checkpoints,
so a trunk is taken with all of its branches or not at all: a branch that is trained here needs a
checkpoint of the trunk, and all branches must start from the same trunk.
"""

import contextlib
import dataclasses
import errno
import functools
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from anytime_jax.averaging import LIVE
from anytime_jax.checkpoints import checkpoint_listing, metric_records, run_json
from anytime_jax.checkpoints.run_json import RunFile
from anytime_jax.config.settings_reader import flatten
from anytime_jax.data.dataset_info import load_dataset
from anytime_jax.errors import InputError
from anytime_jax.formats import model_reader
from anytime_jax.formatting import format_differences
from anytime_jax.storage.atomic import atomic_write
from anytime_jax.storage.files import is_directory
from anytime_jax.storage.paths import absolute_path, is_address
from anytime_lab.study import study_files
from anytime_lab.study.plan import Study
from anytime_lab.study.tasks import StudyTask, expected_identity, read_task

_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)  # a path is something else


class PackedRecords:
    """Runs of a study in an archive.

    Attributes:
      names: runs that are finished in the archive and have nothing here.
      refusals: reasons why other runs are not taken from the archive, by name.
    """

    def __init__(self, study: Study, archive: Study, path: str | Path):
        """Selects the runs to take.

        Raises an InputError if the archive is damaged, has no run of the study or none that fits,
        or if the data to compare with are missing.
        """
        self._study, self._path = study, path
        self._tasks = {run.name: read_task(study, run) for run in study.runs}
        self._packed = {
            run.name: run.run_dir
            for run in archive.runs
            if not run.note and metric_records.segments(run.run_dir)
        }
        self._fingerprint = functools.cache(_fingerprint)
        self._weights_digest = functools.cache(model_reader.weights_digest)
        self.names: set[str] = set()
        self.refusals: dict[str, str] = {}
        common = [name for name in self._tasks if name in self._packed]
        for name in common:
            self._select(self._tasks[name])
        while dropped := next(self._torn_families(), None):
            name, reason = dropped
            self.names.remove(name)
            self.refusals[name] = reason
        if not common:
            raise InputError(f"--records={path} has no run of study {study.name}: give its archive")
        if len(self.refusals) == len(common):
            raise InputError(f"--records={path}: no run is taken: {self._describe_refusals()[0]}")

    @property
    def lines(self) -> list[str]:
        """Lines for a terminal on what is taken from the archive, and what is not."""
        count = f"{len(self.names)} of {len(self._tasks)} runs of {self._study.name}"
        return [f"packed     {count} are taken from {self._path}"] + [
            f"not taken  {line}" for line in self._describe_refusals()
        ]

    def put_in_place(self) -> None:
        """Writes run files and records of the selected runs, each directory at once.

        A directory in which another process has begun a run meanwhile stays as it is. Raises an
        InputError if a directory cannot be written.
        """
        if self.names:
            study_files.write_plan(self._study)
        for name, task in self._tasks.items():  # trunks before their branches
            if name in self.names:
                try:
                    self._write(task)
                except OSError as error:
                    raise InputError(
                        f"config.run_dir = {str(task.run.run_dir)!r} cannot be written "
                        f"({error.strerror or error}): choose another directory"
                    ) from error

    def _select(self, task: StudyTask) -> None:
        """Selects a run, or records why not; skips a run that is finished here."""
        name, run_dir = task.run.name, task.run.run_dir
        if is_directory(run_dir) and any(run_dir.iterdir()):
            if not task.is_finished:
                self.refusals[name] = (
                    "it was begun here, and is trained on; to take the packed records instead, "
                    "move its directory away"
                )
        elif refusal := self._compare(task):
            self.refusals[name] = refusal
        else:
            self.names.add(name)

    def _compare(self, task: StudyTask) -> str:
        """Says why training the run here would give other records, or ""."""
        config = task.config
        if is_address(task.run.run_dir):
            return "its run_dir is in a bucket, and records are put into local directories alone"
        saved = self._read(task.run.name)
        fingerprint = self._fingerprint(config.data.path)
        if saved.fingerprint != fingerprint:
            return (
                f"it was trained on other data (fingerprint {saved.fingerprint[:12]}) "
                f"than those at {config.data.path} ({fingerprint[:12]}); to take it, give the same "
                "data as config.data.path"
            )
        identity = expected_identity(task, saved.identity, fingerprint)
        if config.initial_weights:
            identity["initial_weights"] = self._weights_digest(Path(config.initial_weights))
        was = {**saved.identity, "eval.tokens": flatten(saved.config).get("eval.tokens")}
        now = json.loads(json.dumps({**identity, "eval.tokens": config.eval.tokens}))
        if differences := format_differences(was, now):
            return f"it has other settings ({differences}); to take it, set them back"
        return self._find_missing(task)

    def _find_missing(self, task: StudyTask) -> str:
        """Says which evaluation at the stop is missing in the packed records of a run, or ""."""
        rows = metric_records.read_records(self._packed[task.run.name])
        values = next((row.values for row in rows if row.step == task.stop_step), {})
        labels = [LIVE, *task.config.averaging_rules]
        missing = [label for label in labels if f"eval/{label}/loss" not in values]
        if len(missing) < len(labels):
            return f"it was evaluated without {', '.join(missing)}" if missing else ""
        multiple = task.config.clock.multiple
        at = multiple(rows[-1].step) if rows else 0
        return f"it is unfinished there, at {at:.3g}x of {multiple(task.stop_step):.3g}x"

    def _torn_families(self) -> Iterator[tuple[str, str]]:
        """Yields selected runs that would be separated from their trunk or one of their branches.

        Each comes with the reason not to take it.
        """
        for name, task in self._tasks.items():
            trunk = task.run.trunk
            if trunk is None:
                continue
            if name in self.names and trunk not in self.names and not self._has_trunk(task):
                yield name, f"its trunk {trunk} is trained here, and so are all of its branches"
            if trunk in self.names and name not in self.names and task.state == "missing":
                yield trunk, f"its branch {name} needs a checkpoint, which no archive has"

    def _has_trunk(self, task: StudyTask) -> bool:
        """Returns whether a packed branch has its trunk: a checkpoint here, or packed records."""
        trunk = self._tasks[task.run.trunk or ""]
        if task.start_step in checkpoint_listing.saved_steps(trunk.run.run_dir):
            return True  # `_compare` has checked the branch's digest of it
        here = _read_segments(trunk.run.run_dir)
        packed = self._packed.get(trunk.run.name)
        return packed is not None and here == _read_segments(packed)

    def _read(self, name: str) -> RunFile:
        """The run file of a packed run."""
        advice = "pack the records again"
        if run_file := run_json.read_run_file(self._packed[name], advice):
            return run_file
        raise InputError(
            f"{name}/{run_json.RUN_FILE} is missing: {advice}", f"--records={self._path}"
        )

    def _write(self, task: StudyTask) -> None:
        """Writes a run directory under another name, and renames it."""
        run_dir, run_file = absolute_path(task.run.run_dir), self._read(task.run.name)
        if branch := run_file.branch:
            from_run = str(absolute_path(task.config.branch.from_run))
            branch = dataclasses.replace(branch, from_run=from_run)
            run_file = dataclasses.replace(run_file, branch=branch)
        run_dir.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".records-", dir=run_dir.parent) as scratch:
            new = Path(scratch, "run")
            run_json.write_run_file(new, run_file)
            (new / metric_records.DIRECTORY).mkdir()
            for segment, content in _read_segments(self._packed[task.run.name]).items():
                with atomic_write(new / metric_records.DIRECTORY / segment) as part:
                    part.write_bytes(content)
            try:
                os.rename(new, run_dir)  # fails unless the target is missing or empty
            except OSError as error:
                if error.errno not in _TAKEN:
                    raise

    def _describe_refusals(self) -> list[str]:
        """A line for each reason, with the runs that it concerns."""
        by_reason: dict[str, list[str]] = {}
        for name, reason in self.refusals.items():
            by_reason.setdefault(reason, []).append(name)
        return [
            ", ".join(names[:3])
            + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            + f": {reason}"
            for reason, names in by_reason.items()
        ]


@contextlib.contextmanager
def open_records(study: Study, path: str | Path) -> Iterator[PackedRecords]:
    """Yields the runs of a study in an archive, or in the archive of a directory.

    Raises an InputError if the archive is missing or damaged, or `PackedRecords` raises one.
    """
    with study_files.open_archive(path) as archive:
        yield PackedRecords(study, archive, path)


def _fingerprint(path: str) -> str:
    hint = (
        "prepare it first (docs/data.md), or start a run, which prepares a built-in corpus: "
        "packed records are of its text if fingerprints agree"
    )
    return load_dataset(path, hint).fingerprint


def _read_segments(run_dir: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in metric_records.segments(run_dir)}
