"""Studies as code: lists of changed settings and the named runs they make.

    space = grid(values("schedule.peak", 3e-3, 1e-2), values("optimizer.b2", 0.95, 0.99))
    trunks = runs("constant", base, space, root="runs/studies/mine")
    wsd = decays("wsd", trunks, multiples=[1, 2, 4], floor=0.1)
    study = Study("mine", "runs/studies/mine", chain(trunks, wsd))

A space is a plain list of changes, each a dict of settings by dotted name; `grid`, `paired` and
`chain` combine spaces. A study file has `get_study()`, which returns a `Study`, and
`get_config(name)`, which returns the configuration of one of its runs, to train like any other:

    anytime train --config=laptop:constant-peak=0.01
"""

import copy
import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ml_collections import ConfigDict

from anytime_jax.checks import require_choice
from anytime_jax.config import run_config, settings_reader
from anytime_jax.config.kinds import EVERY_PACKAGE, Trust
from anytime_jax.config.run_config import Config
from anytime_jax.config.run_settings import Settings, group_names
from anytime_jax.errors import InputError, nearest
from anytime_jax.storage.paths import absolute_path, is_address, storage_path
from anytime_lab.study import paper_losses

Change = dict[str, Any]
Item = TypeVar("Item")


def values(name: str, *options: Any) -> list[Change]:
    """Returns a space of one setting, a change for each option."""
    return [{name: option} for option in options]


def grid(*spaces: Sequence[Change]) -> list[Change]:
    """Returns every combination of one change of each space; the last space varies fastest."""
    return [_merge(changes) for changes in itertools.product(*spaces)]


def paired(*spaces: Sequence[Change]) -> list[Change]:
    """Combines the first changes of all spaces, then the second changes, and so on."""
    return [_merge(changes) for changes in zip(*spaces, strict=True)]


def seeds(*numbers: int) -> list[Change]:
    """Returns a change for each number, the seed of the weights and of the order of the data."""
    return paired(values("seed", *numbers), values("data.seed", *numbers))


def without_seed(name: str) -> str:
    """Returns the name of a run without its seed, which runs that differ in the seed alone share.

    Examples:
      >>> without_seed("kept-seed=21-batch_growth=64_at_1x")
      'kept-batch_growth=64_at_1x'
    """
    return re.sub(r"-seed=\d+", "", name)


def chain(*lists: Iterable[Item]) -> list[Item]:
    """Returns spaces, or runs, one after another."""
    return [item for items in lists for item in items]


def _merge(changes: Iterable[Change]) -> Change:
    merged: Change = {}
    for change in changes:
        if repeated := sorted(merged.keys() & change.keys()):
            raise ValueError(f"{', '.join(repeated)}: changed by two of the combined spaces")
        merged |= change
    return merged


@dataclasses.dataclass(frozen=True)
class StudyRun:
    """A run of a study.

    Attributes:
      config: its settings, an `ml_collections.ConfigDict` or nested dictionaries.
      trunk: name of the run of which it is a branch.
      note: what the settings do not say about an old run, which cannot be trained again.
      trust: packages that are imported for the kinds that the settings name.
    """

    name: str
    config: Any
    trunk: str | None = None
    note: str = ""
    trust: Trust = EVERY_PACKAGE

    @property
    def settings(self) -> dict[str, Any]:
        """The configuration as plain nested data."""
        return self.config if isinstance(self.config, dict) else self.config.to_dict()

    @property
    def run_dir(self) -> Path:
        """The run directory."""
        return storage_path(self.config["run_dir"])

    def build(self) -> Config:
        """Returns the configuration; raises an InputError for a setting that is not allowed."""
        return run_config.build(self.settings, trust=self.trust)


@dataclasses.dataclass(frozen=True)
class Study:
    """Named runs that are trained and reported together.

    Attributes:
      root: directory of the run directories, logs and reports.
      runs: every trunk before its branches.
      published: "150M" or "300M" if the study is of that model of the paper, to draw its published
        losses too.
    """

    name: str
    root: str
    runs: Sequence[StudyRun]
    title: str = ""
    published: str = ""

    def __post_init__(self) -> None:
        require_choice("published", self.published, ("", *paper_losses.losses()))
        if not self.runs:
            raise InputError(f"study {self.name} has no runs: give at least one")
        if is_address(self.root):
            raise InputError(
                f"study {self.name}: root = {self.root!r}: logs and reports are written to a local "
                "directory; give one (the run_dir of a run may be in a bucket)"
            )
        names: set[str] = set()
        owners: dict[Path, str] = {}
        for run in self.runs:
            if not re.fullmatch(r"[\w.,=+-]{1,200}", run.name):
                raise InputError(
                    f"study {self.name}: {run.name!r} is not a valid name of a run, which is also "
                    "the name of a directory: use letters, digits and .,=+-_"
                )
            if run.name in names:
                raise InputError(f"study {self.name}: two runs are named {run.name}")
            run_dir = absolute_path(run.config.get("run_dir", run.name))
            if (owner := owners.setdefault(run_dir, run.name)) != run.name:
                raise InputError(f"study {self.name}: {owner} and {run.name} share {run_dir}")
            if run.trunk is not None and run.trunk not in names:
                raise InputError(
                    f"study {self.name}: {run.name} branches from {run.trunk}, which is not a run "
                    "before it: add that trunk to the study, ahead of its branches"
                )
            names.add(run.name)

    def run(self, name: str) -> StudyRun:
        """Returns the run called `name`; without one, an InputError suggests the nearest name."""
        by_name = {run.name: run for run in self.runs}
        if name in by_name:
            return by_name[name]
        hint = nearest(name, by_name) or f"; it has {', '.join(list(by_name)[:5])}, ..."
        problem = f"has no run {name!r}" if name else "has many runs: choose one as FILE:NAME"
        raise InputError(
            f"study {self.name} {problem}{hint} (anytime sweep --study=... --list shows all)"
        )


def runs(prefix: str, config: Any, space: Iterable[Change], root: str) -> list[StudyRun]:
    """Returns a run for each change, named after it: `prefix-peak=0.01-seed=1`."""
    return [
        _make_run("-".join([prefix, *_label(change)]), config, change, root) for change in space
    ]


def decays(
    prefix: str,
    trunks: Iterable[StudyRun],
    multiples: Iterable[float],
    floor: float = 0.1,
    shape: str = "linear",
) -> list[StudyRun]:
    """Returns branches that decay from their trunk, one for each trunk and horizon.

    Args:
      prefix: replaces the first part of the trunk's name.
      trunks: runs without a horizon; branches of a constant rate are WSD runs.
      multiples: horizons in Chinchilla multiples.
      floor: rate at the horizon as a fraction of the peak.
      shape: "linear", "1-sqrt" or "cosine".
    """
    found = []
    for trunk, multiple in itertools.product(trunks, multiples):
        change = {
            "decay.horizon": f"{multiple:g}x",
            "decay.floor": floor,
            "decay.shape": shape,
            "stop": "horizon",
        }
        found.append(_make_branch(prefix, trunk, change, [f"horizon={multiple:g}x"]))
    return found


def branches(
    prefix: str, trunks: Iterable[StudyRun], at: str, space: Iterable[Change], stop: str
) -> list[StudyRun]:
    """Returns branches without a decay, one for each trunk and change, named after both.

    Args:
      prefix: replaces the first part of the trunk's name.
      trunks: runs without a horizon.
      at: point at which branches leave their trunk, such as "1x".
      space: changes of settings that a branch may change if it names them (`branch.change`), such
        as {"batch_growth": {"1x": 128}, "schedule.peak": 0.02}.
      stop: point at which they end.
    """
    return [
        _make_branch(
            prefix,
            trunk,
            {**change, "branch.at": at, "branch.change": tuple(change), "stop": stop},
            _label(change),
        )
        for trunk, change in itertools.product(trunks, space)
    ]


def _make_branch(prefix: str, trunk: StudyRun, change: Change, label: Sequence[str]) -> StudyRun:
    rest = trunk.name.partition("-")[2]
    name = "-".join([prefix, *([rest] if rest else []), *label])
    change = {"branch.from_run": trunk.config["run_dir"], **change}
    return _make_run(name, trunk.config, change, str(trunk.run_dir.parent), trunk.name)


def _make_run(
    name: str, config: Any, change: Change, root: str, trunk: str | None = None
) -> StudyRun:
    settings = copy.deepcopy(config if isinstance(config, dict) else config.to_dict())
    own = {"name": name, "run_dir": f"{root}/{name}"}
    settings_reader.change(Settings, settings, {**change, **own})
    # A ConfigDict sorts its keys, and a dictionary that is a value, such as {"2x": ...}, does not.
    options = {"convert_dict": False, "type_safe": False}
    groups = {
        name: ConfigDict(settings[name], **options)
        for name in group_names()
        if isinstance(settings.get(name), dict)
    }
    return StudyRun(name, ConfigDict({**settings, **groups}, **options), trunk)


def _label(change: Change) -> list[str]:
    """The change for a file name, `peak=0.01`; equal `seed` and `data.seed` are one `seed=1`."""
    short = {name.rpartition(".")[2]: _text(value) for name, value in change.items()}
    return [re.sub(r"[^\w.,=+-]+", "_", f"{name}={value}") for name, value in short.items()]


def _text(value: Any) -> str:
    if isinstance(value, Mapping):  # {"1x": 64} is `64_at_1x`
        return "+".join(f"{_text(x)}_at_{point}" for point, x in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)
