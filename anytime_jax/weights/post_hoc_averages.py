"""Post-hoc averages: weights that a run did not store, as weighted sums of weights that it stored.

All stored weights are weighted sums of the iterates theta_0 ... theta_t. The weights of such a sum
are its averaging kernel. The kernel of the live weights is 1 at t and 0 elsewhere; the kernel of an
average follows from its rule (`Rule.kernel`). Take stored weights with kernels k_i, and sum them
with coefficients x_i: the sum has the kernel sum_i x_i k_i. So the sum that is nearest to an
average with another kernel k solves a small least-squares problem:

    min_x  || sum_i x_i k_i - k ||,      sum_i x_i = 1

Growing windows have inner products in closed form, to first order. With c = f * ln 2, the kernel of
a window is c * s^(c-1) / t^c; windows with c and d that end at t1 <= t2 have the inner product
c * d / (c + d - 1) * t1^(d-1) / t2^d. This module sums kernels exactly instead, which works for
every rule and for short runs.

Sources: Karras et al. (2024), "Analyzing and Improving the Training Dynamics of Diffusion Models"
(post-hoc averages); Tian et al. (2025), "WSM: Decay-Free Learning Rate Schedule via Checkpoint
Merging" (decays).
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from anytime_jax.averaging import LIVE, Late, Rule, kernel_error
from anytime_jax.checks import is_number, require
from anytime_jax.schedules import Decay, DecayShape, constant

Times = int | np.ndarray  # a number of updates, or the time after each of them

_BINS = 4000  # long runs are binned: kernels change little from one iterate to the next
_RCOND = 1e-12  # singular values below this (relative) are numerically dependent kernels


@dataclasses.dataclass(frozen=True)
class LastFraction:
    """The mean of the last fraction, in (0, 1], of all iterates, or at least of the last iterate.

    Examples:
      >>> LastFraction(0.5).kernel(4)
      array([0. , 0. , 0. , 0.5, 0.5])
    """

    fraction: float

    def __post_init__(self) -> None:
        ok = is_number(self.fraction) and 0 < self.fraction <= 1
        require(ok, "fraction", self.fraction, "a number above 0 and up to 1")

    @property
    def label(self) -> str:
        """Label such as `last50%`."""
        return f"last{100 * self.fraction:.6g}%"

    def kernel(self, t: Times) -> np.ndarray:
        """Returns the weight of every iterate, as `Rule.kernel` does."""
        times = _times(t)
        first = self.updates_before(times)
        spans = np.diff(times, prepend=0)[first:]
        return np.append(np.zeros(first + 1), spans / spans.sum())

    def updates_before(self, t: Times) -> int:
        """Returns the number of updates before the mean starts."""
        end = int(t if isinstance(t, int | np.integer) else t[-1])
        start = end - max(1, round(self.fraction * end))
        if isinstance(t, int | np.integer):
            return start
        return min(int(np.searchsorted(t, start, "right")), len(t) - 1)


@dataclasses.dataclass(frozen=True)
class DecayedRate:
    """The weights that updates would give if the rate had decayed to 0 at the same gradients.

    Let u_s be update s, and y(s) the factor of its rate, which falls from 1 to 0. The weights
    theta_0 + sum_s y(s) * u_s are then a sum of iterates with the kernel y(s) - y(s + 1).

    Attributes:
      fraction: part of the run over which the rate decays, in (0, 1].
      shape: a linear decay has the kernel of `LastFraction`.
    """

    fraction: float
    shape: DecayShape

    def kernel(self, t: Times) -> np.ndarray:
        """Returns the weight of every iterate, as `Rule.kernel` does."""
        times = np.append(0, _times(t))
        start = int(times[LastFraction(self.fraction).updates_before(t)])
        decay = Decay(constant(1.0), start, int(times[-1]), floor=0.0, shape=self.shape)
        # Schedules count from 0: an update uses the rate at the time before it.
        factor = decay.evaluate(times)
        return np.append(0.0, factor[:-1] - factor[1:])


@dataclasses.dataclass(frozen=True)
class StoredWeights:
    """Weights stored in a checkpoint: an average, or the live weights with the label "last".

    A further iterate of the optimizer, such as "z", is stored too; it has no kernel.

    Attributes:
      rule: rule of the average, `Late` if it was added to an old run; None for the live weights and
        for iterates.
      prefix: prefix of an iterate's names in the optimizer's state; None for other weights.
    """

    step: int
    label: str
    rule: Rule | None = None
    prefix: str | None = None

    @property
    def name(self) -> str:
        """Name such as `f25@3840`."""
        return f"{self.label}@{self.step}"

    def kernel(self, t: Times) -> np.ndarray:
        """Returns the weight of every iterate, as `Rule.kernel` does; `t` may be beyond `step`."""
        times = _times(t)
        kernel = np.zeros(len(times) + 1)
        if self.rule is None:
            kernel[self.step] = 1
            return kernel
        kernel[: self.step + 1] = self.rule.kernel(times[: self.step])
        return kernel


@dataclasses.dataclass(frozen=True)
class WeightedSum:
    """A weighted sum of stored weights; its coefficients sum to 1.

    `kernel_error` compares the sum's kernel with the one that its name stands for
    (`averaging.kernel_error`). It is 0 for a sum of live weights.
    """

    parts: tuple[StoredWeights, ...]
    coefficients: tuple[float, ...] = (1.0,)
    kernel_error: float = 0.0


def sum_stored(
    parts: Sequence[StoredWeights], coefficients: Sequence[float], t: Times
) -> WeightedSum:
    """Returns a weighted sum that is named by its parts.

    The name of an average that began late stands for an average from the start of the run. An
    iterate of the optimizer has no kernel, and counts as the live weights.
    """
    error = 0.0
    if any(isinstance(part.rule, Late) for part in parts):
        named = [
            dataclasses.replace(x, rule=x.rule.rule) if isinstance(x.rule, Late) else x
            for x in parts
        ]
        kernel, target = (
            sum(c * x.kernel(t) for c, x in zip(coefficients, of, strict=True))
            for of in (parts, named)
        )
        error = kernel_error(np.asarray(kernel), np.asarray(target))
    return WeightedSum(tuple(parts), tuple(coefficients), error)


def fit_sum(
    stored: Sequence[StoredWeights],
    target: Rule | LastFraction,
    t: Times,
    max_checkpoints: int,
    tolerance: float = 0.0,
) -> WeightedSum:
    """Returns the weighted sum of stored averages whose kernel is nearest to the target's at `t`.

    `t` is a number of updates, or the list of the times after each update. Live weights are
    ignored, and so are checkpoints after `t`. Checkpoints are selected one by one: first the last
    checkpoint, then always the one that reduces the error most, until the relative kernel error is
    at most `tolerance` or there are `max_checkpoints`. Raises a ValueError if no average is stored.
    """
    times = _times(t)
    t = len(times)
    averages = [x for x in stored if x.rule is not None and x.step <= t]
    if not averages:
        raise ValueError("no average is stored to mix from")
    steps = np.array([x.step for x in averages])
    edges = _bin_edges(t, steps)
    goal = _bin(target.kernel(times), edges)
    kernels = np.stack([_bin(x.kernel(times), edges) for x in averages])
    gram, projections = kernels @ kernels.T, kernels @ goal

    def fit(selected: Sequence[int]) -> tuple[float, np.ndarray, np.ndarray]:
        rows = np.flatnonzero(np.isin(steps, selected))
        inner, onto = gram[np.ix_(rows, rows)], projections[rows]
        x = _solve(inner, onto)
        squared = 1 + (x @ inner @ x - 2 * x @ onto) / (goal @ goal)
        return float(np.sqrt(max(squared, 0.0))), rows, x

    selected: list[int] = [t if t in steps else int(steps.max())]
    error, rows, x = fit(selected)
    while error > tolerance and len(selected) < max_checkpoints:
        remaining = sorted({*steps.tolist()} - {*selected})
        fits = [fit([*selected, step]) for step in remaining]
        best = min(fits, key=lambda each: each[0], default=(error, rows, x))
        if best[0] >= error:
            break
        error, rows, x = best
        selected = sorted({int(steps[row]) for row in rows})
    return WeightedSum(tuple(averages[row] for row in rows), tuple(x.tolist()), error)


def merge_live_weights(live: Sequence[StoredWeights], target: DecayedRate, t: Times) -> WeightedSum:
    """Returns the weighted sum of live weights that approximates the kernel of a decay.

    An iterate between two checkpoints is interpolated linearly. An iterate before the first
    checkpoint is replaced by that checkpoint. `live` must be in order of steps.
    """
    goal, steps = target.kernel(t), [x.step for x in live]
    hats = [np.interp(np.arange(len(goal)), steps, row) for row in np.eye(len(live))]
    shares = [float(hat @ goal) for hat in hats]
    pairs = [(part, share) for part, share in zip(live, shares, strict=True) if share > 0]
    parts, coefficients = zip(*pairs, strict=True)
    return WeightedSum(parts, coefficients)


def sum_checkpoints(rule: Rule, steps: Sequence[int]) -> WeightedSum:
    """Returns the weighted sum of live weights in which each stands for the updates before it.

    The coefficient of a checkpoint is the sum of the rule's kernel at the last step over the
    iterates since the checkpoint before, and of the first one over all iterates so far. The kernel
    error compares the single iterates of the checkpoints with the whole kernel. Raises a
    ValueError unless the steps increase.

    Examples:
      >>> sum_checkpoints(averaging.Uniform(), [2, 3, 8]).coefficients
      (0.25, 0.125, 0.625)
    """
    require(np.all(np.diff(steps) > 0), "steps", steps, "numbers of updates, each above the last")
    target = rule.kernel(steps[-1])
    shares = np.add.reduceat(target, [0, *(step + 1 for step in steps[:-1])])
    kernel = np.zeros_like(target)
    kernel[[*steps]] = shares
    parts = tuple(StoredWeights(step, LIVE) for step in steps)
    return WeightedSum(parts, tuple(shares.tolist()), kernel_error(kernel, target))


def _times(t: Times) -> np.ndarray:
    """The time after each update; `t` is a number of updates or has these times already."""
    return np.arange(1, t + 1) if isinstance(t, int | np.integer) else np.asarray(t)


def _bin_edges(t: int, steps: np.ndarray) -> np.ndarray:
    """Returns the first iterates of bins, evenly spaced, with a new bin after every checkpoint."""
    width = max(1, -(-t // _BINS))
    return np.unique([0, *range(1, t + 1, width), *(steps + 1)[steps < t]])


def _bin(kernel: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Sums a kernel in bins; each sum is divided by the square root of the size of the bin.

    Inner products of the results are then those of kernels that are constant in each bin.
    """
    widths = np.diff(np.append(edges, len(kernel)))
    return np.add.reduceat(kernel, edges) / np.sqrt(widths)


def _solve(inner: np.ndarray, onto: np.ndarray) -> np.ndarray:
    """Returns the coefficients x, with sum 1, that minimize x.inner.x - 2 x.onto."""
    # Kernels are scaled to unit norm: otherwise long ones would be negligible beside short ones.
    scale = 1 / np.sqrt(np.diag(inner))
    n = len(onto)
    system = np.zeros((n + 1, n + 1))
    system[:n, :n] = inner * np.outer(scale, scale)
    system[n, :n] = system[:n, n] = scale
    right = np.append(onto * scale, 1.0)
    x = np.linalg.lstsq(system, right, rcond=_RCOND)[0][:n] * scale
    return x / x.sum()
