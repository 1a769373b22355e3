r"""Exact excess risk of SGD, for any schedule, batch and average, at any checkpoints.

    0.5 * E ||w - w*||_H^2,        w_t = w_{t-1} - eta_t * x_t (<x_t, w_{t-1}> - y_t),  w_0 = 0

Update t takes the mean of B_t samples. In the eigenbasis of H the second moments m_t of the error
(the diagonal of its covariance) obey

    m_t = ((1 - eta_t lambda)^2 + eta_t^2 lambda^2 / B_t) m_{t-1}
          + eta_t^2 lambda (<lambda, m_{t-1}> + sigma^2) / B_t,                    m_0 = (w*)^2

so that coordinates interact only through the number <lambda, m>. An average with newest weights
rho_t, avg_t = (1 - rho_t) avg_{t-1} + rho_t w_t, has cross moments C_t with w_t,

    C_t = (1 - rho_t) (1 - eta_t lambda) C_{t-1} + rho_t m_t,

Of its own second moments A_t, only <lambda, A> is needed, or <lambda^2, A> for a gradient:

    <lambda, A_t> = (1 - rho_t)^2 <lambda, A_{t-1}> + rho_t^2 <lambda, m_t>
                    + 2 rho_t (1 - rho_t) <lambda, (1 - eta_t lambda) C_{t-1}>.

Time is the number n_t = B_1 + ... + B_t of samples: eta_t is the schedule's at n_{t-1}, and windows
of averages are in samples, so rho_t is that of B_t updates of one sample. JAX advances all runs
side by side, from one checkpoint to the next; a run with fewer updates than another has eta = rho =
0 in the rest of them, which changes nothing.

All of it is linear in (m_0, sigma^2), so two channels, the bias (sigma^2 = 0) and the variance
(m_0 = 0, sigma^2 = 1), give every noise level at once. The nodes of `quadrature.py` stand for the
coordinates. JAX computes in float64 inside this module alone. Some runs are repeated with a finer
quadrature, to measure the error that the result reports.

Sizes: K nodes, S schedules, A running means, T checkpoints, 2 channels.

Source: appendix "Proofs", Lemma 2 (the recursion of m) and the proof of Theorem 1 (cross moments).
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from anytime_jax.averaging import Rule
from anytime_jax.checks import is_number, require, require_count
from anytime_jax.errors import InputError
from anytime_jax.schedules import Schedule
from anytime_lab.theory import quadrature
from anytime_lab.theory.batches import Batch, sample_counts
from anytime_lab.theory.problem import Problem
from anytime_lab.theory.tracked_averages import Average, TrackedAverages, track

_CHUNK = 4096  # updates in a call; Ctrl-C waits for its end
_STABLE = 2.0  # 2 / lambda_1: larger constant step sizes diverge


@dataclasses.dataclass(frozen=True)
class Risks:
    """Exact excess risks of runs at checkpoints.

    Risks are inf where a run diverged and NaN where an average does not exist.

    Examples:
      >>> problem = theory.Problem(a=1.5, b=3.0, dimension=1)
      >>> risks = theory.excess_risk(problem, [schedules.Power(0.5, gamma=0.0)], [], [1, 2])
      >>> risks.excess(noise=0.0, label="last")  # 1/2, times 3/4 at each update
      array([[0.375  , 0.28125]])
    """

    labels: tuple[str, ...]  # of the averages; "last" is the iterate itself
    checkpoints: np.ndarray  # int[T], numbers of samples
    updates: np.ndarray  # int[S, T], numbers of updates up to each checkpoint
    samples: np.ndarray  # int[S, T], those that these updates have taken
    bias: np.ndarray  # float64[labels, S, T], the risk without noise
    variance: np.ndarray  # float64[labels, S, T], the part that sigma^2 multiplies
    # Largest relative difference to a finer quadrature, over two runs that were repeated with it;
    # NaN if all diverged, 0 if every coordinate is a node.
    error: float

    def excess(self, noise: float, label: str | None = None) -> np.ndarray:
        """Returns the excess risk at a noise level sigma^2, float64[labels, S, T].

        With the `label` of one average, float64[S, T].
        """
        require_noise(noise)
        # The product inf * 0 occurs where the bias is inf as well.
        with np.errstate(invalid="ignore", over="ignore"):
            risk = np.where(np.isinf(self.bias), np.inf, self.bias + noise * self.variance)
        return risk if label is None else risk[self.labels.index(label)]

    def select(self, schedules: slice) -> "Risks":
        """Returns the risks of some of the schedules."""
        return dataclasses.replace(
            self,
            updates=self.updates[schedules],
            samples=self.samples[schedules],
            bias=self.bias[:, schedules],
            variance=self.variance[:, schedules],
        )


def largest_error(risks: Iterable[Risks]) -> float:
    """Returns the largest relative error of several results; NaN if one is not known."""
    return float(np.max([part.error for part in risks]))


def require_noise(noise: float) -> None:
    """Requires a variance sigma^2 from 0 to 1e100."""
    ok = is_number(noise) and 0 <= noise <= 1e100
    require(ok, "noise", noise, "sigma^2, a number of 0 or more, up to 1e100")


def excess_risk(
    problem: Problem,
    schedules: Sequence[Schedule],
    averages: Iterable[Average],
    checkpoints: Sequence[int],
    batches: Batch | Sequence[Batch] = 1,
    progress: Callable[[float], None] = lambda fraction: None,
    power: int = 1,
) -> Risks:
    """Returns the exact excess risk of SGD under several schedules, for several averages.

    With `power` = 2, half the squared norm of the expected gradient takes the place of the risk.

    Args:
      problem: the spectrum and the target.
      schedules: the step sizes of each run, as functions of the samples before an update.
      averages: averages of the iterates; the iterate itself is always there, as "last".
      checkpoints: numbers of samples in rising order, up to the earliest horizon.
      batches: the samples of an update, for all runs or for each.
      progress: is called several times a second with the fraction that is done. An exception that
        it raises ends the computation.
      power: of H in the norm of the error, `0.5 * E ||w - w*||^2` by H^power.

    Examples:
      >>> problem = theory.Problem(a=1.5, b=3.0)
      >>> runs = [schedules.Power(c / problem.trace, gamma=0.5) for c in (0.5, 1.0)]
      >>> risks = theory.excess_risk(problem, runs, [25.0], checkpoints=[10, 1_000])
      >>> risks.excess(noise=0.1, label="f25").shape
      (2, 2)
      >>> risks.error < 1e-9
      True
    """
    checkpoints = _require_checkpoints(checkpoints, schedules)
    tracked = track(averages, checkpoints)
    runs = _make_runs(schedules, batches, checkpoints)
    totals = [_total(run) for run in runs]
    nodes = quadrature.nodes(problem, max(totals))
    risks = _compute(problem, nodes, runs, tracked, power, lambda x: progress(0.75 * x))
    error = 0.0
    if len(nodes[0]) < problem.dimension:
        finer = quadrature.nodes(problem, max(totals), first=16, near=64, far=20)
        error = np.nan
        if repeated := _runs_to_check(risks, totals):
            checked = [runs[k] for k in repeated]
            again = _compute(
                problem, finer, checked, tracked, power, lambda x: progress(0.75 + x / 4)
            )
            with np.errstate(invalid="ignore", divide="ignore"):
                difference = np.abs(risks[:, :, repeated] / again - 1)
            finite = difference[np.isfinite(difference)]
            error = float(finite.max()) if finite.size else np.nan
    updates = np.stack([run.stops[1:] for run in runs])
    samples = np.stack([np.append(0, run.ends)[run.stops[1:]] for run in runs])
    labels, times = tracked.labels, np.array(checkpoints)
    return Risks(labels, times, updates, samples, risks[0], risks[1], error)


def _require_checkpoints(checkpoints: Sequence[int], schedules: Sequence[Schedule]) -> list[int]:
    for checkpoint in checkpoints:
        require_count("a checkpoint", checkpoint, least=1)
    numbers = [int(checkpoint) for checkpoint in checkpoints]
    rising = all(x < y for x, y in itertools.pairwise(numbers))
    require(numbers and rising, "checkpoints", numbers, "numbers of samples in rising order")
    require(len(schedules) > 0, "schedules", list(schedules), "one schedule or more")
    for schedule in schedules:
        end = schedule.end
        if end is not None and numbers[-1] > end:
            raise InputError(
                f"checkpoint {numbers[-1]} is past the horizon of a {type(schedule).__name__} "
                f"schedule: choose checkpoints up to sample {end}, or a later horizon or none"
            )
    return numbers


class _Run(NamedTuple):
    """A schedule, and its updates in samples."""

    schedule: Schedule
    ends: np.ndarray  # int64[updates], samples after each update
    sizes: np.ndarray  # int64[updates], samples of each
    stops: np.ndarray  # int64[T + 1], updates up to 0 and up to each checkpoint

    def rates(self, updates: np.ndarray) -> np.ndarray:
        """Returns the step sizes of updates, which are counted from 0."""
        return self.schedule.evaluate(self.ends[updates] - self.sizes[updates])


def _make_runs(
    schedules: Sequence[Schedule], batches: Batch | Sequence[Batch], checkpoints: Sequence[int]
) -> list[_Run]:
    if not isinstance(batches, Sequence):
        batches = [batches] * len(schedules)
    ok = len(batches) == len(schedules)
    require(ok, "batches", len(batches), f"one batch, or one for each of {len(schedules)} runs")
    runs, known = [], {}
    for schedule, batch in zip(schedules, batches, strict=True):
        if batch not in known:  # most runs share their batch
            ends = sample_counts(batch, checkpoints[-1])
            stops = np.searchsorted(ends, [0, *checkpoints], side="right")
            known[batch] = ends, np.diff(ends, prepend=0), stops
        runs.append(_Run(schedule, *known[batch]))
    return runs


def _total(run: _Run) -> float:
    """The sum of the step sizes, each capped at the largest stable one."""
    total = len(run.ends)
    parts = (np.arange(t, min(t + 2**16, total)) for t in range(0, total, 2**16))
    return sum(float(np.minimum(run.rates(part), _STABLE).sum()) for part in parts)


def _runs_to_check(risks: np.ndarray, totals: Sequence[float]) -> list[int]:
    """Indices of two runs to repeat: the lowest risk at the end, the largest step sizes."""
    last = risks[:, 0, :, -1].sum(axis=0)
    finite = [k for k in range(len(totals)) if np.isfinite(last[k])]
    by_total = sorted(finite, key=lambda k: totals[k])[::-1]
    by_risk = sorted(finite, key=lambda k: last[k])
    order = [k for pair in zip(by_risk, by_total, strict=True) for k in pair]
    return list(dict.fromkeys(order))[:2]


class _State(NamedTuple):
    """The moments after an update."""

    m: jax.Array  # float64[K, 2, S], second moments of the iterate's error
    risk: jax.Array  # float64[2, S], <lambda, m>
    live: jax.Array  # float64[2, S], <lambda^power, m>
    cross: jax.Array  # float64[K, A, 2, S], (1 - eta lambda) C with the next step size
    averaged: jax.Array  # float64[A, 2, S], <lambda^power, A>


def _compute(
    problem: Problem,
    nodes: tuple[np.ndarray, np.ndarray],
    runs: Sequence[_Run],
    tracked: TrackedAverages,
    power: int,
    progress: Callable[[float], None],
) -> np.ndarray:
    """Half of <lambda^power, A> at the checkpoints: float64[2, labels, S, T], the iterate first."""
    stops = np.stack([run.stops for run in runs])
    out = np.empty((2, len(tracked.labels), len(runs), stops.shape[1] - 1))
    index, weight = nodes
    lambdas = index**-problem.a
    weights = np.stack([lambdas * weight, lambdas**power * weight])
    # Rows of a table of updates, from one checkpoint to the next as many as the run with the most.
    rows = np.append(0, np.cumsum(np.diff(stops).max(axis=0)))
    cpu = jax.local_devices(backend="cpu")[0]  # many small dependent steps are slow on accelerators
    with jax.enable_x64(True), jax.default_device(cpu):
        m = np.zeros((len(index), 2, len(runs)))
        m[:, 0] = index[:, None] ** -(problem.b - problem.a)
        first = _rates(runs, rows, np.array([0]))[0]
        cross = (1 - lambdas[:, None] * first)[:, None, None] * m[:, None]
        cross = np.repeat(cross, len(tracked.means), axis=1)
        risk, live = np.einsum("wk,kcs->wcs", weights, m)
        averaged = np.repeat(live[None], len(tracked.means), axis=0)
        state = _State(*jax.device_put((m, risk, live, cross, averaged)))
        for at, (begin, end) in enumerate(itertools.pairwise(rows)):
            for start in range(begin, end, _CHUNK):
                updates = min(_CHUNK, end - start)
                table = _updates(runs, rows, np.arange(start, start + _CHUNK + 1), tracked.means)
                state = _advance(state, lambdas, weights, *table, updates)
                state.risk.block_until_ready()
                progress((start + updates) / rows[-1])
            out[..., at] = _risks(state, tracked.source[:, at])
    return out


def _risks(state: _State, source: np.ndarray) -> np.ndarray:
    """Half of <lambda^power, A> for each average, float64[2, labels, S].

    It is inf where either channel overflowed and NaN where the average does not exist.
    """
    moments = np.concatenate([np.asarray(state.live)[None], np.asarray(state.averaged)])
    risks = 0.5 * moments[source].transpose(1, 0, 2)
    risks[:, ~np.isfinite(risks).all(axis=0)] = np.inf
    risks[:, source < 0] = np.nan
    return risks


def _rates(runs: Sequence[_Run], rows: np.ndarray, chunk: np.ndarray) -> np.ndarray:
    """Step sizes of consecutive rows of the table of updates, float64[rows, S]."""
    rates = np.zeros((len(chunk), len(runs)))
    for k, run in enumerate(runs):
        of_chunk, updates = _updates_in(run, rows, chunk)
        rates[of_chunk, k] = run.rates(updates)
    return rates


def _updates_in(run: _Run, rows: np.ndarray, chunk: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which of the rows are updates of a run, bool[rows], and the numbers of these updates."""
    at = np.minimum(np.searchsorted(rows, chunk, side="right"), len(rows) - 1) - 1
    updates = run.stops[at] + chunk - rows[at]
    of_chunk = updates < run.stops[at + 1]
    return of_chunk, updates[of_chunk]


def _updates(
    runs: Sequence[_Run], rows: np.ndarray, chunk: np.ndarray, means: Sequence[Rule]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Step sizes, one more than the other two, 1 / B and newest weights of some rows.

    They are float64[chunk + 1, S], float64[chunk, S] and float64[chunk, means, S].
    """
    inverse = np.ones((len(chunk) - 1, len(runs)))
    newest = np.zeros((len(chunk) - 1, len(means), len(runs)))
    known = {}
    for k, run in enumerate(runs):
        if id(run.ends) not in known:
            of_chunk, updates = _updates_in(run, rows, chunk[:-1])
            known[id(run.ends)] = one, mean = np.ones(len(chunk) - 1), np.zeros(newest.shape[:2])
            one[of_chunk] = 1 / run.sizes[updates]
            for i, rule in enumerate(means):
                mean[of_chunk, i] = rule.evaluate(run.ends[updates], run.sizes[updates])
        inverse[:, k], newest[:, :, k] = known[id(run.ends)]
    return _rates(runs, rows, chunk), inverse, newest


@jax.jit
def _advance(
    state: _State,
    lambdas: jax.Array,
    weights: jax.Array,
    rates: jax.Array,
    inverse_batch: jax.Array,
    newest: jax.Array,
    updates: int,
) -> _State:
    """Advances the recursions of the module's docstring by some updates."""
    noise = jnp.array([[0.0], [1.0]])

    def update(t: jax.Array, state: _State) -> _State:
        eta, next_eta, rho = rates[t], rates[t + 1], newest[t][:, None]
        step = lambdas[:, None] * eta
        contraction = (1 - step) ** 2 + step**2 * inverse_batch[t]
        added = step * eta * inverse_batch[t]
        m = contraction[:, None] * state.m + added[:, None] * (state.risk + noise)
        risk, live = jnp.einsum("wk,kcs->wcs", weights, m)
        cross_live = jnp.einsum("k,kacs->acs", weights[1], state.cross)
        averaged = (
            (1 - rho) ** 2 * state.averaged + 2 * rho * (1 - rho) * cross_live + rho**2 * live
        )
        decay = (1 - lambdas[:, None] * next_eta)[:, None, None]
        cross = decay * ((1 - rho) * state.cross + rho * m[:, None])
        return _State(m, risk, live, cross, averaged)

    return jax.lax.fori_loop(0, updates, update, state)
