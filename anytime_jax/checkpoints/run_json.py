"""Run directory: identity settings, ownership, start and lock."""

import contextlib
import datetime
import itertools
import json
import math
import os
import re
import socket
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from anytime_jax.errors import InputError, RunError
from anytime_jax.formatting import format_differences
from anytime_jax.storage import locks
from anytime_jax.storage.atomic import atomic_write
from anytime_jax.storage.failures import check_no_file, read_failure, storage_errors
from anytime_jax.storage.files import is_directory
from anytime_jax.storage.json_files import load_json

RUN_FILE = "run.json"
LOCK_FILE = "lock"
# Files that a killed start may leave in a directory without a run.
_BEFORE_RUN_FILE = re.compile(f"{re.escape(LOCK_FILE)}|{re.escape(RUN_FILE)}[.][0-9]+[.]tmp")
# Orbax takes them for patterns, TensorStore turns the slash.
_MISREAD = ("[", "\\", "**")
_ADVICE = "choose another run_dir"


def read_identity(run_dir: Path, advice: str = _ADVICE) -> dict[str, Any] | None:
    """Returns the identity settings of a run, or None; raises the errors of `read_run_file`."""
    content = read_run_file(run_dir, advice)
    return None if content is None else content["identity"]


def read_run_file(run_dir: Path, advice: str = _ADVICE) -> dict[str, Any] | None:
    """Returns the content of `run.json`, or None if the run has not started.

    Raises an InputError if the file cannot be read, or if it is damaged, with `advice` at the end;
    raises a BucketError if its bucket is out of reach.
    """
    file = run_dir / RUN_FILE
    try:
        content = load_json(file)
        is_same_evaluation(evaluation_history(content))  # which looks at each part of them
        evaluation_at(content, math.inf)
        content.get("start", {}).get("id")
        return {**content, "identity": dict(content["identity"])}
    except FileNotFoundError:
        return None
    except storage_errors() as error:
        raise read_failure(file, error) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{file} is damaged ({error!r}): {advice}") from error


def run_id(run_dir: Path) -> str | None:
    """Returns what no other run is called, whatever its name; None if `run.json` has no id.

    A directory keeps it when it is moved.
    """
    return (read_run_file(run_dir) or {}).get("id")


def check_name(run_dir: Path, name: str) -> None:
    """Raises an InputError that begins with `name` if a full path has a part that is misread."""
    if bad := next((x for x in _MISREAD if x in str(run_dir)), None):
        raise InputError(
            f"{name} has {bad!r} in its path {run_dir}, which Orbax and TensorStore misread: "
            "choose another, or rename it"
        )


def is_other_run(run_dir: Path, id: str | None) -> bool:
    """Returns whether a directory holds a run that is known not to be the one with an id."""
    with contextlib.suppress(InputError):
        return None not in (found := run_id(run_dir), id) and found != id
    return False


def check_identity(run_dir: Path, identity: Mapping[str, Any]) -> None:
    """Checks that a directory is new or belongs to the run, without changing it.

    Raises an InputError if it belongs to a run with other identity settings (`Config.identity`),
    which the message names, or contains other files.
    """
    existing = read_identity(run_dir)
    if existing is not None:
        if differences := format_differences(existing, json.loads(json.dumps(identity))):
            raise InputError(
                f"config.run_dir = {str(run_dir)!r} belongs to a run with other settings "
                f"({differences}): set them back, or choose another run_dir"
            )
    elif is_directory(run_dir) and not all(
        _BEFORE_RUN_FILE.fullmatch(path.name) for path in run_dir.iterdir()
    ):
        raise InputError(
            f"config.run_dir = {str(run_dir)!r} holds files but no {RUN_FILE}: choose an empty or "
            "a new directory"
        )


def initialize(run_dir: Path, identity: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Creates the `run.json` of a new run, with `about` and an id.

    Raises an InputError if the directory cannot be written.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        _write(run_dir, {"id": uuid.uuid4().hex, "identity": identity, **about})
    except OSError as error:
        raise InputError(
            f"config.run_dir = {str(run_dir)!r} cannot be written ({error.strerror or error}): "
            "choose another directory"
        ) from error


def new_start() -> dict[str, Any]:
    """Returns the entry "start" of a run file: an id, and where and when for people."""
    return {
        "id": uuid.uuid4().hex,
        "host": socket.gethostname(),
        "process": os.getpid(),
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def start_id(run_dir: Path) -> str | None:
    """Returns the id of the last start of a run; raises the errors of `read_run_file`."""
    return (read_run_file(run_dir) or {}).get("start", {}).get("id")


class LostRunError(RunError):
    """Another start has taken over the run, or its directory was removed."""


def confirm(run_dir: Path, start: str) -> None:
    """Raises a LostRunError if a run has a later start than the one with an id, or is gone.

    Raises a RunError if `run.json` cannot be read.
    """
    try:
        content = read_run_file(run_dir)
    except InputError as error:
        raise RunError(str(error)) from error
    if content is None:
        raise LostRunError(
            f"{run_dir / RUN_FILE} is gone: the directory was removed while the run trained"
        )
    if (last := content.get("start", {})).get("id") != start:
        raise LostRunError(
            f"another start has taken over {run_dir}: process {last.get('process')} on "
            f"{last.get('host')}, at {last.get('time')}"
        )


@contextlib.contextmanager
def explain_lost_run(run_dir: Path, start: str) -> Iterator[None]:
    """Turns an error of the block into a LostRunError if the run was lost, the likely cause.

    A later start, for example, removes saves that are not complete, also those in progress.
    """
    try:
        yield
    except Exception as error:
        try:
            confirm(run_dir, start)
        except LostRunError as cause:
            raise cause from error
        except RunError:
            pass  # the error itself says more
        raise


def _write(run_dir: Path, content: Mapping[str, Any]) -> None:
    with atomic_write(run_dir / RUN_FILE) as file:
        file.write_text(json.dumps(content, indent=1), encoding="utf-8")


def check_stages(run_dir: Path, stages: Sequence[Mapping[str, Any]], step: int) -> None:
    """Raises an InputError if the stages of a run of `step` updates have changed in its past."""
    was = (read_run_file(run_dir) or {}).get("stages", stages)
    past = stages_before(was, max(step, 1)), stages_before(stages, max(step, 1))
    for number, (old, new) in enumerate(itertools.zip_longest(*past, fillvalue={})):
        if old != new:
            at = new.get("step", old.get("step"))
            old, new = (dict(x[number]) if number < len(x) else {} for x in (was, stages))
            # The names of the sources say more than their fingerprints, if they differ.
            hidden = "mixture" if old.get("mixture") == new.get("mixture") else "sources"
            old.pop(hidden, None)
            new.pop(hidden, None)
            raise InputError(
                f"config.data.mixture or config.model: the stage from step {at:,} has changed "
                f"({format_differences(old, new)}), and the run has made {step:,} updates: "
                "change stages that are still to come, or set this one back"
            )


def record_settings(
    run_dir: Path, content: Mapping[str, Any], about: Mapping[str, Any], step: int
) -> bool:
    """Writes the settings, paths and start of a run that resumes at `step` into `run.json`.

    `content` is what is there. Returns whether stages to come have changed. The entry
    "stage_changes" keeps what the stages were, "evaluation_changes" what is evaluated since, each
    with the step of the change.
    """
    names = ("config", "microbatches", "data_paths", "set_paths", "start")
    new = {**content, **{name: about[name] for name in names}}
    if is_changed := stages_before(content["stages"]) != stages_before(about["stages"]):
        changes = [*content.get("stage_changes", []), {"step": step, "was": content["stages"]}]
        new |= {"stages": about["stages"], "stage_changes": changes}
    if not is_same_evaluation([*evaluation_history(content), about["evaluated"]][-2:]):
        changes = content.get("evaluation_changes", [])
        new["evaluation_changes"] = [*changes, {"step": step, "now": about["evaluated"]}]
    _write(run_dir, new)
    return is_changed


def evaluation_history(run_file: Mapping[str, Any] | None) -> list[Any]:
    """Returns what a run has evaluated, from its first start to its last, as far as is known."""
    run_file = run_file or {}
    changes = run_file.get("evaluation_changes", [])
    return [x for x in (run_file.get("evaluated"), *(x["now"] for x in changes)) if x]


def evaluation_at(run_file: Mapping[str, Any], step: float) -> Any:
    """Returns the entry that an evaluation after `step` updates used, or None."""
    entry = run_file.get("evaluated")
    for change in run_file.get("evaluation_changes", []):
        if change["step"] < step:
            entry = change["now"]
    return entry


def stages_before(
    stages: Sequence[Mapping[str, Any]], step: float = math.inf
) -> list[dict[str, Any]]:
    """Returns what makes each stage that begins before a step: not the names of its sources."""
    return [
        {name: value for name, value in stage.items() if name != "mixture"}
        for stage in stages
        if stage["step"] < step
    ]


def is_same_evaluation(evaluations: Sequence[Mapping[str, Any]]) -> bool:
    """Whether entries "evaluated" of run files are of the same sets, under whatever names."""
    parts = [(x["tokens"], evaluated_text(x)) for x in evaluations]
    return all(x == parts[0] for x in parts)


def evaluated_text(evaluation: Mapping[str, Any]) -> list[list[Any]]:
    """Returns fingerprint and weight of each set of an entry "evaluated", without their names."""
    return sorted(map(list, evaluation["sets"].values()))


def lock(run_dir: Path) -> contextlib.AbstractContextManager[None]:
    """Locks a run directory on a disk until the block or the process ends, as `locks.hold` does."""
    return locks.hold(run_dir / LOCK_FILE, f"config.run_dir = {str(run_dir)!r}")


def check_files(run_dir: Path, directories: Sequence[str]) -> None:
    """Raises an InputError if something else is where a run has its lock or a directory."""
    name = f"config.run_dir = {str(run_dir)!r}"
    locks.check(run_dir / LOCK_FILE, name)
    for path in (run_dir / x for x in directories):
        check_no_file(path, f"{name}: {path}", "remove it, or choose another run_dir")


def is_locked(run_dir: Path) -> bool | None:
    """Returns whether any process has locked a run directory, which need not be writable.

    In a bucket, where nothing is locked, the answer is None.
    """
    return locks.is_held(run_dir / LOCK_FILE)
