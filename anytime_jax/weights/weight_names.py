"""Names of weights on the command line: each stands for a weighted sum of what a run stores.

last, f25, ema0.999         the live weights; a stored average, by its label
x, ema, theta               a read-out of the optimizer: weights that its method evaluates
z                           a further iterate of the optimizer, stored in its state
f=35                        a growing window that is not stored, as a post-hoc average
tail:0.3                    the mean of the last 30% of the iterates, as a post-hoc average
mix:{"f25": 0.5, "last@480": 0.5}   any sum of the above; @STEP is another checkpoint, which has
                            the live weights and averages
merge:5                     the mean of the live weights of the last 5 checkpoints
merge:1-sqrt:0.1            live weights, as if the rate had decayed over the last 10%
"""

import dataclasses
from typing import cast, get_args

from anytime_jax.averaging import GrowingWindow, Rule
from anytime_jax.checkpoints.checkpoint_listing import format_steps
from anytime_jax.checks import require_positive
from anytime_jax.errors import InputError
from anytime_jax.schedules import DecayShape
from anytime_jax.storage.json_files import parse_json
from anytime_jax.weights.post_hoc_averages import (
    DecayedRate,
    LastFraction,
    StoredWeights,
    WeightedSum,
    fit_sum,
    merge_live_weights,
    sum_stored,
)
from anytime_jax.weights.saved_run import SavedRun

FORMS = 'f=35, tail:0.3, mix:{"f25": 0.5, "last@480": 0.5}, merge:5 or merge:1-sqrt:0.1'
_TOLERANCE = 0.005  # kernel error at which no further checkpoint is selected
_MAX_COEFFICIENT = 1e4  # larger coefficients leave few digits of the float32 sum
_SUM_TOLERANCE = 1e-6  # tolerance of the sum of the coefficients


@dataclasses.dataclass(frozen=True)
class SumLimits:
    """Limits of a post-hoc average: a relative kernel error and a number of checkpoints."""

    kernel_error: float = 0.05
    checkpoints: int = 4


DEFAULT_LIMITS = SumLimits()


def parse(run: SavedRun, name: str, limits: SumLimits = DEFAULT_LIMITS) -> WeightedSum:
    """Returns the weighted sum with a name (see the module's docstring); reads no array.

    Raises an InputError if there are no such weights, or if the kernel error exceeds the limit.
    """
    try:
        return _parse(run, name, limits)
    except ValueError as error:
        raise InputError(f"weights {name!r}: {error}") from error


def format_sum(weighted_sum: WeightedSum) -> str:
    """Returns the parts of a sum with their coefficients, as `+0.5 f25@480 +0.5 last@480`."""
    if weighted_sum.coefficients == (1.0,):
        return weighted_sum.parts[0].name
    pairs = zip(weighted_sum.coefficients, weighted_sum.parts, strict=True)
    return " ".join(f"{x:+.4g} {part.name}" for x, part in pairs)


def _parse(run: SavedRun, name: str, limits: SumLimits) -> WeightedSum:
    if name.startswith("f=") and name != "f=":
        rule = GrowingWindow(_positive("f", name.removeprefix("f=")))
        stored = run.weights.get(rule.label)
        if stored is None or stored.rule != rule:  # not from the start of the run
            return _fit(run, rule, limits, _window_advice(run, limits))
        name = rule.label
    stored = _stored(run)
    if name in stored:
        return stored[name]
    kind, _, argument = name.partition(":")
    match kind if argument else "":
        case "tail":
            target = LastFraction(_positive("fraction", argument))
            first = target.updates_before(run.times)
            if first == run.step - 1:
                raise ValueError("that is a single iterate: use last")
            advice = f"keep a checkpoint near step {first:,}, where the tail begins"
            return _fit(run, target, limits, advice)
        case "mix":
            return _sum(run, argument)
        case "merge":
            return _merge(run, argument)
    raise ValueError(
        f"not stored at step {run.step:,} of {run.run_dir}: choose from {', '.join(stored)}, "
        f"or {FORMS}"
    )


def _stored(run: SavedRun) -> dict[str, WeightedSum]:
    """Returns the weights that the checkpoint stores and the read-outs, as sums, by label."""
    parts = {**run.weights, **run.iterates}
    sums = {name: sum_stored((part,), (1.0,), run.times) for name, part in parts.items()}
    return {**sums, **run.readouts}


def _fit(run: SavedRun, target: Rule | LastFraction, limits: SumLimits, advice: str) -> WeightedSum:
    tolerance = min(_TOLERANCE, limits.kernel_error)
    weighted_sum = fit_sum(run.history, target, run.times, limits.checkpoints, tolerance)
    if weighted_sum.kernel_error > limits.kernel_error:
        count = len({part.step for part in weighted_sum.parts})
        raise ValueError(
            f"a kernel error of {weighted_sum.kernel_error:.2%} from the averages of {count} "
            f"checkpoint{'s' * (count > 1)}, more than {limits.kernel_error:.2%}: {advice}, or, "
            "on the command line, allow more with --max-error"
        )
    return weighted_sum


def _window_advice(run: SavedRun, limits: SumLimits) -> str:
    sums, windows = _stored(run), run.growing_windows
    near = [f for x, f in windows.items() if sums[x].kernel_error <= limits.kernel_error]
    if not near:
        return "choose a step that stores a growing window"
    stored = ", ".join(f"{f:g}" for f in near)
    return f"choose an f closer to a stored one ({stored})"


def _sum(run: SavedRun, argument: str) -> WeightedSum:
    try:
        parsed = parse_json(argument, tuple)  # a list stays one
        if not isinstance(parsed, tuple):
            raise ValueError(f"{argument} is not an object")
        pairs = [(name, float(x)) for name, x in parsed]
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError('give JSON, such as mix:{"f25": 0.5, "last@480": 0.5}') from error
    terms = dict(pairs)
    if len(terms) < len(pairs):
        raise ValueError("a name is given twice: give the sum of its coefficients")
    total = sum(terms.values())
    if not terms or not abs(total - 1) < _SUM_TOLERANCE:
        raise ValueError(f"the coefficients sum to {total:.6g}; they must sum to 1")
    if (largest := max(map(abs, terms.values()))) > _MAX_COEFFICIENT:
        raise ValueError(f"coefficient {largest:.6g} is not allowed: at most {_MAX_COEFFICIENT:g}")
    stored, earlier = _stored(run), {x.name: WeightedSum((x,)) for x in run.history}
    coefficients: dict[StoredWeights, float] = {}
    for name, x in terms.items():
        label = name.removesuffix(f"@{run.step}")
        weighted_sum = stored.get(label) or earlier.get(name)
        if weighted_sum is None:
            steps = format_steps(sorted({x.step for x in run.history}))
            raise ValueError(
                f"{name!r} is not stored; choose from {', '.join(stored)}, or from "
                f"{', '.join(run.weights)} with @STEP for one of {steps}"
            )
        for part, coefficient in zip(weighted_sum.parts, weighted_sum.coefficients, strict=True):
            coefficients[part] = coefficients.get(part, 0.0) + x * coefficient
    return sum_stored(tuple(coefficients), tuple(coefficients.values()), run.times)


def _merge(run: SavedRun, argument: str) -> WeightedSum:
    live = [x for x in run.history if x.rule is None]
    if argument.isascii() and argument.isdecimal():
        count = int(argument)
        if not 2 <= count <= len(live):
            raise ValueError(
                f"give a number from 2 to that of the checkpoints up to this step, {len(live)}"
            )
        return WeightedSum(tuple(live[-count:]), (1 / count,) * count)
    shape, _, fraction = argument.rpartition(":")
    if shape not in get_args(DecayShape):
        raise ValueError("give a number of checkpoints, or a decay such as linear:0.1, 1-sqrt:0.1")
    target = DecayedRate(_positive("fraction", fraction), cast(DecayShape, shape))
    first = LastFraction(target.fraction).updates_before(run.times)
    inside = [x for x in live if x.step >= first]
    if len(inside) < 2:
        raise ValueError(
            f"that decay begins at step {first:,}, and {len(inside)} checkpoint was saved since: "
            "it needs several (config.checkpoint.keep_every)"
        )
    return merge_live_weights(inside, target, run.times)


def _positive(name: str, text: str) -> float:
    try:
        value = float(text if text.isascii() and "_" not in text else "")
    except ValueError as error:
        raise ValueError(f"{text!r} is not a number") from error
    require_positive(name, value)
    return value
