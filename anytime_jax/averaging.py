"""Running averages of the weights, as an Optax transform that goes last in a chain.

    >>> optimizer = optax.chain(optax.adam(1e-3), averaging.average_params([25.0]))
    >>> opt_state = optimizer.init({"w": jnp.zeros(3)})
    >>> averaging.averages(opt_state)["f25"]  # float32, shaped like the parameters
    {'w': Array([0., 0., 0.], dtype=float32)}

All averages follow one recursion, with `theta_t` the weights after update t = 1, 2, ...:

    avg_t = tau_t * avg_{t-1} + (1 - tau_t) * theta_t,                avg_0 = theta_0

`tau_t` is the weight of the OLD average, and `1 - tau_t` that of the newest iterate, which a rule
(a frozen dataclass) defines. (The paper writes wbar_{t+1} for avg_t.)

The new average is the old one plus the increment `(1 - tau_t) * (theta_t - avg)`. Late in a long
run the increment is often smaller than half the spacing of float32 numbers at avg. So the sum is
rounded stochastically (`rounding.py`), and its expectation is exact.

Source: Section 4, "Averaging".
"""

import abc
import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
import optax

from anytime_jax import rounding
from anytime_jax.checks import (
    conform_to_types,
    is_number,
    read_times,
    require,
    require_count,
    require_positive,
)
from anytime_jax.errors import format_value

LIVE = "last"  # label of the live weights, where averages have labels
_LONGEST_KERNEL = 10**8  # updates; an array has a number for each
_LONGEST_SPAN = 10**6


class Rule(abc.ABC):
    """The weight of the newest iterate in an average, as a function of the number of updates.

    Examples:
      >>> averaging.Uniform().kernel(4)
      array([0.  , 0.25, 0.25, 0.25, 0.25])
    """

    def __post_init__(self) -> None:
        """Converts the fields; a `__post_init__` of a subclass calls this one first."""
        conform_to_types(self)

    @property
    @abc.abstractmethod
    def label(self) -> str:
        """Name under which the average is stored and reported."""

    @abc.abstractmethod
    def newest(self, t: Any, xp: Any) -> Any:
        """Returns `1 - tau_t` of integers t >= 1, as floats; `xp` is numpy or jax.numpy."""

    def newest_weight(self, t: Any, span: int = 1) -> jax.Array:
        """Returns `1 - tau_t` in float32, for t = 1, 2, ...

        An update may count as `span` updates, of which t is the last; it multiplies their taus:
        `1 - tau_{t-span+1} * ... * tau_t`. The smallest t is then `span`. Below it, a concrete t
        raises an error and a traced t gives NaN.

        Examples:
          >>> averaging.Uniform().newest_weight(4), averaging.Uniform().newest_weight(4, span=2)
          (Array(0.25, dtype=float32), Array(0.5, dtype=float32))
        """
        _check_span(span)
        if not isinstance(t, jax.core.Tracer):
            t = jnp.asarray(read_times(t, span), jnp.int32)
        require(jnp.issubdtype(t.dtype, jnp.integer), "time", t.dtype, "a whole number")
        newest = self._newest_of(t, span, jnp).astype(jnp.float32)
        return jnp.where(t < span, jnp.nan, newest)

    def evaluate(self, t: Any, span: int | np.ndarray = 1) -> np.ndarray:
        """Returns `newest_weight` in NumPy float64; `span` may be an array of the shape of t."""
        if isinstance(span, np.ndarray):
            newest = np.empty(span.shape)
            for one in np.unique(span):
                newest[span == one] = self.evaluate(t[span == one], int(one))
            return newest
        _check_span(span)
        newest = np.asarray(self._newest_of(read_times(t, span), span, np), dtype=np.float64)
        ok = np.all((newest >= 0) & (newest <= 1))
        require(ok, f"newest of {type(self).__name__}", newest, "from 0 to 1")
        return newest

    def kernel(self, t: int | Sequence[int] | np.ndarray) -> np.ndarray:
        """Returns the averaging kernel after `t` updates: the weights of theta_0 .. theta_t.

        The kernel is float64, one number more than there are updates, and sums to 1. If some
        updates count as several, `t` is the list of the times after each update.

        Examples:
          Two updates that count once, and one that counts twice:

          >>> averaging.Uniform().kernel([1, 2, 4])
          array([0.  , 0.25, 0.25, 0.5 ])
        """
        if isinstance(t, int | np.integer):
            require_count("t", t)
            require(t <= _LONGEST_KERNEL, "t", t, f"at most {_LONGEST_KERNEL:,}")
            t = np.arange(1, t + 1)
        times = read_times(t, least=1)
        spans = np.diff(times, prepend=0)
        require(times.ndim == 1 and np.all(spans > 0), "t", t, "times, each above the last")
        newest = np.ones(len(times) + 1)
        newest[1:] = self.evaluate(times, spans)
        with np.errstate(divide="ignore"):  # log 0, where a rule drops the past altogether
            log_old = np.log1p(-newest[1:])
        survival = np.concatenate([np.cumsum(log_old[::-1])[::-1], [0.0]])
        return newest * np.exp(survival)

    def kernel_error(self, t: int | Sequence[int] | np.ndarray) -> float:
        """Returns the `kernel_error` of the average against the one that its label stands for."""
        return 0.0

    def _newest_of(self, t: Any, span: int, xp: Any) -> Any:
        if span == 1:
            return xp.broadcast_to(self.newest(t, xp), xp.shape(t))
        newest = self.newest(t[..., None] - xp.arange(span), xp)
        with np.errstate(divide="ignore"):
            return -xp.expm1(xp.log1p(-newest).sum(axis=-1))


def _check_span(span: Any) -> None:
    require_count("span", span, least=1)
    require(span <= _LONGEST_SPAN, "span", span, f"at most {_LONGEST_SPAN:,} updates")


@dataclasses.dataclass(frozen=True)
class GrowingWindow(Rule):
    """Exponential average with a window that grows with the run.

    At update t the half-life is t/f updates, the fraction 1/f of the run so far.

        tau_t = 2^(-f/t),        1 - tau_t = -expm1(-f * ln 2 / t)

    Examples:
      >>> rule = averaging.GrowingWindow(25.0)
      >>> rule.label, float(rule.evaluate(25))
      ('f25', 0.5)

    Source: Section 4, "Averaging" (f in 6.25, 12.5, 25, 50, 100).
    """

    f: float

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("f", self.f)

    @property
    def label(self) -> str:
        """`f25` for f = 25, `f6.25` for f = 6.25."""
        return f"f{_digits(self.f)}"

    def newest(self, t: Any, xp: Any) -> Any:
        """Returns `1 - 2^(-f/t)`."""
        return -xp.expm1(-self.f * math.log(2) / t)


@dataclasses.dataclass(frozen=True)
class FixedDecay(Rule):
    """The usual exponential average: tau_t = decay, from 0 to below 1, at every t.

    Examples:
      >>> averaging.FixedDecay(0.5).kernel(3)
      array([0.125, 0.125, 0.25 , 0.5  ])
    """

    decay: float

    def __post_init__(self) -> None:
        super().__post_init__()
        ok = is_number(self.decay) and 0 <= self.decay < 1
        require(ok, "decay", self.decay, "a number from 0 to below 1")

    @property
    def label(self) -> str:
        """`ema0.999` for a decay of 0.999."""
        return f"ema{_digits(self.decay)}"

    def newest(self, t: Any, xp: Any) -> Any:
        """Returns `1 - decay`."""
        return xp.full_like(t, 1 - self.decay, dtype=float)


@dataclasses.dataclass(frozen=True)
class Uniform(Rule):
    """The plain mean of all iterates after update `start` (Polyak averaging).

        1 - tau_t = 1 / (t - start) for t > start, else 1

    Iterates up to `start` are left out, the initial weights among them. Until then the average is
    the newest iterate.

    Examples:
      >>> averaging.Uniform(start=2).kernel(4)
      array([0. , 0. , 0. , 0.5, 0.5])
    """

    start: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("start", self.start)

    @property
    def label(self) -> str:
        """`uniform`, or `uniform1000` for a mean that starts after update 1000."""
        return f"uniform{self.start}" if self.start else "uniform"

    def newest(self, t: Any, xp: Any) -> Any:
        """Returns `1 / (t - start)`, and 1 up to `start`."""
        return 1 / xp.maximum(t - self.start, 1)


@dataclasses.dataclass(frozen=True)
class Late(Rule):
    """An average that was added to an old run, and started from the weights at time `since`.

    Its label is that of `rule`, but all iterates up to `since` are replaced by the last of them.

    Examples:
      >>> late = averaging.Late(averaging.Uniform(), since=2)
      >>> late.kernel(4), averaging.Uniform().kernel(4)
      (array([0.  , 0.  , 0.5 , 0.25, 0.25]), array([0.  , 0.25, 0.25, 0.25, 0.25]))
      >>> round(late.kernel_error(4), 3)
      0.707
    """

    rule: Rule
    since: int

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("since", self.since)

    @property
    def label(self) -> str:
        """The label of the rule."""
        return self.rule.label

    def newest(self, t: Any, xp: Any) -> Any:
        """Returns the rule's weight, and 1 up to `since`."""
        return xp.where(t <= self.since, 1.0, self.rule.newest(t, xp))

    def kernel_error(self, t: int | Sequence[int] | np.ndarray) -> float:
        """Returns the `kernel_error` against the rule's kernel."""
        return kernel_error(self.kernel(t), self.rule.kernel(t))


def kernel_error(kernel: np.ndarray, target: np.ndarray) -> float:
    """Returns the norm of a kernel minus a target kernel, divided by the norm of the target.

    Examples:
      >>> averaging.kernel_error(np.array([0, 0, 1]), np.array([0, 1, 1]))
      0.7071067811865475
    """
    return float(np.linalg.norm(kernel - target) / np.linalg.norm(target))


def tau(t: Any, f: float) -> np.ndarray:
    """Returns the paper's `tau_t = 2^(-f/t)` in float64, for t = 1, 2, ... of any shape.

    Examples:
      >>> averaging.tau([5, 10, 25], f=10.0)
      array([0.25      , 0.5       , 0.75785828])
    """
    GrowingWindow(f).evaluate(t)  # raises for a t below 1 and a bad f
    return np.exp2(-f / np.asarray(t, dtype=np.float64))


class AverageParamsState(NamedTuple):
    """State of `average_params`: the number of updates done, and a float32 tree for each label.

    Examples:
      >>> averaging.average_params([25.0]).init(jnp.ones(2)).averages
      {'f25': Array([1., 1.], dtype=float32)}
    """

    count: jax.Array  # pyright: ignore[reportIncompatibleMethodOverride]
    averages: dict[str, optax.Params]


def average_params(
    rules: Iterable[Rule | float] | Mapping[str, Rule | float],
) -> optax.GradientTransformationExtraArgs:
    """Keeps running averages of the parameters, for `averages` to read; goes last in a chain.

    Updates pass through unchanged. The transform averages the parameters that `optax.apply_updates`
    will return, so it must see the final updates and needs `params`. The averages are float32,
    whatever the type of the parameters. They are sharded like the parameters, and never share a
    buffer with them.

    The t of the rules is the number of updates, unless `update` is called with `time`, an int32
    scalar. The argument `span`, a static int, is then how much this update adds to `time`. In this
    way a run whose batch grows counts tokens, in units of its first batch.

    Args:
      rules: the averages to keep. A number f stands for `GrowingWindow(f)`; a mapping gives labels
        of your own, and may be empty.

    Raises:
      ValueError: if there is no rule, an unknown rule or a repeated label. `init` raises it for
        parameters that are not floating point. `update` raises it without `params`, and for a state
        that lacks an average or has arrays of other shapes.

    Examples:
      >>> optimizer = optax.chain(optax.sgd(0.5), averaging.average_params([averaging.Uniform()]))
      >>> params = jnp.array(8.0)
      >>> opt_state = optimizer.init(params)
      >>> for _ in range(2):
      ...     updates, opt_state = optimizer.update(params, opt_state, params)
      ...     params = optax.apply_updates(params, updates)
      ...     print(params, averaging.averages(opt_state)["uniform"])
      4.0 4.0
      2.0 3.0
    """
    labeled = label_rules(rules)
    ok = labeled or isinstance(rules, Mapping)
    require(ok, "rules", rules, "averages such as [25.0]; or {} to keep none")

    def init(params: optax.Params) -> AverageParamsState:
        jax.tree_util.tree_map_with_path(_require_floating, params)

        def copy() -> optax.Params:  # a shared buffer could not be donated to the train step
            return jax.tree.map(lambda p: jnp.array(p, jnp.float32, copy=True), params)

        return AverageParamsState(jnp.zeros((), jnp.int32), {label: copy() for label in labeled})

    @jax.named_scope("averages")
    def update(updates, state, params=None, *, time=None, span=1, **_):
        if params is None:
            raise ValueError("average_params needs the parameters: call update(..., params=params)")
        if missing := ", ".join(sorted(set(labeled) - set(state.averages))):
            raise ValueError(
                f"the state has no average {missing}, only {', '.join(state.averages)}: add a "
                "float32 copy of the parameters with replace_averages"
            )
        count = jnp.asarray(optax.safe_increment(state.count))
        new_params = optax.apply_updates(params, updates)
        t = count if time is None else time
        newest = {label: rule.newest_weight(t, span) for label, rule in labeled.items()}
        new = {
            label: _move(state.averages[label], new_params, weight, count)
            for label, weight in newest.items()
        }
        return updates, AverageParamsState(count, new)

    return optax.GradientTransformationExtraArgs(init, update)


def label_rules(rules: Iterable[Rule | float] | Mapping[str, Rule | float]) -> dict[str, Rule]:
    """Returns the rules by label; a number f stands for `GrowingWindow(f)`.

    Raises:
      ValueError: for something that is not a rule, or a label that is repeated or reserved.

    Examples:
      >>> averaging.label_rules([25.0, averaging.Uniform()])
      {'f25': GrowingWindow(f=25.0), 'uniform': Uniform(start=0)}
    """
    is_list = isinstance(rules, Iterable) and not isinstance(rules, str)
    require(is_list, "rules", rules, "a list of averages, such as [25.0] or [Uniform()]")
    labeled: dict[str, Rule] = {}
    pairs = rules.items() if isinstance(rules, Mapping) else ((None, rule) for rule in rules)
    for label, rule in cast(Iterable[tuple[Any, Any]], pairs):
        if not isinstance(rule, Rule):
            allowed = "a number f, GrowingWindow(f), FixedDecay(decay) or Uniform()"
            require(is_number(rule), "averaging rule", rule, allowed)
            rule = GrowingWindow(float(rule))
        label = rule.label if label is None else label
        require(isinstance(label, str) and bool(label), "label", label, "a word")
        if label == LIVE or label in labeled:
            raise ValueError(f"the label {label!r} is taken: every average needs its own")
        labeled[label] = rule
    return labeled


def parse_rule(value: Any) -> Rule:
    """Returns the rule of a label; a number f stands for `GrowingWindow(f)`.

    Raises a ValueError, which lists the forms of labels, for anything else.

    Examples:
      >>> averaging.parse_rule("ema0.999"), averaging.parse_rule("uniform1000")
      (FixedDecay(decay=0.999), Uniform(start=1000))
    """
    if isinstance(value, int | float) and is_number(value):
        return GrowingWindow(float(value))
    form = r"(f|ema|uniform)([0-9]{0,30}\.?[0-9]{0,30})"
    match = re.fullmatch(form, value) if isinstance(value, str) else None
    kind, number = match.groups() if match else ("", "")
    if kind == "uniform" and "." not in number:
        return Uniform(int(number or 0))
    if kind in ("f", "ema") and number.strip("."):
        return (GrowingWindow if kind == "f" else FixedDecay)(float(number))
    raise ValueError(
        f"{format_value(value)} is not an average: give one of the forms "
        '"f25", "ema0.999", "uniform", "uniform1000"'
    )


def is_label(name: str) -> bool:
    """Returns whether a name is the label of a rule.

    Examples:
      >>> averaging.is_label("f25"), averaging.is_label("last")
      (True, False)
    """
    try:
        parse_rule(name)
    except ValueError:
        return False
    return True


def label_order(label: str) -> tuple[str, float]:
    """Returns a sort key that orders labels of one kind by their numbers.

    Examples:
      >>> sorted(["uniform", "f25", "f6.25", "ema0.9"], key=averaging.label_order)
      ['ema0.9', 'f6.25', 'f25', 'uniform']
    """
    kind = label.rstrip("0123456789.")
    number = label.removeprefix(kind).strip(".")
    return kind, float(number) if number.count(".") < 2 and number else 0.0


def averages(opt_state: optax.OptState) -> dict[str, Any]:
    """Returns the averages in an optimizer's state, by label: float32 trees like the parameters.

    Raises:
      ValueError: if the state holds no `average_params`, or more than one.

    Examples:
      >>> optimizer = optax.chain(optax.adam(0.1), averaging.average_params({"slow": 6.25}))
      >>> averaging.averages(optimizer.init(jnp.ones(2)))
      {'slow': Array([1., 1.], dtype=float32)}
    """
    return find_state(opt_state).averages


def find_state(opt_state: optax.OptState) -> AverageParamsState:
    """Returns the one `AverageParamsState` inside an optimizer's state.

    Examples:
      >>> optimizer = optax.chain(optax.adam(0.1), averaging.average_params([25.0]))
      >>> int(averaging.find_state(optimizer.init(jnp.ones(2))).count)
      0
    """
    states = find_nodes(opt_state, _is_state)
    if len(states) != 1:
        raise ValueError(
            f"the optimizer state holds {len(states)} average_params transforms; it must hold one"
        )
    return states[0]


def find_nodes(opt_state: optax.OptState, is_node: Callable[[Any], bool]) -> list[Any]:
    """Returns the nodes of an optimizer's state for which a condition is true.

    Examples:
      >>> state = optax.adam(0.1).init(jnp.ones(2))
      >>> [x.count for x in averaging.find_nodes(state, lambda x: hasattr(x, "mu"))]
      [Array(0, dtype=int32)]
    """
    return [node for node in jax.tree.leaves(opt_state, is_leaf=is_node) if is_node(node)]


def replace_averages(opt_state: optax.OptState, new: Mapping[str, optax.Params]) -> optax.OptState:
    """Returns the optimizer's state with the averages `new` in place of those that it has.

    Examples:
      >>> state = averaging.average_params([25.0]).init(jnp.ones(2))
      >>> averaging.averages(averaging.replace_averages(state, {"f50": jnp.zeros(2)}))
      {'f50': Array([0., 0.], dtype=float32)}
    """
    require(isinstance(new, Mapping), "new", new, "averages by label")
    state = find_state(opt_state)._replace(averages=dict(new))
    return jax.tree.map(
        lambda node: state if _is_state(node) else node, opt_state, is_leaf=_is_state
    )


def _is_state(node: Any) -> bool:
    return isinstance(node, AverageParamsState)


def _move(average: Any, params: Any, newest: jax.Array, count: jax.Array) -> Any:
    def one(path: Any, avg: jax.Array, theta: jax.Array) -> jax.Array:
        if jnp.shape(avg) != theta.shape:  # it would be broadcast
            name = f"params{jax.tree_util.keystr(path)}"
            raise ValueError(
                f"the average of {name} has the shape {jnp.shape(avg)}, and {name} has "
                f"{theta.shape}: use the state that init made of these parameters"
            )
        is_bfloat16 = theta.dtype == jnp.bfloat16
        theta = theta.astype(jnp.float32)
        if is_bfloat16:  # a compiler may leave out the rounding of what the caller will have
            theta = jax.lax.reduce_precision(theta, exponent_bits=8, mantissa_bits=7)
        increment = newest * (theta - avg)
        moved = rounding.round_sum(avg, increment, rounding.random_uniform(avg.shape, count))
        return jnp.where(newest == 1, theta, moved)

    if jax.tree.structure(average) != jax.tree.structure(params):
        raise ValueError(
            "the averages have other names than the parameters: use the state that init made of "
            "these parameters"
        )
    return jax.tree_util.tree_map_with_path(one, average, params)


def _digits(number: float) -> str:
    """All digits of a number, without an exponent: different rules get different labels."""
    return np.format_float_positional(number, trim="-")


def _require_floating(path: Any, leaf: Any) -> None:
    if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
        raise ValueError(
            f"average_params averages floating-point leaves; {jax.tree_util.keystr(path)} is "
            f"{jnp.result_type(leaf)}. Keep it out with optax.masked"
        )
