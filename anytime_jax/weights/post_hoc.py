"""Weights that a run did not keep, mixed from those it did.

Whatever a run keeps is a weighted sum of its iterates theta_0 ... theta_t: the live weights put all
weight on theta_t, an average spreads it as its rule says (`Rule.kernel`). The weights over the
iterates are the kernel. A mix of kept trees has the same mix of kernels, so for a kernel k that was
not kept the nearest mix is a small least-squares problem:

    min_x  || sum_i x_i k_i - k ||,      sum_i x_i = 1

To first order the kernel of a growing window is a power, c * s^(c-1) / t^c with c = f * ln 2, and
two of them that end at t1 <= t2 have the inner product c * d / (c + d - 1) * t1^(d-1) / t2^d. Here
kernels are summed as the rules make them, which is right for every rule and for short runs too.

Source: the post-hoc averages of Karras et al. (2024), "Analyzing and Improving the Training
Dynamics of Diffusion Models"; for decays, Tian et al. (2025), "WSM: Decay-Free Learning Rate
Schedule via Checkpoint Merging".
"""

import dataclasses
from collections.abc import Sequence
from typing import Protocol, get_args

import numpy as np

from anytime_jax.averaging import Rule
from anytime_jax.checks import is_number, require, require_choice
from anytime_jax.schedules import Decay, DecayShape, constant

_BINS = 4000  # of iterates, in a long run: kernels change little from one to the next
_LEAST_SINGULAR = 1e-12  # of the inner products, relative: below it two kernels are one


class Target(Protocol):
    """A kernel to imitate. The growing windows of `averaging` are targets too."""

    def kernel(self, t: int) -> np.ndarray:
        """Returns the weight of every iterate after `t` updates, float64[t + 1] that sums to 1."""
        ...


@dataclasses.dataclass(frozen=True)
class LastFraction:
    """The mean of the last fraction of all iterates.

    Attributes:
      fraction: part of the updates so far that is averaged, above 0 and up to 1; at least one.
    """

    fraction: float

    def __post_init__(self) -> None:
        """Checks the fraction."""
        _require_part("fraction", self.fraction)

    @property
    def label(self) -> str:
        """`last50%` for a fraction of 1/2."""
        return f"last{100 * self.fraction:.6g}%"

    def kernel(self, t: int) -> np.ndarray:
        """Returns the weight of every iterate after `t` updates, float64[t + 1]."""
        first = self.before(t) + 1
        return np.where(np.arange(t + 1) < first, 0.0, 1 / (t + 1 - first))

    def before(self, t: int) -> int:
        """Returns the number of updates before the mean that ends with update `t`."""
        return t - max(1, round(self.fraction * t))


@dataclasses.dataclass(frozen=True)
class DecayedRate:
    """What the weights would be had the learning rate decayed to 0, the gradients being the same.

    Update s of a run then counts y(s) times, y falling from 1 to 0, and theta_0 + sum_s y(s) * u_s
    is a sum of iterates with the weights y(s) - y(s + 1).

    Attributes:
      fraction: of the run so far in which the rate decays, above 0 and up to 1.
      shape: of the decay: "linear" (the kernel of `LastFraction`), "1-sqrt" or "cosine".
    """

    fraction: float
    shape: DecayShape

    def __post_init__(self) -> None:
        """Checks both."""
        _require_part("fraction", self.fraction)
        require_choice("shape", self.shape, get_args(DecayShape))

    def kernel(self, t: int) -> np.ndarray:
        """Returns the weight of every iterate after `t` updates, float64[t + 1]."""
        start = t - max(1, round(self.fraction * t))
        decay = Decay(constant(1.0), start, horizon=t, floor=0.0, shape=self.shape)
        # The schedule counts from 0: update s sees s - 1.
        factor = decay.evaluate(np.arange(t + 1))
        return np.append(0.0, factor[:-1] - factor[1:])


@dataclasses.dataclass(frozen=True)
class Kept:
    """A tree of weights that lies in a checkpoint.

    Attributes:
      step: updates done at the checkpoint.
      label: of the average, or "last".
      rule: of the average; None for the live weights.
      every: updates from one move of the average to the next, now and always.
      since: the update from whose weights the average started.
    """

    step: int
    label: str
    rule: Rule | None = None
    every: int = 1
    since: int = 0

    @property
    def name(self) -> str:
        """`f25@3840`."""
        return f"{self.label}@{self.step}"

    def kernel(self, t: int) -> np.ndarray:
        """Returns the weight of every iterate up to `t`, float64[t + 1]; `t` is at least `step`."""
        kernel = np.zeros(t + 1)
        if self.rule is None:
            kernel[self.step] = 1
            return kernel
        kernel[: self.step + 1] = self.rule.kernel(self.step, self.every)
        # The past of an average that was added to an old run is one iterate.
        kernel[self.since] = kernel[: self.since + 1].sum()
        kernel[: self.since] = 0
        return kernel


@dataclasses.dataclass(frozen=True)
class Mix:
    """A weighted sum of kept trees.

    Attributes:
      parts: what is summed.
      coefficients: the weight of each, float64; they sum to 1.
      error: norm of the difference to the kernel that was asked for, relative to its own; 0 where
        no other kernel was asked for.
    """

    parts: tuple[Kept, ...]
    coefficients: tuple[float, ...]
    error: float = 0.0


def best_mix(kept: Sequence[Kept], target: Target, t: int, most: int, enough: float = 0.0) -> Mix:
    """Returns the mix of averages whose kernel is nearest to another kernel.

    Checkpoints are taken one by one, each time the one that helps most, that of `t` first.

    Args:
      kept: what there is, at `t` or before it; live weights are passed over.
      target: the kernel wanted.
      t: updates done where it ends.
      most: number of checkpoints to take at most.
      enough: error at which no further one is taken.

    Raises:
      ValueError: if there is no average to mix.
    """
    averages = [x for x in kept if x.rule is not None and x.step <= t]
    if not averages:
        raise ValueError("no average is kept: there is nothing to mix")
    steps = np.array([x.step for x in averages])
    edges = _edges(t, steps, max(x.every for x in averages))
    wanted = _binned(target.kernel(t), edges)
    kernels = np.stack([_binned(x.kernel(t), edges) for x in averages])
    inner, onto = kernels @ kernels.T, kernels @ wanted

    def solve(chosen: Sequence[int]) -> tuple[float, np.ndarray, np.ndarray]:
        rows = np.flatnonzero(np.isin(steps, chosen))
        x = _solve(inner[np.ix_(rows, rows)], onto[rows])
        left = x @ inner[np.ix_(rows, rows)] @ x - 2 * x @ onto[rows]
        return float(np.sqrt(max(1 + left / (wanted @ wanted), 0.0))), rows, x

    chosen: list[int] = [t if t in steps else int(steps.max())]
    error, rows, x = solve(chosen)
    while error > enough and len(chosen) < most:
        further = [solve([*chosen, int(s)]) for s in sorted({*steps.tolist()} - {*chosen})]
        better = min(further, key=lambda found: found[0], default=(error, rows, x))
        if better[0] >= error:
            break
        error, rows, x = better
        chosen = sorted({int(steps[row]) for row in rows})
    return Mix(tuple(averages[row] for row in rows), tuple(x.tolist()), error)


def merge(live: Sequence[Kept], target: Target, t: int) -> Mix:
    """Returns the mix of live weights that stands for a kernel over all iterates.

    An iterate between two checkpoints is taken to lie on the line between them, one before the
    first checkpoint to be that one.

    Args:
      live: the live weights of some checkpoints, in order.
      target: the kernel wanted.
      t: updates done where it ends.
    """
    wanted, steps = target.kernel(t), [x.step for x in live]
    hats = [np.interp(np.arange(t + 1), steps, row) for row in np.eye(len(live))]
    shares = [float(hat @ wanted) for hat in hats]
    pairs = [(part, share) for part, share in zip(live, shares, strict=True) if share > 0]
    parts, coefficients = zip(*pairs, strict=True)
    return Mix(parts, coefficients)


def _edges(t: int, steps: np.ndarray, every: int) -> np.ndarray:
    """Where bins of iterates begin: evenly, and after every checkpoint, where kernels end.

    An average that moves at every k-th update weighs one iterate in k: a bin has as many or more.
    """
    width = every * max(1, -(-t // (_BINS * every)))
    return np.unique([0, *range(1, t + 1, width), *(steps + 1)[steps < t]])


def _binned(kernel: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The kernel as if it were even in each bin, at unit length: inner products stay the same."""
    widths = np.diff(np.append(edges, len(kernel)))
    return np.add.reduceat(kernel, edges) / np.sqrt(widths)


def _solve(inner: np.ndarray, onto: np.ndarray) -> np.ndarray:
    """The coefficients x, of sum 1, that minimise x.inner.x - 2 x.onto."""
    # A scale for each kernel, or the long ones would drown the short ones.
    scale = 1 / np.sqrt(np.diag(inner))
    n = len(onto)
    system = np.zeros((n + 1, n + 1))
    system[:n, :n] = inner * np.outer(scale, scale)
    system[n, :n] = system[:n, n] = scale
    right = np.append(onto * scale, 1.0)
    found = np.linalg.lstsq(system, right, rcond=_LEAST_SINGULAR)[0][:n] * scale
    return found / found.sum()


def _require_part(name: str, value: float) -> None:
    require(is_number(value) and 0 < value <= 1, name, value, "a number above 0 and up to 1")
