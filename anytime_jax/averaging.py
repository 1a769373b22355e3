"""Running averages of the weights, as an Optax transform that goes last in a chain.

    optimizer = optax.chain(
        optax.adam(1e-3), average_params([GrowingWindow(25.0), Uniform()])
    )
    ...
    averages(opt_state)["f25"]          # a float32 tree shaped like the parameters

Every average follows one rule, with `theta_t` the weights after update t and t counted from 1:

    avg_t = tau_t * avg_{t-1} + (1 - tau_t) * theta_t,                avg_0 = theta_0

`tau` weighs the OLD average. A rule is a frozen dataclass that gives `1 - tau_t`, the weight of the
newest iterate, in float32 under jit or in NumPy float64.

Late in a long run an increment `(1 - tau_t) * (theta_t - avg)` is often smaller than half the
spacing of float32 numbers at avg. Rounding to nearest would drop it, every time; so the sum is
rounded stochastically, up or down with chances that make it right on average. The chances come from
a hash of the update count and the position: a run repeated or resumed rounds alike, on any layout.

Source: Section 4, "Averaging".
"""

import abc
import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeGuard, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax

from anytime_jax.checks import is_number, require, require_count, require_positive

LIVE = "last"  # the label of the weights themselves, beside those of the averages


class Rule(abc.ABC):
    """How much of the newest iterate enters an average at each update."""

    @property
    @abc.abstractmethod
    def label(self) -> str:
        """The short name under which the average is stored and reported."""

    @abc.abstractmethod
    def _newest(self, t: Any, xp: Any) -> Any:
        """`1 - tau_t` in the precision of `t`; `xp` is numpy or jax.numpy."""

    def newest_weight(self, t: jax.Array, every: int = 1) -> jax.Array:
        """Returns `1 - tau_t` in float32, for t = 1, 2, ... updates done.

        With `every` = k it is that of k updates in one, `1 - tau_{t-k+1} * ... * tau_t`.
        """
        return self._of_several(jnp.asarray(t).astype(jnp.float32), every, jnp)

    def evaluate(self, t: Any, every: int = 1) -> np.ndarray:
        """Returns what `newest_weight` does, in NumPy float64."""
        t = np.asarray(t, dtype=np.float64)
        if t.size and t.min() < every:
            first = "1" if every == 1 else f"1, and move first at {every}"
            raise ValueError(f"averages count updates from {first}; got {t.min():g}")
        return np.asarray(self._of_several(t, every, np), dtype=np.float64)

    def kernel(self, t: int, every: int = 1) -> np.ndarray:
        """Returns the weight of every iterate in the average after `t` updates.

        Args:
          t: number of updates done, 0 or more.
          every: updates from one move of the average to the next, as in `average_params`.

        Returns:
          float64 array of length t + 1 that sums to 1; entry s is the weight of theta_s. It is 0
          for iterates that the average did not see.
        """
        newest = np.concatenate([[1.0], self.evaluate(np.arange(every, t + 1, every), every)])
        with np.errstate(divide="ignore"):  # a rule may drop the past altogether: log 0
            kept = np.log1p(-newest[1:])
        survival = np.concatenate([np.cumsum(kept[::-1])[::-1], [0.0]])
        weights = np.zeros(t + 1)
        weights[::every] = newest * np.exp(survival)
        return weights

    def _of_several(self, t: Any, every: int, xp: Any) -> Any:
        if every == 1:
            return self._newest(t, xp)
        newest = self._newest(t[..., None] - xp.arange(every), xp)
        with np.errstate(divide="ignore"):
            return -xp.expm1(xp.log1p(-newest).sum(axis=-1))


@dataclasses.dataclass(frozen=True)
class GrowingWindow(Rule):
    """An exponential average whose half-life is the fraction 1/f of the run so far.

        tau_t = 2^(-f/t),        1 - tau_t = -expm1(-f * ln 2 / t)

    Attributes:
      f: half-lives in the run so far, more than 0; the window is about t/f updates wide.

    Source: Section 4, "Averaging" (f in 6.25, 12.5, 25, 50, 100).
    """

    f: float

    def __post_init__(self) -> None:
        """Checks f."""
        require_positive("f", self.f)

    @property
    def label(self) -> str:
        """`f25` for f = 25, `f6.25` for f = 6.25."""
        return f"f{_digits(self.f)}"

    def _newest(self, t: Any, xp: Any) -> Any:
        return -xp.expm1(-self.f * math.log(2) / t)


@dataclasses.dataclass(frozen=True)
class FixedDecay(Rule):
    """The usual exponential average: tau_t = decay, whatever the length of the run.

    Attributes:
      decay: weight of the old average at each update, from 0 to below 1.
    """

    decay: float

    def __post_init__(self) -> None:
        """Checks the decay."""
        ok = is_number(self.decay) and 0 <= self.decay < 1
        require(ok, "decay", self.decay, "a number from 0 to below 1")

    @property
    def label(self) -> str:
        """`ema0.999` for a decay of 0.999."""
        return f"ema{_digits(self.decay)}"

    def _newest(self, t: Any, xp: Any) -> Any:
        return xp.full_like(t, 1 - self.decay)


@dataclasses.dataclass(frozen=True)
class Uniform(Rule):
    """The plain mean of every iterate after update `start` (Polyak averaging).

        1 - tau_t = 1 / (t - start) for t > start, else 1

    The initial weights are left out. Up to `start` the average is the newest iterate.

    Attributes:
      start: number of first updates to leave out, 0 or more.
    """

    start: int = 0

    def __post_init__(self) -> None:
        """Checks the start."""
        require_count("start", self.start)

    @property
    def label(self) -> str:
        """`uniform`, or `uniform1000` for a mean that starts after update 1000."""
        return f"uniform{self.start}" if self.start else "uniform"

    def _newest(self, t: Any, xp: Any) -> Any:
        return 1 / xp.maximum(t - self.start, 1)


def tau(t: Any, f: float) -> np.ndarray:
    """Returns the paper's `tau_t = 2^(-f/t)`, the weight of the old average, in float64.

    Args:
      t: number of updates done, from 1, any shape.
      f: half-lives in the run so far, more than 0.

    Returns:
      float64 array of the shape of t.

    Source: Section 4, "Averaging".
    """
    GrowingWindow(f).evaluate(t)  # checks both
    return np.exp2(-f / np.asarray(t, dtype=np.float64))


class AverageParamsState(NamedTuple):
    """State of `average_params`.

    Attributes:
      count: int32 scalar, updates done.
      averages: a float32 tree like the parameters for each label.
    """

    count: jax.Array  # pyright: ignore[reportIncompatibleMethodOverride]
    averages: dict[str, optax.Params]


def average_params(
    rules: Iterable[Rule | float] | Mapping[str, Rule | float],
    every: int = 1,
) -> optax.GradientTransformationExtraArgs:
    """Keeps running averages of the parameters; place it last in an Optax chain.

    Updates pass through unchanged. The new parameters are what `optax.apply_updates` will make of
    them, so this must see the final updates and be given `params`. The averages are float32
    whatever the parameters' type, are sharded like them, and are never the same buffers.

    With `every` = k they move only at updates k, 2k, ... and see no iterate in between:

        avg_t = tau * avg_{t-k} + (1 - tau) * theta_t,        tau = tau_{t-k+1} * ... * tau_t

    In between they stay as they are, at most k - 1 updates old. `update` decides with `lax.cond`
    whether the averages move. A caller that knows passes `update_averages`, a Python bool that must
    be True at exactly every k-th update: then there is no condition, and where it is False the
    averages pass through untouched.

    Args:
      rules: the averages to keep: rules, with a bare number f meaning `GrowingWindow(f)`; or a
        mapping from labels of your own to rules.
      every: updates from one move of the averages to the next, 1 or more. A state goes on with
        another number: the first move after that weighs the past as if it had always been that.

    Returns:
      an Optax transform whose state holds the averages; read them with `averages(opt_state)`.

    Raises:
      ValueError: for an unknown kind of rule or a label given twice; at `init`, for parameters
        that are not floating point; at `update`, if `params` is not passed, an average is missing
        from the state, or `update_averages` is False where they move at every update.

    Source: Section 4, "Averaging".
    """
    labelled = label_rules(rules)
    require_count("every", every, least=1)

    def init(params: optax.Params) -> AverageParamsState:
        jax.tree_util.tree_map_with_path(_check_floating, params)
        # A copy for each: a shared buffer could not be donated to the train step.
        copies = {
            label: jax.tree.map(lambda p: jnp.array(p, jnp.float32, copy=True), params)
            for label in labelled
        }
        return AverageParamsState(jnp.zeros((), jnp.int32), copies)

    def update(
        updates: optax.Updates,
        state: Any,
        params: optax.Params | None = None,
        *,
        update_averages: bool | None = None,
        **unused: Any,
    ) -> tuple[optax.Updates, AverageParamsState]:
        del unused
        if params is None:
            raise ValueError("average_params needs the parameters: call update(..., params=params)")
        if every == 1:
            require(
                update_averages is not False,
                "update_averages",
                update_averages,
                "True or None where every = 1",
            )
        count = jnp.asarray(optax.safe_increment(state.count))

        def move() -> dict[str, optax.Params]:
            new_params = optax.apply_updates(params, updates)
            weights = {label: rule.newest_weight(count, every) for label, rule in labelled.items()}
            if missing := ", ".join(sorted(set(labelled) - set(state.averages))):
                raise ValueError(
                    f"the state has no average {missing}, only {', '.join(state.averages)}: put in "
                    "a float32 copy of the parameters with replace_averages"
                )
            return {
                label: _move(state.averages[label], new_params, newest, count)
                for label, newest in weights.items()
            }

        if every > 1 and update_averages is None:
            moved = jax.lax.cond(count % every == 0, move, lambda: state.averages)
        else:
            moved = state.averages if update_averages is False else move()
        return updates, AverageParamsState(count, moved)

    return optax.GradientTransformationExtraArgs(init, update)


def label_rules(rules: Iterable[Rule | float] | Mapping[str, Rule | float]) -> dict[str, Rule]:
    """Returns the rules by label, a bare number f standing for `GrowingWindow(f)`.

    Raises:
      ValueError: for something that is not a rule, or a label that is given twice or reserved.
    """
    named: list[tuple[Any, Any]]
    if isinstance(rules, Mapping):
        named = list(cast(Mapping[str, Any], rules).items())
    else:
        named = [(None, rule) for rule in rules]
    labelled: dict[str, Rule] = {}
    for name, given in named:
        rule = given if isinstance(given, Rule) else _growing(given)
        label = rule.label if name is None else name
        require(isinstance(label, str) and bool(label), "label", label, "a word")
        if label == LIVE or label in labelled:
            raise ValueError(f"the label {label!r} is taken: every average needs its own")
        labelled[label] = rule
    return labelled


def label_order(label: str) -> tuple[str, float]:
    """Returns a sort key that puts labels of one kind in the order of their numbers."""
    kind = label.rstrip("0123456789.")
    number = label.removeprefix(kind).strip(".")
    return kind, float(number) if number.count(".") < 2 and number else 0.0


def averages(opt_state: optax.OptState) -> dict[str, Any]:
    """Returns the averages kept by `average_params`, by label.

    Args:
      opt_state: the state of an optimizer that has `average_params` somewhere in it.

    Returns:
      a float32 tree like the parameters for each label.

    Raises:
      ValueError: if the state holds no `average_params`, or more than one.
    """
    return find_state(opt_state).averages


def find_state(opt_state: optax.OptState) -> AverageParamsState:
    """Returns the one `AverageParamsState` inside an optimizer's state."""
    found = [node for node in jax.tree.leaves(opt_state, is_leaf=_is_ours) if _is_ours(node)]
    if len(found) != 1:
        raise ValueError(
            f"the optimizer state holds {len(found)} average_params transforms; it must hold one"
        )
    return found[0]


def replace_averages(opt_state: optax.OptState, new: Mapping[str, optax.Params]) -> optax.OptState:
    """Returns the optimizer's state with its averages exchanged for `new`."""
    find_state(opt_state)

    def exchange(node: Any) -> Any:
        return node._replace(averages=dict(new)) if _is_ours(node) else node

    return jax.tree.map(exchange, opt_state, is_leaf=_is_ours)


def _is_ours(node: Any) -> TypeGuard[AverageParamsState]:
    return isinstance(node, AverageParamsState)


def _move(average: Any, params: Any, newest: jax.Array, count: jax.Array) -> Any:
    def one(avg: jax.Array, theta: jax.Array) -> jax.Array:
        increment = newest * (theta.astype(jnp.float32) - avg)
        # A dither of half a spacing either way before rounding to nearest is stochastic rounding.
        dither = _spacing(avg) * _uniform(avg.shape, count)
        moved = jnp.where(increment == 0, avg, avg + (increment + dither))
        return jnp.where(newest == 1, theta.astype(jnp.float32), moved)

    return jax.tree.map(one, average, params)


def _spacing(x: jax.Array) -> jax.Array:
    """The distance between neighbouring float32 numbers at x: its power of two, times 2^-23."""
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32) & jnp.uint32(0x7F800000)
    return jax.lax.bitcast_convert_type(bits, jnp.float32) * jnp.float32(2.0**-23)


def _uniform(shape: tuple[int, ...], count: jax.Array) -> jax.Array:
    """Numbers spread evenly over [-1/2, 1/2): a hash of the position and the update count."""
    bits = count.astype(jnp.uint32) * jnp.uint32(0x9E3779B9)
    for axis, size in enumerate(shape):
        bits = bits * jnp.uint32(size | 1)
        bits += jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
    for multiplier in (0x21F0AAAD, 0x735A2D97):
        bits = (bits ^ (bits >> 16)) * jnp.uint32(multiplier)
    return (bits >> 8).astype(jnp.float32) * jnp.float32(2.0**-24) - 0.5


def _digits(number: float) -> str:
    """All digits of a number, without an exponent: equal labels mean equal rules."""
    return np.format_float_positional(number, trim="-")


def _growing(f: Any) -> GrowingWindow:
    if not is_number(f):
        raise ValueError(
            f"{f!r} is not an averaging rule: give a number f, GrowingWindow(f), "
            "FixedDecay(decay) or Uniform()"
        )
    return GrowingWindow(float(f))


def _check_floating(path: Any, leaf: Any) -> None:
    if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
        raise ValueError(
            f"average_params averages floating-point leaves; {jax.tree_util.keystr(path)} is "
            f"{jnp.result_type(leaf)}. Keep it out with optax.masked"
        )
