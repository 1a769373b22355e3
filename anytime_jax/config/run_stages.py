"""Stages of a run: parts with one mixture of data, one length of windows and one rotation.

A setting by stages has a value from each point on: {"0x": 1024, "8x": 4096}.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from anytime_jax.checks import is_number, require, require_directory
from anytime_jax.config.clock import Clock, is_point
from anytime_jax.config.fields import first_value, is_by_stages, require_points
from anytime_jax.config.model import ModelConfig
from anytime_jax.data.mixture import DENOMINATOR, whole_weights

MODEL_FIELDS = ("length", "rope_theta", "rope_scaling")  # of a model, that may differ by stages
_NAME = "[A-Za-z0-9_][A-Za-z0-9_.-]{0,40}"
_NAMES = "a name of letters, digits, '_', '.' and '-', that is no point"
_MIXTURE = '{"web": ("data/web", 0.7), "code": ("data/code", 0.3)}, or such a mixture from each '
_MIXTURE += 'point on: {"0x": {...}, "4x": {...}}'


@dataclasses.dataclass(frozen=True)
class RunStage:
    """Part of a run.

    Attributes:
      step: updates before it.
      model: decoder, with the length and the rotation that it has here.
      weights: whole weight of each source by name, in order.
    """

    step: int
    model: ModelConfig
    weights: tuple[tuple[str, int], ...]


def first_model(model: ModelConfig) -> ModelConfig:
    """Returns a model with the first value of every setting by stages."""
    return dataclasses.replace(model, **{x: first_value(getattr(model, x)) for x in MODEL_FIELDS})


def resolve_stages(
    model: ModelConfig, data: Any, branch_data: Any, branch_step: int | None, clock: Clock
) -> tuple[tuple[RunStage, ...], dict[str, str]]:
    """Returns the stages of a run, the first at step 0, and the dataset of every source by name.

    `data` is the mixture, whose order does not matter, or the path of the only source. From
    `branch_step` on, a branch has `branch_data` in its place if given. Raises an InputError for
    stages that are malformed or of one update, or a name or a dataset that is two sources'.
    """
    paths: dict[str, str] = {}
    mixtures = [
        (step, _read_mixture(value, "data.mixture", paths))
        for step, value in _with_steps(data, clock, "data.mixture")
    ]
    if branch_data:
        assert branch_step is not None
        own = _read_mixture(branch_data, "branch.data", paths)
        mixtures = [x for x in mixtures if x[0] < branch_step] + [(branch_step, own)]
    every: dict[str, list[tuple[int, Any]]] = {
        name: list(_with_steps(getattr(model, name), clock, f"model.{name}"))
        for name in MODEL_FIELDS
    }
    every["weights"] = mixtures
    stages: list[RunStage] = []
    for step in sorted({step for values in every.values() for step, _ in values}):
        here = {name: [x for at, x in values if at <= step][-1] for name, values in every.items()}
        weights = here.pop("weights")
        stages.append(RunStage(step, dataclasses.replace(model, **here), weights))
    return tuple(stages), paths


def mixture_setting(stages: Sequence[RunStage], sources: Mapping[str, str]) -> tuple[Any, ...]:
    """Returns the value of `data.mixture` that gives these stages their sources."""
    setting: list[Any] = []
    for stage in stages:
        total = sum(weight for _, weight in stage.weights)
        mixture = tuple((x, (sources[x], weight / total)) for x, weight in stage.weights)
        if not setting or setting[-1][1] != mixture:
            setting.append((f"{stage.step} steps", mixture))
    return tuple(setting)


def _with_steps(value: Any, clock: Clock, name: str) -> Iterator[tuple[int, Any]]:
    """Yields the step from which a setting has each of its values, and the value."""
    require_points(name, value)
    if not is_by_stages(value):
        yield 0, value
        return
    # A ConfigDict sorts its keys as text, "16x" before "2x": the points give the order.
    steps = sorted((clock.step_at(point, name), i) for i, (point, _) in enumerate(value))
    last = -1
    for step, i in steps:
        point, x = value[i]
        allowed = "points of different updates, one of them 0x"
        require(step > last and (last >= 0 or step == 0), name, point, allowed)
        yield step, x
        last = step


def _read_mixture(value: Any, name: str, paths: dict[str, str]) -> tuple[tuple[str, int], ...]:
    """Returns the whole weights of a mixture, or of the only source, which is given by its path.

    Adds the dataset of each source to `paths`.
    """
    named = {path: source for source, path in paths.items()}

    def add(source: str, path: str) -> None:
        place, other = f"{name}: {source}", paths.setdefault(source, path)
        require(other == path, place, path, f"the dataset that it has elsewhere, {other!r}")
        twin = named.setdefault(path, source)
        require(twin == source, name, source, f"one source for {path!r}, as {twin!r} is")

    if isinstance(value, str):
        by_path = re.sub("[^A-Za-z0-9.-]+", "_", value).strip("_")[-60:] or "data"
        source = named.get(value, by_path)
        add(source, value)
        return ((source, 1),)
    weights: dict[str, float] = {}
    require(isinstance(value, tuple) and value, name, value, _MIXTURE)
    for pair in value:
        ok = isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], tuple)
        require(ok and len(pair[1]) == 2, name, pair, _MIXTURE)
        source, (path, weight) = pair
        ok = isinstance(source, str) and re.fullmatch(_NAME, source) and not is_point(source)
        require(ok, name, source, _NAMES)
        ok = isinstance(path, str) and path
        require(ok, f"{name}: {source}", path, "a dataset's directory")
        add(source, path)
        weights[source] = weight
    return tuple(sorted(whole_weights(weights, name).items()))


def check_sets(sets: Any, weights: Any) -> None:
    """Raises an InputError unless validation sets have names and paths, and weights numbers."""
    for name, value, example in (
        ("sets", sets, '{"web": "data/web"}, the directory of a dataset by name'),
        ("weights", weights, '{"web": 0.5, "code": 0.5}, numbers of at least 0 that are not all 0'),
    ):
        for pair in value:
            require(isinstance(pair, tuple) and len(pair) == 2, name, value, example)
            key, content = pair
            ok = isinstance(key, str) and re.fullmatch(_NAME, key) and not is_point(key)
            require(ok, name, key, _NAMES)
            if name == "sets":
                require(isinstance(content, str), f"{name}: {key}", content, example)
                require_directory(f"{name}: {key}", content)
            else:
                ok = is_number(content) and content >= 0
                require(ok, f"{name}: {key}", content, example)
        names = [key for key, _ in value]
        require(len(set(names)) == len(names), name, value, example)
        if name == "weights" and value:
            require(any(weight for _, weight in value), name, value, example)


def describe_weights(weights: Sequence[tuple[str, int]]) -> str:
    """Returns a mixture as text, such as `web 0.7, code 0.3`."""
    total = sum(weight for _, weight in weights)
    rounded = [
        (name, round(weight / total * DENOMINATOR) / DENOMINATOR) for name, weight in weights
    ]
    return ", ".join(f"{name} {share:g}" for name, share in rounded)
