"""Branches: their settings, and the checkpoint of a trunk from which a branch starts.

A branch is a run with a directory of its own. It starts with the weights, moments, averages, clock
and position in the data of another run, its trunk. Only the decay of the learning rate is new, and
what `branch.data` and `branch.change` say: data, length and rotation of a stage that begins where
the branch leaves its trunk, and other settings by name. The trunk is never written to.
"""

import dataclasses
import itertools
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anytime_jax.checkpoints import checkpoint_listing, checkpoint_reader, run_json
from anytime_jax.checkpoints.checkpoint_reader import Meta
from anytime_jax.checkpoints.run_json import BranchPoint, RunFile, StageEntry
from anytime_jax.config.kinds import NOBODY, Trust
from anytime_jax.config.run_config import Config, build_saved
from anytime_jax.config.run_settings import STAGED
from anytime_jax.config.stages import stage_settings
from anytime_jax.data.dataset_info import DatasetInfo
from anytime_jax.errors import InputError, RunError
from anytime_jax.storage.paths import absolute_path, storage_path
from anytime_jax.training import run_data
from anytime_jax.training.trackers import read_trackers

_SAME_RATE = 1e-6  # relative


@dataclasses.dataclass(frozen=True)
class Trunk:
    """The checkpoint that a branch starts from.

    `point` has the digest of the checkpoint's metadata, which include the checksums of all arrays.
    `meta` is None if the trunk is gone: a branch with checkpoints of its own does not need it.
    """

    path: Path
    point: BranchPoint
    meta: Meta | None

    @property
    def step(self) -> int:
        """Step at which the branch leaves the trunk."""
        return self.point.step

    @property
    def digest(self) -> str:
        """Digest of the checkpoint."""
        return self.point.checkpoint


def decay_settings(directory: str, point: str = "", trust: Trust = NOBODY) -> dict[str, Any]:
    """Returns the settings of a branch in which the learning rate of a run falls linearly to zero.

    `point` is the horizon, such as "4x", and the decay is the last 10% before it; or `point` is the
    step at which the decay starts. The default is the last doubling for which the run has a
    checkpoint at 90%, or, if there is none, the step of the last checkpoint. The run is not
    changed. The settings have no directory, because its name follows from the point.
    """
    trunk, run_file = run_json.read_run(directory, "trunk", trust)
    if trunk.horizon is not None:
        raise InputError(
            f"it has a schedule with an end ({trunk.schedule.name}): give a run without one",
            "trunk",
            directory,
        )
    at, horizon = _decay_points(directory, point, trunk)
    clock = trunk.clock
    step = clock.step_at(at) if at else clock.branch_step(clock.step_at(horizon))
    path = checkpoint_listing.checkpoint_path(storage_path(directory), step)
    trunk = _settings_at(path, _readable_meta(path, run_file), trunk, run_file, trust)
    read_trackers(trunk)  # a branch opens them, and then trusts all that its settings name
    settings = trunk.to_dict()
    if trunk.branch.stage:  # the trunk is a branch itself
        mixture, settings["stages"] = stage_settings(trunk.run_stages, trunk.sources)
        settings["data"]["mixture"] = mixture
    sources = {path: run_file.find_source(name, path) for name, path in trunk.sources.items()}
    # The mean stays the trunk's, whatever the branch reads. A single source is named by its path.
    if len(trunk.sets) > 1 or all(path == found for path, found in sources.items()):
        weights = run_file.set_weights(trunk)
        settings["eval"]["weights"] = {name: weight for name, weight in weights.items() if weight}
    sets = {path: run_file.find_set(name, path) for name, path in trunk.eval.sets}
    for name in ("path", "mixture"):
        settings["data"][name] = _replace(settings["data"][name], sources)
    settings["stages"] = _replace(settings["stages"], sources)
    settings["eval"]["sets"] = _replace(settings["eval"]["sets"], sets)
    return settings | {
        "name": f"{storage_path(directory).name}_decay",
        "run_dir": "",
        "stop": "horizon",
        "initial_weights": "",
        "branch": {"from_run": directory, "at": at},
        "decay": {"horizon": horizon},
    }


def _readable_meta(path: Path, run_file: RunFile | None = None) -> Meta | None:
    """Returns the metadata of a checkpoint, None if it is missing or damaged."""
    try:
        return checkpoint_reader.read_meta(path, run_file)
    except RunError:
        return None


def _settings_at(
    path: Path, meta: Meta | None, run: Config, run_file: RunFile, trust: Trust
) -> Config:
    """Returns the settings of a run at a checkpoint, or, without `meta`, at its last start.

    `run` has the settings of the run file.
    """
    if meta is None or meta.config == run_file.config:
        return run
    return build_saved(meta.config, str(path), trust)


def _replace(value: Any, paths: Mapping[str, str]) -> Any:
    """Returns a setting in which paths are replaced, however deep they are in it."""
    if isinstance(value, tuple):
        return tuple(_replace(x, paths) for x in value)
    return paths.get(value, value) if isinstance(value, str) else value


def _decay_points(directory: str, point: str, trunk: Config) -> tuple[str, str]:
    """Returns two points: where a decay starts (empty for 90% of the horizon), and the horizon."""
    saved, clock = checkpoint_listing.saved_steps(directory), trunk.clock
    warmup, last = clock.step_of(trunk.learning_rate.warmup_end), max(saved, default=0)
    if last <= warmup:
        raise InputError(
            f"it has been trained to {clock.describe(last)}, not beyond its warmup of "
            f"{warmup:,} steps: train it further first",
            "trunk",
            directory,
        )
    if point and not point.isdecimal():
        clock.step_at(point, "the horizon")
        return "", point
    leaves = (clock.branch_step(horizon) for horizon in clock.doublings())
    reached = itertools.takewhile(lambda step: step <= last, leaves)
    doublings = [2**i for i, step in enumerate(reached) if step in saved and step > warmup]
    if doublings and not point:
        return "", f"{doublings[-1]}x"
    step = int(point or last)
    if (horizon := clock.horizon_of_branch(step)) <= step:
        raise InputError(
            f"a decay from its step {step} would be the last 10% of {horizon} steps, which is not "
            "one update: give a later step, or train the run further first",
            "trunk",
            directory,
        )
    return f"{step} steps", f"{horizon} steps"


def find_trunk(config: Config, run_dir: Path, own: RunFile | None) -> Trunk | None:
    """Returns the checkpoint that a branch starts from; None for a run that is no branch.

    `own` is the run file of a branch that resumes from a checkpoint of its own in `run_dir`. Such a
    branch needs no trunk any more.

    Raises an InputError if there is no such checkpoint, or if the branch would change inherited
    settings. Raises a RunError if the checkpoint is damaged.
    """
    step = config.branch_step
    if step is None:
        return None
    from_run, run_dir = absolute_path(config.branch.from_run), absolute_path(run_dir)
    if from_run in (run_dir, *run_dir.parents):
        raise InputError(
            "it is in the directory of the trunk: give the branch a directory of its own",
            "config.run_dir",
            config.directory,
        )
    path = checkpoint_listing.checkpoint_path(from_run, step)
    meta = _readable_meta(path)
    if own is not None:
        saved = own.branch
        if saved and (meta is None or _is_gone(from_run, saved)):
            return Trunk(path, saved, None)
    trunk, run_file = run_json.read_run(
        config.branch.from_run, "config.branch.from_run", config.packages()
    )
    check_inheritance(config, _settings_at(path, meta, trunk, run_file, config.packages()), step)
    _check_saved(config, from_run, step)
    meta = meta or checkpoint_reader.read_meta(path)  # which says what is damaged
    return Trunk(path, BranchPoint(str(from_run), step, meta.digest, run_file.id), meta)


def check_data(
    config: Config,
    trunk: Trunk,
    datasets: Mapping[str, DatasetInfo],
    stages: Sequence[StageEntry],
) -> None:
    """Raises an InputError unless the data of a branch fit its trunk.

    Up to the trunk's step, the stages of the branch, `stages`, and the samples that it leaves out
    must be those of the trunk. Every dataset must have the trunk's vocabulary.
    """
    if trunk.meta is None:
        return
    ours, theirs = (run_json.stages_before(x, trunk.step) for x in (stages, trunk.meta.stages))
    if ours != theirs:
        raise InputError(
            f"the trunk {config.branch.from_run} was trained on other data, lengths or mixtures up "
            f"to {config.clock.describe(trunk.step)}: set those, and give the data that follow as "
            "config.branch.data",
            "config.data",
        )
    run_data.check_skip(config, trunk.meta.config, trunk.step)
    for name, dataset in datasets.items():
        if trunk.meta.vocabulary != dataset.vocabulary_sha256:
            raise InputError(
                f"{name} at {dataset.path} was made with another vocabulary than the trunk's: "
                "prepare its text with --vocabulary=DIR, the directory of the trunk's data",
                "config.branch.data",
            )


def check_inheritance(config: Config, trunk: Config, step: int) -> None:
    """Checks that a branch that leaves `trunk` at `step` changes only what `branch.change` allows.

    Raises an InputError that names every other changed setting, or says that the rate would jump.
    """
    theirs, ours = _inherited(trunk), _inherited(config)
    differing = [
        name
        for name in sorted(theirs.keys() | ours.keys())
        if theirs.get(name) != ours.get(name) and name not in config.branch.named
    ]
    if "optimizer.kind" in differing:  # and with it the settings that each kind takes
        differing = [x for x in differing if x == "optimizer.kind" or "optimizer." not in x]
    if differing:
        changes = [f"{x} was {theirs.get(x)!r}, is {ours.get(x)!r}" for x in differing]
        facts = {**trunk.facts(), **config.facts()}
        allowed = tuple(name for name in differing if facts[name].branch == "named")
        advice = "set them back"
        if allowed:
            advice += f", or name what you mean to change: {_change_option(config, *allowed)}"
        if staged := tuple((name, ours[name]) for name in differing if name in STAGED):
            advice += f", and begin a stage with the branch: {_change_option(config, *staged)}"
        raise InputError(
            f"the settings of the trunk differ ({'; '.join(changes)}): {advice}", "config.branch"
        )
    grown = [[y for y in x.clock.phases if y.step < step] for x in (trunk, config)]
    if grown[0] != grown[1]:
        raise InputError(
            "before the branch leaves it, the batch of the trunk grows at other points than the "
            "batch of the branch: give both the same batch_growth, up to "
            f"{config.clock.describe(step)}",
            "config.branch",
        )
    before, after = (x.rate_at(step) for x in (trunk, config))
    is_named = {"schedule.kind", "schedule.peak"} & set(config.branch.named)
    if abs(after - before) > _SAME_RATE * before and not is_named:
        raise InputError(
            f"the learning rate of the trunk is {before:.4g} at {config.clock.describe(step)}, and "
            f"that of this branch is {after:.4g}: choose a schedule that continues from there, or "
            f"name the jump: {_change_option(config, 'schedule.kind')}",
            "config.branch",
        )


def _change_option(config: Config, *names: Any) -> str:
    """Returns the option, quoted for a shell, with which a branch may change more settings."""
    value = repr((*config.branch.change, *names)).replace("'", '"')
    return f"--config.branch.change={shlex.quote(value)}"


def _inherited(config: Config) -> dict[str, Any]:
    """Returns the settings that a branch inherits from its trunk, by dotted name."""
    return config.select(lambda facts: facts.identity and facts.branch != "free")


def _check_saved(config: Config, from_run: Path, step: int) -> None:
    """Raises an InputError if the trunk has no checkpoint at the step."""
    saved = checkpoint_listing.saved_steps(from_run)
    if step in saved:
        return
    point = config.clock.describe(step)
    problem = f"{config.branch.from_run} has no checkpoint at {point}"
    if not saved or step > saved[-1]:
        last = f"its last is that of {config.clock.describe(saved[-1])}" if saved else "it has none"
        advice = "train the trunk to there, or leave it earlier"
        raise InputError(f"{problem} yet, {last}: {advice}", "config.branch")
    steps = checkpoint_listing.format_steps(saved)
    raise InputError(
        f"{problem}; it has those of steps {steps}: choose one of them with "
        "--config.branch.at='STEP steps'",
        "config.branch",
    )


def _is_gone(trunk: Path, saved: BranchPoint) -> bool:
    """Whether a trunk's directory holds no run, or another run has taken the trunk's place."""
    is_replaced = run_json.is_other_run(trunk, saved.run_id)
    is_replaced &= saved.from_run == str(trunk)
    return is_replaced or not (trunk / run_json.RUN_FILE).is_file()
