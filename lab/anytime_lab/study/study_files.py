"""Studies on disk: study files, the plan in a study's directory, packed records.

A study is loaded from one of three places: a Python file with a `get_study()`, the directory in
which it was trained (`study.json` and the run directories), or an archive of the plan and the
records (`records.tar.xz`), from which a report can be made anywhere, without checkpoints.
"""

import contextlib
import dataclasses
import io
import json
import lzma
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from anytime_jax.checkpoints import metric_records, run_json
from anytime_jax.checkpoints.run_json import Start
from anytime_jax.config import python_files
from anytime_jax.config.kinds import NOBODY, Trust
from anytime_jax.errors import InputError
from anytime_jax.storage.atomic import atomic_write
from anytime_jax.storage.json_files import load_json
from anytime_lab.plugin import STUDIES
from anytime_lab.study.plan import Study, StudyRun

PLAN = "study.json"
ARCHIVE = "records.tar.xz"
FORMAT_VERSION = 3


def load_file(path: str | Path, option: str = "study") -> Study:
    """Executes a study file, given by path or name, and returns its study.

    Raises an InputError that names the `option` if it is missing or raises, or lacks `get_study()`
    or `get_config(name)`.
    """
    label = f"--{option}={path}"
    if Path(path).is_dir() and not python_files.is_name(str(path), STUDIES):
        raise InputError(f"{label} is a directory: training needs the study's Python file")
    file = python_files.find(option, str(path), STUDIES)
    with python_files.execute(label, file) as content:
        study = content.get("get_study", dict)()
    if not isinstance(study, Study):
        raise InputError(f"{label} has no get_study() that returns a study.plan.Study")
    if not callable(content.get("get_config")):
        raise InputError(
            f"{label} has no get_config(name), which training uses: add one that returns "
            "get_study().run(name).config"
        )
    return study


@contextlib.contextmanager
def open_study(path: str | Path, option: str = "study", trust: Trust = NOBODY) -> Iterator[Study]:
    """Yields the study of a Python file, a directory or an archive; an archive is unpacked.

    `trust` says which packages are imported for the kinds that a directory or an archive names.

    Raises an InputError that names the `option` if `path` is none of these, or is damaged.
    """
    path = Path(path)
    archive = path / ARCHIVE if path.is_dir() else path
    if path.is_dir() and (path / PLAN).is_file():
        yield _read_plan(path, trust)
    elif _is_archive(archive):
        with _unpack(archive, trust) as study:
            yield study
    elif path.is_dir() and not python_files.is_name(str(path), STUDIES):
        raise InputError(
            f"--{option}={path} is not a study (no {PLAN} or {ARCHIVE} in it): give a study's "
            "file or name, or the directory of a study that was trained"
        )
    else:
        yield load_file(path, option)


@contextlib.contextmanager
def open_archive(path: str | Path) -> Iterator[Study]:
    """Yields the study of an archive, unpacked, or of the one in a directory.

    Raises an InputError if the archive is missing or damaged.
    """
    archive = Path(path) / ARCHIVE if Path(path).is_dir() else Path(path)
    if not _is_archive(archive):
        raise InputError(
            f"--records={path} is neither a {ARCHIVE} nor a directory with one: "
            "anytime sweep --study=... --pack=DIR writes it"
        )
    with _unpack(archive, NOBODY) as study:
        yield study


def _is_archive(path: Path) -> bool:
    return path.is_file() and path.name.endswith(".tar.xz")


@contextlib.contextmanager
def _unpack(archive: Path, trust: Trust) -> Iterator[Study]:
    with tempfile.TemporaryDirectory() as directory:
        try:
            with tarfile.open(archive, "r:xz") as tar:
                tar.extractall(directory, filter="data")
        except (OSError, EOFError, lzma.LZMAError, tarfile.TarError) as error:
            raise InputError(f"{archive} is damaged ({error!r}): pack it again") from error
        yield dataclasses.replace(_read_plan(Path(directory), trust), root=str(archive.parent))


def write_plan(study: Study) -> None:
    """Writes `study.json`, from which a report can be made without the study file."""
    Path(study.root).mkdir(parents=True, exist_ok=True)
    with atomic_write(Path(study.root) / PLAN) as part:
        part.write_text(_plan_json(study), encoding="utf-8")


def pack(study: Study, path: Path) -> Path:
    """Writes the plan and the records of all runs into one archive.

    The same records give the same bytes; paths of this machine are left out.
    """
    with atomic_write(path) as part, tarfile.open(part, "w:xz", preset=9) as tar:
        _add(tar, PLAN, _plan_json(study).encode("utf-8"))
        for run in study.runs:
            segments = metric_records.segments(run.run_dir)
            run_file = run_json.read_run_file(run.run_dir)
            if not segments or run_file is None:
                continue
            branch = run_file.branch
            if branch:
                branch = dataclasses.replace(branch, from_run=Path(branch.from_run).name)
            packed = dataclasses.replace(
                run_file, data_paths={}, set_paths={}, start=Start(), branch=branch
            )
            content = json.dumps(dataclasses.asdict(packed)).encode("utf-8")
            _add(tar, f"{run.name}/{run_json.RUN_FILE}", content)
            for segment in segments:
                name = f"{run.name}/{metric_records.DIRECTORY}/{segment.name}"
                _add(tar, name, segment.read_bytes())
    return path


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def _plan_json(study: Study) -> str:
    about = {"name": study.name, "title": study.title, "published": study.published}
    head = json.dumps({"format_version": FORMAT_VERSION, **about})
    runs = [
        {
            "name": run.name,
            "trunk": run.trunk,
            "config": run.build().to_dict() | {"run_dir": run.name},
        }
        | ({"note": run.note} if run.note else {})
        for run in study.runs
    ]
    lines = ",\n".join(json.dumps(run) for run in runs)
    return f'{head[:-1]}, "runs": [\n{lines}\n]}}\n'


def _read_plan(root: Path, trust: Trust) -> Study:
    file = root / PLAN
    try:
        plan: dict[str, Any] = load_json(file)
        if plan["format_version"] != FORMAT_VERSION:
            raise ValueError(f"format version {plan['format_version']}, not {FORMAT_VERSION}")
        runs = [
            StudyRun(
                x["name"],
                {**x["config"], "run_dir": str(root / x["name"])},
                x["trunk"],
                x.get("note", ""),
                trust,
            )
            for x in plan["runs"]
        ]
        return Study(plan["name"], str(root), runs, plan["title"], plan["published"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{file} is damaged ({error!r}): run the sweep again") from error
