"""Weights of a saved run by name: kept as they are, or mixed from what is kept.

    last, f25, ema0.999         the live weights; an average, by its label
    f=35                        an average that was not kept, mixed from those that were
    tail:0.3                    the mean of the last 30% of the iterates, likewise
    mix:{"f25": 0.5, "last@480": 0.5}   any sum of kept trees; @STEP is another checkpoint
    merge:5                     the mean of the live weights of the last 5 checkpoints
    merge:1-sqrt:0.1            live weights, weighed as if the rate had decayed over the last 10%

A run is read while it may go on; nothing that it has written is changed. Every array is compared
with its checksum.
"""

import contextlib
import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast, get_args

import numpy as np

from anytime_jax.averaging import LIVE, GrowingWindow, label_order
from anytime_jax.checkpoints import (
    checkpoint_directory,
    checkpoint_reader,
    run_directory,
    tree_names,
)
from anytime_jax.checkpoints.checksums import checksums
from anytime_jax.checks import require_positive
from anytime_jax.config.schema import Config, build_saved
from anytime_jax.errors import InputError, RunError
from anytime_jax.models.decoder import Params
from anytime_jax.schedules import DecayShape
from anytime_jax.weights.post_hoc import (
    DecayedRate,
    Kept,
    LastFraction,
    Mix,
    Target,
    best_mix,
    merge,
)

FORMS = 'f=35, tail:0.3, mix:{"f25": 0.5, "last@480": 0.5}, merge:5 or merge:1-sqrt:0.1'
_ENOUGH = 0.005  # kernel error at which no further checkpoint is read
_LARGEST = 1e4  # weight of a tree in a mix
_SUM = 1e-6  # how far from 1 the weights of a mix may sum


@dataclasses.dataclass(frozen=True)
class Saved:
    """A run as it stands at one of its checkpoints.

    Attributes:
      run_dir: the run's directory.
      step: updates done.
      tokens: seen by then.
      config: of the run, as it was when the checkpoint was written.
      vocabulary: SHA-256 of the vocabulary of its data.
      fingerprint: of its data.
      kept: every tree of weights in this checkpoint and those before it, by step.
    """

    run_dir: Path
    step: int
    tokens: int
    config: Config
    vocabulary: str
    fingerprint: str
    kept: tuple[Kept, ...]

    @property
    def here(self) -> dict[str, Kept]:
        """The trees of this checkpoint by label, the live weights first."""
        return {x.label: x for x in self.kept if x.step == self.step}

    def checkpoint(self, step: int) -> Path:
        """Returns the directory of a checkpoint."""
        return self.run_dir.absolute() / checkpoint_directory.DIRECTORY / str(step)


@dataclasses.dataclass(frozen=True)
class Limits:
    """How far a mix may be from what it stands for, and what may be read for it.

    Attributes:
      error: largest relative difference of kernels that is not refused.
      checkpoints: most checkpoints to read.
    """

    error: float = 0.05
    checkpoints: int = 4


def open_saved(run_dir: Path, step: str = "latest") -> Saved:
    """Opens a run at a checkpoint.

    Args:
      run_dir: the run's directory.
      step: "latest", a number of updates, or a point such as "4x".

    Raises:
      InputError: if it is no run, or has no such checkpoint; the message lists those there are.
      RunError: if the checkpoint's description of itself is damaged.
    """
    about = run_directory.read_run_file(run_dir, "give another run")
    if about is None:
        raise InputError(
            f"{run_dir} is no run (it has no {run_directory.RUN_FILE}): give a run's directory; "
            "python -m anytime_jax runs lists them"
        )
    steps = checkpoint_directory.saved_steps(run_dir)
    if not steps:
        raise InputError(f"{run_dir} has no checkpoint yet: train it to one")
    at = _find_step(step, steps, build_saved(about["config"]), run_dir)
    kept: list[Kept] = []
    for s in (s for s in steps if s < at):
        with contextlib.suppress(RunError):  # `runs --verify` names it; the others will do
            kept += _kept(
                checkpoint_reader.read_meta(run_dir / checkpoint_directory.DIRECTORY / str(s))
            )
    meta = checkpoint_reader.read_meta(run_dir / checkpoint_directory.DIRECTORY / str(at))
    kept += _kept(meta)
    config = build_saved(meta["config"])
    return Saved(
        run_dir, at, meta["tokens"], config, meta["vocabulary"], meta["fingerprint"], tuple(kept)
    )


def find(saved: Saved, spec: str, limits: Limits) -> Mix:
    """Returns how the weights of a name are made from what is kept; reads no array.

    Args:
      saved: the run.
      spec: the name, in a form of this module's docstring.
      limits: what of a mix is refused.

    Raises:
      InputError: if there is no such average, or it would be too far from what was asked for; the
        message says how far, and what there is.
    """
    if spec in saved.here:
        return Mix((saved.here[spec],), (1.0,))
    kind, _, rest = spec.partition("=" if spec.startswith("f=") else ":")
    readers: dict[str, Callable[[Saved, str, Limits], Mix]] = {
        "f": _window,
        "tail": _last_fraction,
        "mix": _sum,
        "merge": _merge,
    }
    if kind not in readers or not rest:
        there = ", ".join(saved.here)
        raise InputError(
            f"weights {spec!r} are not kept at step {saved.step:,} of {saved.run_dir}: there are "
            f"{there}; also {FORMS}"
        )
    try:
        return readers[kind](saved, rest, limits)
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"weights {spec!r}: {error}") from error


def read(saved: Saved, mix: Mix) -> Params:
    """Returns a mix of kept trees, float32 in host memory.

    One kept tree comes as it is, bit by bit; a sum is taken in float64.

    Raises:
      RunError: if an array is missing or damaged.
    """
    if len(mix.parts) == 1 and mix.coefficients == (1.0,):
        return tree_names.unflatten_by_name(_read_one(saved, mix.parts[0]))
    total: dict[str, np.ndarray] = {}
    for part, coefficient in zip(mix.parts, mix.coefficients, strict=True):
        for name, array in _read_one(saved, part).items():
            total[name] = total.get(name, 0.0) + coefficient * array.astype(np.float64)
    return tree_names.unflatten_by_name(
        {name: array.astype(np.float32) for name, array in total.items()}
    )


def describe(mix: Mix) -> str:
    """Returns what a mix is made of, in words."""
    if mix.coefficients == (1.0,):
        return mix.parts[0].name
    pairs = zip(mix.coefficients, mix.parts, strict=True)
    return " ".join(f"{x:+.4g} {part.name}" for x, part in pairs)


def _find_step(given: str, steps: list[int], config: Config, run_dir: Path) -> int:
    if given == "latest":
        return steps[-1]
    try:
        step = int(given) if given.isdecimal() else config.clock.steps(given, "step")
    except ValueError as error:
        raise InputError(
            f'step {given!r} is not allowed: give "latest", a number, or a point such as "4x"'
        ) from error
    if step in steps:
        return step
    held = ", ".join(f"{s:,}" for s in steps[-8:])
    raise InputError(
        f"{run_dir} has no checkpoint of step {step:,}; it has those of steps "
        f"{'..., ' if len(steps) > 8 else ''}{held}"
    )


def _kept(meta: checkpoint_reader.Meta) -> list[Kept]:
    """The trees of a checkpoint, the live weights first."""
    config, step = build_saved(meta["config"]), int(meta["step"])
    since: Mapping[str, int] = meta.get("averages_since", {})
    averages = [
        Kept(step, label, config.averages[label], config.average_every, since.get(label, 0))
        for label in sorted(meta["averages"], key=label_order)
    ]
    return [Kept(step, LIVE), *averages]


def _window(saved: Saved, given: str, limits: Limits) -> Mix:
    rule = GrowingWindow(_number("f", given))
    if rule.label in saved.here:
        return Mix((saved.here[rule.label],), (1.0,))
    mix = _mixed(saved, rule, limits)
    if mix.error > limits.error:
        raise InputError(
            f"weights f={given} would have a kernel error of {mix.error:.2%}, more than "
            f"{limits.error:.2%}: {_advise(saved, rule.f, limits)}, or allow more with "
            "--max-error"
        )
    return mix


def _last_fraction(saved: Saved, given: str, limits: Limits) -> Mix:
    target = LastFraction(_number("fraction", given))
    if (begins := target.before(saved.step)) == saved.step - 1:
        raise ValueError("that is a single iterate, which is last")
    mix = _mixed(saved, target, limits)
    if mix.error > limits.error:
        count = len({part.step for part in mix.parts})
        raise InputError(
            f"weights tail:{given} would have a kernel error of {mix.error:.2%}, more than "
            f"{limits.error:.2%}, from the averages of {count} checkpoint{'s' * (count > 1)}: it "
            f"takes one near step {begins:,}, where the tail begins "
            "(config.checkpoint.keep_every), and --checkpoints=2 or more; or allow more with "
            "--max-error"
        )
    return mix


def _mixed(saved: Saved, target: Target, limits: Limits) -> Mix:
    enough = min(_ENOUGH, limits.error)
    return best_mix(saved.kept, target, saved.step, limits.checkpoints, enough)


def _advise(saved: Saved, f: float, limits: Limits) -> str:
    """Says which windows have a kernel error that is allowed."""

    def is_fine(f: float) -> bool:
        return _mixed(saved, GrowingWindow(f), limits).error <= limits.error

    kept = [x.rule.f for x in saved.here.values() if isinstance(x.rule, GrowingWindow)]
    if not kept:
        return f"step {saved.step:,} keeps no growing window: choose another step"
    between = [math.sqrt(low * high) for low, high in itertools.pairwise(kept)]
    if min(kept) <= f <= max(kept) or not all(map(is_fine, between)):
        return f"choose one nearer to those kept ({', '.join(map('{:g}'.format, kept))})"
    low, high = (_edge(is_fine, start, end) for start, end in ((min(kept), 0.1), (max(kept), 1e4)))
    return f"choose f from {low:.3g} to {high:.3g}, which are within that"


def _edge(is_fine: Callable[[float], bool], inside: float, outside: float) -> float:
    """The last fine number between one that is and one that is not, to a hundredth."""
    while abs(math.log(outside / inside)) > 0.01:
        middle = math.sqrt(inside * outside)
        inside, outside = (middle, outside) if is_fine(middle) else (inside, middle)
    return inside


def _sum(saved: Saved, given: str, limits: Limits) -> Mix:
    del limits
    try:
        parsed = json.loads(given)
        given_weights = {str(name): float(weight) for name, weight in dict(parsed).items()}
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError('give JSON, such as mix:{"f25": 0.5, "last@480": 0.5}') from error
    total = sum(given_weights.values())
    if not given_weights or not abs(total - 1) < _SUM:
        raise ValueError(f"the weights sum to {total:.6g}; they must sum to 1")
    if (largest := max(map(abs, given_weights.values()))) > _LARGEST:
        raise ValueError(f"a weight of {largest:.6g} leaves no digits: give at most {_LARGEST:g}")
    by_name = {x.name: x for x in saved.kept}
    shares: dict[Kept, float] = {}
    for name, weight in given_weights.items():
        full = name if "@" in name else f"{name}@{saved.step}"
        if full not in by_name:
            steps = sorted({x.step for x in saved.kept})[-8:]
            raise ValueError(
                f"{name!r} is not kept; there are {', '.join(saved.here)}, with @STEP for one of "
                f"{', '.join(map(str, steps))}"
            )
        shares[by_name[full]] = shares.get(by_name[full], 0.0) + weight
    return Mix(tuple(shares), tuple(shares.values()))


def _merge(saved: Saved, given: str, limits: Limits) -> Mix:
    del limits
    live = [x for x in saved.kept if x.rule is None]
    if given.isdecimal():
        count = int(given)
        if len(live) < 2:
            raise ValueError("the run keeps one checkpoint up to there: merging takes two")
        if not 2 <= count <= len(live):
            raise ValueError(f"give from 2 to {len(live)} checkpoints, as many as there are")
        return Mix(tuple(live[-count:]), (1 / count,) * count)
    shape, _, fraction = given.rpartition(":")
    if shape not in get_args(DecayShape):
        raise ValueError("give a number of checkpoints, or a decay such as linear:0.1, 1-sqrt:0.1")
    target = DecayedRate(_number("fraction", fraction), cast(DecayShape, shape))
    first = saved.step - round(target.fraction * saved.step)
    inside = [x for x in live if x.step >= first]
    if len(inside) < 2:
        raise ValueError(
            f"that decay began at step {first:,}, and {len(inside)} checkpoint was saved since: it "
            "takes several (config.checkpoint.keep_every)"
        )
    return merge(inside, target, saved.step)


def _number(name: str, given: str) -> float:
    try:
        value = float(given)
    except ValueError as error:
        raise ValueError(f"{given!r} is no number") from error
    require_positive(name, value)
    return value


def _read_one(saved: Saved, part: Kept) -> dict[str, np.ndarray]:
    """The arrays of one kept tree by name."""
    path = saved.checkpoint(part.step)
    if not path.exists():
        raise RunError(
            f"the run has deleted the checkpoint of step {part.step:,} meanwhile: choose a step "
            "that it keeps for ever, such as a multiple"
        )
    meta = checkpoint_reader.read_meta(path)
    item, prefix = ("params", "") if part.rule is None else ("averages", f"{part.label}/")
    names = [name for name in meta["checksums"][item] if name.startswith(prefix)]
    arrays = checkpoint_reader.read_arrays(path, item, dict.fromkeys(names))
    checkpoint_reader.check_checksums(path, item, checksums(arrays), meta["checksums"][item])
    return {name.removeprefix(prefix): array for name, array in arrays.items()}
