"""Stages of a run: parts with one mixture of data, one length of windows and one rotation.

The setting `stages` says what changes where: `{"8x": {"length": 4096, "rope_theta": 5e5}, "16x":
{"mixture": {...}}}`. Up to the first point, the run has the settings of `model` and `data`.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from anytime_jax.checks import is_number, require, require_directory
from anytime_jax.config.clock import Clock
from anytime_jax.config.model import ModelConfig
from anytime_jax.config.settings_reader import ByName, setting_type
from anytime_jax.data.mixture import DENOMINATOR, whole_weights
from anytime_jax.errors import within

MODEL_FIELDS = ("length", "rope_theta", "rope_scaling")  # of a model, that a stage may change
_BY_NAME = setting_type(ByName)
_CHANGES = (*MODEL_FIELDS, "mixture")
_LONGEST = 60  # characters of a name
_NAME = f"[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{_LONGEST - 1}}}"
_NAMES = "a name of letters, digits, '_', '.' and '-'"
_STAGES = '{"8x": {"length": 4096}, "16x": {"mixture": {...}}}, changes by the point at which they '
_STAGES += f"begin, of {', '.join(_CHANGES)}"


@dataclasses.dataclass(frozen=True)
class RunStage:
    """Part of a run.

    Attributes:
      step: number of updates before the stage.
      model: decoder, with the length and the rotation of this stage.
      weights: whole weight of each source by name, in order.
    """

    step: int
    model: ModelConfig
    weights: tuple[tuple[str, int], ...]


def make_run_stages(
    model: ModelConfig,
    data: str | ByName,
    changes: ByName,
    branch: Mapping[str, Any],
    branch_step: int | None,
    clock: Clock,
) -> tuple[tuple[RunStage, ...], dict[str, str]]:
    """Returns the stages of a run, the first at step 0, and the dataset of every source by name.

    `data` is the first mixture, or the path of the only source; `changes` is the setting `stages`.
    From `branch_step` on, a branch has the values of `branch` in place of those of its stages.
    Raises an InputError for malformed changes, for two changes at one update, and for two sources
    with the same name or the same dataset.
    """
    by_step = dict(_read_changes(changes, clock))
    if branch:
        assert branch_step is not None
        for step, change in by_step.items():
            if step >= branch_step:
                by_step[step] = {x: y for x, y in change.items() if x not in branch}
        by_step.setdefault(branch_step, {}).update(branch)
    paths: dict[str, str] = {}
    stages = [RunStage(0, model, _read_mixture(data, "data.mixture", paths))]
    for step, change in sorted(by_step.items()):
        weights = stages[-1].weights
        if mixture := change.pop("mixture", ()):
            name = "branch.data" if step == branch_step and "mixture" in branch else "stages"
            weights = _read_mixture(mixture, name, paths)
        elif not change:  # a branch has none of its values
            continue
        with within("branch.change" if step == branch_step and branch else "stages"):
            later = dataclasses.replace(stages[-1].model, **change)
        stages.append(RunStage(step, later, weights))
    return tuple(stages), paths


def _read_changes(changes: ByName, clock: Clock) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields a step and the change that holds from there on, for each item of `stages`."""
    seen = {0}
    for point, change in changes:
        change = dict(_BY_NAME.read("stages", change))
        ok = change and set(change) <= {*_CHANGES} and change.get("mixture", True)
        require(ok, "stages", changes, _STAGES)
        if "mixture" in change:
            change["mixture"] = _BY_NAME.read("stages", change["mixture"])
        step = clock.step_at(point, "stages")
        require(step not in seen, "stages", point, "points of different updates after 0x")
        seen.add(step)
        yield step, change


def stage_settings(
    stages: Sequence[RunStage], sources: Mapping[str, str]
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Returns the values of the settings `data.mixture` and `stages` that describe these stages."""
    mixtures, changes = [], []
    for stage in stages:
        total = sum(weight for _, weight in stage.weights)
        mixtures.append(tuple((x, (sources[x], weight / total)) for x, weight in stage.weights))
    for number, stage in enumerate(stages[1:], 1):
        before = stages[number - 1].model
        change = {
            name: value
            for name in MODEL_FIELDS
            if (value := getattr(stage.model, name)) != getattr(before, name)
        }
        if mixtures[number] != mixtures[number - 1]:
            change["mixture"] = mixtures[number]
        changes.append((f"{stage.step} steps", tuple(change.items())))
    return mixtures[0], tuple(changes)


def _read_mixture(
    value: str | ByName, name: str, paths: dict[str, str]
) -> tuple[tuple[str, int], ...]:
    """Returns the whole weights of a mixture, or of the only source, given by its path.

    Adds the dataset of each source to the dictionary `paths`.
    """
    named = {path: source for source, path in paths.items()}

    def add(source: str, path: str) -> None:
        place, other = f"{name}.{source}", paths.setdefault(source, path)
        require(other == path, place, path, f"the dataset that it has elsewhere, {other!r}")
        twin = named.setdefault(path, source)
        require(twin == source, name, source, f"one source for {path!r}, as {twin!r} is")

    if isinstance(value, str):
        by_path = (
            re.sub("[^A-Za-z0-9.-]+", "_", value).strip("_")[-_LONGEST:].lstrip(".-") or "data"
        )
        source = named.get(value, by_path)
        add(source, value)
        return ((source, 1),)
    weights: dict[str, float] = {}
    for source, content in value:
        require(re.fullmatch(_NAME, source), name, source, _NAMES)
        ok = isinstance(content, tuple) and len(content) == 2
        require(ok, f"{name}.{source}", content, 'a dataset with its weight, ("data/web", 0.7)')
        path, weights[source] = content
        ok = isinstance(path, str) and path
        require(ok, f"{name}.{source}", path, "a dataset's directory")
        add(source, path)
    with within(name):
        return tuple(sorted(whole_weights(weights).items()))


def check_sets(sets: ByName, weights: ByName) -> None:
    """Raises an InputError unless validation sets have names and paths, and weights numbers."""
    for name, path in sets:
        require(re.fullmatch(_NAME, name), "sets", name, _NAMES)
        require_directory(f"sets.{name}", path)
    for name, weight in weights:
        ok = is_number(weight) and weight >= 0
        require(ok, f"weights.{name}", weight, "a number of at least 0")
    ok = any(weight for _, weight in weights) or not weights
    require(ok, "weights", weights, "numbers that are not all 0")


def describe_weights(weights: Sequence[tuple[str, int]]) -> str:
    """Returns a mixture as text, such as `web 0.7, code 0.3`."""
    total = sum(weight for _, weight in weights)
    rounded = [
        (name, round(weight / total * DENOMINATOR) / DENOMINATOR) for name, weight in weights
    ]
    return ", ".join(f"{name} {share:g}" for name, share in rounded)
