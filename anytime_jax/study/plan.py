"""A study as code: lists of changed settings, and the named runs they make.

    space = grid(values("schedule.peak", 3e-3, 1e-2), values("optimizer.b2", 0.95, 0.99))
    trunks = runs("constant", base, space, root="runs/studies/mine")
    decays = branches("wsd", trunks, multiples=[1, 2, 4], floor=0.1)
    study = Study("mine", "runs/studies/mine", chain(trunks, decays))

A space is a plain list of changes, each a dict of settings by their dotted names; combinators make
lists of lists. A study file has a `get_study()` that returns a `Study`, and a `get_config(name)`
that returns the configuration of one of its runs, which is an ordinary run:

    python -m anytime_jax.main --config=configs/studies/laptop.py:constant-peak=0.01
"""

import copy
import dataclasses
import difflib
import itertools
import json
import re
import runpy
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from anytime_jax.atomic import atomic_write
from anytime_jax.checks import require_choice
from anytime_jax.errors import InputError
from anytime_jax.study import published

FILE = "study.json"
FORMAT_VERSION = 1

Change = dict[str, Any]
Item = TypeVar("Item")


def values(name: str, *given: Any) -> list[Change]:
    """Returns a space of one setting: a change for each value."""
    return [{name: value} for value in given]


def grid(*spaces: Sequence[Change]) -> list[Change]:
    """Returns every combination of one change of each space, the last space running fastest."""
    return [_merged(changes) for changes in itertools.product(*spaces)]


def paired(*spaces: Sequence[Change]) -> list[Change]:
    """Returns the first changes of all spaces together, then the second ones, and so on.

    Raises:
      ValueError: if the spaces are not equally long.
    """
    lengths = {len(space) for space in spaces}
    if len(lengths) > 1:
        told = ", ".join(str(len(space)) for space in spaces)
        raise ValueError(f"spaces of {told} changes cannot be paired: make them equally long")
    return [_merged([space[i] for space in spaces]) for i in range(max(lengths, default=0))]


def chain(*lists: Iterable[Item]) -> list[Item]:
    """Returns spaces, or runs, one after another."""
    return [item for items in lists for item in items]


def _merged(changes: Iterable[Change]) -> Change:
    merged: Change = {}
    for change in changes:
        if twice := sorted(merged.keys() & change.keys()):
            raise ValueError(f"{', '.join(twice)}: changed by two spaces that are combined")
        merged |= change
    return merged


@dataclasses.dataclass(frozen=True)
class StudyRun:
    """A run of a study.

    Attributes:
      name: unique in the study; also the name of its directory.
      config: its configuration: an `ml_collections.ConfigDict`, or plain nested data.
      trunk: name of the run whose checkpoint it begins from, if it is in the study.
    """

    name: str
    config: Any
    trunk: str | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """The configuration as plain nested data."""
        return self.config if isinstance(self.config, dict) else self.config.to_dict()

    @property
    def run_dir(self) -> Path:
        """The run's directory."""
        return Path(self.config["run_dir"])


@dataclasses.dataclass(frozen=True)
class Study:
    """Named runs, and what to read in them.

    Attributes:
      name: what the study is called.
      root: directory that holds the runs, and what is written about all of them.
      runs: the runs, each after the one it begins from.
      title: one line for people.
      published: "150M" or "300M" to draw the paper's published losses beside the study's.
    """

    name: str
    root: str
    runs: Sequence[StudyRun]
    title: str = ""
    published: str = ""

    def __post_init__(self) -> None:
        """Checks that names and directories are unique, and that trunks come first."""
        models = ("", *published.losses())
        require_choice("published", self.published, models)
        if not self.runs:
            raise InputError(f"study {self.name} has no runs: give it some")
        seen: set[str] = set()
        folders: dict[Path, str] = {}
        for run in self.runs:
            if not re.fullmatch(r"[\w.,=+-]{1,200}", run.name):
                raise InputError(
                    f"study {self.name}: {run.name!r} cannot be the name of a run, which is a "
                    "directory's and a file's: letters, digits and .,=+-_ only"
                )
            if run.name in seen:
                raise InputError(f"study {self.name}: two runs are called {run.name}")
            folder = Path(run.config.get("run_dir", run.name)).absolute()
            if (other := folders.setdefault(folder, run.name)) != run.name:
                raise InputError(f"study {self.name}: {other} and {run.name} share {folder}")
            if run.trunk is not None and run.trunk not in seen:
                raise InputError(
                    f"study {self.name}: {run.name} begins from {run.trunk}, which is not a run "
                    "before it: add that trunk to the study, ahead of its branches"
                )
            seen.add(run.name)

    def run(self, name: str) -> StudyRun:
        """Returns the run of a name.

        Raises:
          InputError: if there is none; the message has the nearest name.
        """
        names = {run.name: run for run in self.runs}
        if name in names:
            return names[name]
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(list(names)[:5])}, ..."
        what = f"has no run {name!r}" if name else "holds many runs: name one, as FILE:NAME"
        raise InputError(
            f"study {self.name} {what}; {hint} (anytime_jax.commands.sweep --list shows all)"
        )


def runs(prefix: str, config: Any, space: Iterable[Change], root: str) -> list[StudyRun]:
    """Returns a run for each change of a configuration, named after what changes.

    Args:
      prefix: how the names begin.
      config: an `ml_collections.ConfigDict`, which stays as it is.
      space: the changes.
      root: directory that will hold the runs.
    """
    return [_run("-".join([prefix, *_label(x)]), config, x, root) for x in space]


def branches(
    prefix: str,
    trunks: Iterable[StudyRun],
    multiples: Iterable[float],
    floor: float = 0.1,
    shape: str = "linear",
) -> list[StudyRun]:
    """Returns WSD branches of constant runs: one for each trunk and horizon.

    Args:
      prefix: what replaces the first part of the trunk's name.
      trunks: runs with a constant learning rate.
      multiples: horizons in Chinchilla multiples.
      floor: rate at the horizon as a fraction of the peak.
      shape: of the decay: "linear", "1-sqrt" or "cosine".
    """
    made = []
    for trunk, multiple in itertools.product(trunks, multiples):
        change = {
            "schedule": {
                **trunk.settings["schedule"],
                "kind": "wsd",
                "horizon": "branch",
                "floor": floor,
                "shape": shape,
            },
            "branch.from_run": trunk.config["run_dir"],
            "branch.multiple": float(multiple),
            "stop": "horizon",
        }
        rest = trunk.name.partition("-")[2]
        name = "-".join([prefix, *([rest] if rest else []), f"horizon={multiple:g}x"])
        made.append(_run(name, trunk.config, change, str(trunk.run_dir.parent), trunk.name))
    return made


def _run(name: str, config: Any, change: Change, root: str, trunk: str | None = None) -> StudyRun:
    config = copy.deepcopy(config)
    for key, value in {**change, "name": name, "run_dir": f"{root}/{name}"}.items():
        *groups, last = key.split(".")
        group = config
        for part in groups:
            group = group[part]
        if last not in group:
            raise InputError(f"{key} is not a setting of {name}: configs/base.py has them all")
        group[last] = type(group[last])(value) if isinstance(value, dict) else value
    return StudyRun(name, config, trunk)


def _label(change: Change) -> list[str]:
    """What changes, in words of a file name: `peak=0.01`; two seeds that agree are one."""
    words = {}
    for name, value in change.items():
        words[name.rpartition(".")[2]] = f"{value:g}" if isinstance(value, float) else str(value)
    return [re.sub(r"[^\w.,=+-]+", "_", f"{name}={value}") for name, value in words.items()]


def write(study: Study, root: str | Path, folder: str = ".") -> Path:
    """Writes what a study is, for those who have no study file.

    Args:
      study: the plan.
      root: directory to write into.
      folder: where in it the directories of the runs are.
    """
    root = Path(root)
    root.mkdir(parents=True, exist_ok=True)
    about = {name: getattr(study, name) for name in ("name", "title", "published")}
    head = json.dumps({"format_version": FORMAT_VERSION, **about, "folder": folder})
    runs = [
        {"name": x.name, "trunk": x.trunk, "config": {**x.settings, "run_dir": x.name}}
        for x in study.runs
    ]
    lines = ",\n".join(json.dumps(run) for run in runs)  # a line for each run
    with atomic_write(root / FILE) as part:
        part.write_text(f'{head[:-1]}, "runs": [\n{lines}\n]}}\n', encoding="utf-8")
    return root / FILE


def load(path: str | Path, to_run: bool = False) -> Study:
    """Reads a study: a file with a `get_study()`, which is executed, or a study's directory.

    In a directory that was copied from elsewhere, the runs are those that lie in it.

    Args:
      path: the file or the directory.
      to_run: whether its runs are to be made, which takes a file with a `get_config(name)`.

    Raises:
      InputError: if it is neither.
    """
    path = Path(path)
    if path.is_dir() and not to_run:
        return _read(path)
    if path.is_dir():
        raise InputError(f"--study={path} is a directory: runs are made from a study's file")
    if not path.is_file():
        raise InputError(f"--study={path}: there is no such file; studies are in configs/studies/")
    try:
        content = runpy.run_path(str(path))
        study = content.get("get_study", dict)()
    except InputError as error:
        raise InputError(f"--study={path}: {error}") from error
    except (Exception, SystemExit) as error:  # the file is code: it can raise anything
        frames = [x for x in traceback.extract_tb(error.__traceback__) if x.filename == str(path)]
        where = f"line {frames[-1].lineno}: " if frames else ""
        what = f"{where}{type(error).__name__}: {error}"
        raise InputError(f"--study={path} cannot be run: {what}") from error
    if not isinstance(study, Study):
        raise InputError(f"--study={path} has no get_study() that returns a study.plan.Study")
    if to_run and not callable(content.get("get_config")):
        raise InputError(
            f"--study={path} has no get_config(name), by which each of its runs is made: add one "
            "that returns get_study().run(name).config"
        )
    return study


def _read(root: Path) -> Study:
    file = root / FILE
    if not file.is_file():
        raise InputError(
            f"--study={root} is no study (it has no {FILE}): give a file of configs/studies/, or "
            "the directory of a study that was run"
        )
    try:
        told: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if told["format_version"] != FORMAT_VERSION:
            raise ValueError(f"format version {told['format_version']}, this is {FORMAT_VERSION}")
        folder = root / told["folder"]
        planned = [
            StudyRun(
                x["name"], {**x["config"], "run_dir": str(folder / str(x["name"]))}, x["trunk"]
            )
            for x in told["runs"]
        ]
        return Study(told["name"], str(root), planned, told["title"], told["published"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{file} is damaged ({error!r}): run the study's sweep again") from error
