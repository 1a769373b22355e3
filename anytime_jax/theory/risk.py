r"""The exact excess risk of SGD, for any schedule and any average, at any checkpoints.

    0.5 * E ||w - w*||_H^2,        w_t = w_{t-1} - eta_t * x_t (<x_t, w_{t-1}> - y_t),  w_0 = 0

In the eigenbasis of H the second moments m_t of the error (the diagonal of its covariance) obey

    m_t = ((1 - eta_t lambda)^2 + eta_t^2 lambda^2 / B) m_{t-1}
          + eta_t^2 lambda (<lambda, m_{t-1}> + sigma^2) / B,                      m_0 = (w*)^2

for batches of B samples: coordinates meet in the one number <lambda, m>. An average with newest
weights rho_t, avg_t = (1 - rho_t) avg_{t-1} + rho_t w_t, has cross moments C_t with the iterate,

    C_t = (1 - rho_t) (1 - eta_t lambda) C_{t-1} + rho_t m_t,

and of its own second moments A_t only <lambda, A> is needed:

    <lambda, A_t> = (1 - rho_t)^2 <lambda, A_{t-1}> + rho_t^2 <lambda, m_t>
                    + 2 rho_t (1 - rho_t) <lambda, (1 - eta_t lambda) C_{t-1}>.

All of it is linear in (m_0, sigma^2): two channels, the bias (sigma^2 = 0) and the variance (m_0 =
0, sigma^2 = 1), give every noise level at once. The nodes of `spectrum.py` stand for the
coordinates, JAX runs all schedules side by side in float64 (for its own code only), and some runs
are done again with a finer rule, which measures the error that the result reports.

Legend: K nodes, S schedules, A averages kept, T checkpoints, 2 channels.

Source: appendix "Proofs", Lemma 2 (the recursion of m) and the proof of Theorem 1 (cross moments).
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from anytime_jax.checks import is_number, require, require_count
from anytime_jax.schedules import Schedule
from anytime_jax.theory.spectrum import Nodes, Problem, Quadrature
from anytime_jax.theory.tail_averages import Average, Plan, plan

CHECK = Quadrature(first=16, near=64, far=20)
_CHUNK = 4096  # updates in a call: what an interruption waits for
_STABLE = 2.0  # no run with larger step sizes ends well: lambda_1 = 1


@dataclasses.dataclass(frozen=True)
class Risks:
    """Exact excess risks.

    Attributes:
      labels: names of the averages; "last" is the iterate itself.
      checkpoints: int[T], numbers of updates.
      bias: float64[averages, schedules, T], the risk without noise; inf where a run diverged, NaN
        where an average does not exist.
      variance: the same, the part of the risk that sigma^2 multiplies.
      error: the largest relative difference to a finer rule, over the runs that were done twice;
        NaN if none was, 0 if no rule was used.
    """

    labels: tuple[str, ...]
    checkpoints: np.ndarray
    bias: np.ndarray
    variance: np.ndarray
    error: float

    def excess(self, noise: float, label: str | None = None) -> np.ndarray:
        """Returns the excess risk at a noise level.

        Args:
          noise: sigma^2, 0 or more.
          label: an average's name; None for all.

        Returns:
          float64[averages, schedules, T], without the first axis if a label is given.
        """
        require_noise(noise)
        with np.errstate(invalid="ignore", over="ignore"):  # inf * 0: where the bias is inf as well
            risk = np.where(np.isinf(self.bias), np.inf, self.bias + noise * self.variance)
        return risk if label is None else risk[self.labels.index(label)]


def largest_error(parts: Sequence[Risks]) -> float:
    """Returns the largest relative error of any part; NaN if one is not known."""
    return float(np.max([risks.error for risks in parts]))


def require_noise(noise: float) -> None:
    """Raises unless the noise is a variance."""
    ok = is_number(noise) and 0 <= noise <= 1e100
    require(ok, "noise", noise, "sigma^2, a number of 0 or more, up to 1e100")


def excess_risk(
    problem: Problem,
    schedules: Sequence[Schedule],
    averages: Iterable[Average],
    checkpoints: Sequence[int],
    *,
    quadrature: Quadrature | None = None,
    checked: int = 2,
    report: Callable[[float], None] | None = None,
) -> Risks:
    """Returns the exact excess risk of SGD under some schedules, for some averages.

    Args:
      problem: the regression problem.
      schedules: the step sizes; update t uses the schedule's rate at count t - 1, as in training.
      averages: the averages besides the iterate itself; a number f is `GrowingWindow(f)`.
      checkpoints: numbers of updates, from 1, in rising order.
      quadrature: how many nodes stand for the coordinates.
      checked: number of runs to do again with a finer rule, to measure the error.
      report: called with the part of the work that is done, from 0 to 1, some times a second; what
        it raises ends the work.

    Raises:
      ValueError: for checkpoints out of order or past a schedule's horizon, or a bad average.
    """
    checkpoints = require_checkpoints(checkpoints, schedules)
    report = report or (lambda done: None)
    kept = plan(averages, checkpoints)
    totals = [_total(schedule, checkpoints[-1]) for schedule in schedules]
    reach = max(totals)
    nodes = (quadrature or Quadrature()).nodes(problem, reach)
    share = 1 - 0.25 * bool(checked)
    half = _run(problem, nodes, schedules, kept, checkpoints, lambda done: report(share * done))
    error = np.nan
    if len(nodes.index) == problem.dimension:
        error = 0.0
    elif checked:
        again = _worth_checking(half, totals, checked)
        finer = _run(
            problem,
            CHECK.nodes(problem, reach),
            [schedules[k] for k in again],
            kept,
            checkpoints,
            lambda done: report(share + (1 - share) * done),
        )
        with np.errstate(invalid="ignore", divide="ignore"):
            difference = np.abs(half[:, :, again] / finer - 1)
        finite = difference[np.isfinite(difference)]
        error = float(finite.max()) if finite.size else np.nan
    return Risks(kept.labels, np.array(checkpoints), half[0], half[1], error)


def require_checkpoints(checkpoints: Sequence[int], schedules: Sequence[Schedule]) -> list[int]:
    """Returns checkpoints as whole numbers, if they rise and no schedule ends before them."""
    for checkpoint in checkpoints:
        require_count("a checkpoint", checkpoint, least=1)
    numbers = [int(checkpoint) for checkpoint in checkpoints]
    rising = all(x < y for x, y in itertools.pairwise(numbers))
    require(numbers and rising, "checkpoints", numbers, "numbers of updates in rising order")
    require(len(schedules) > 0, "schedules", list(schedules), "one schedule or more")
    for schedule in schedules:
        end = schedule.horizon_steps
        if end is not None and numbers[-1] > end:
            raise ValueError(
                f"checkpoint {numbers[-1]} is past the horizon of a {type(schedule).__name__} "
                f"schedule, which ends at update {end}: ask for checkpoints up to there, or for a "
                "schedule with a later horizon or none"
            )
    return numbers


def _total(schedule: Schedule, steps: int) -> float:
    """The sum of the first step sizes, each of them no larger than can be stable."""
    parts = (np.arange(t, min(t + 2**16, steps)) for t in range(0, steps, 2**16))
    return sum(float(np.minimum(schedule.evaluate(part), _STABLE).sum()) for part in parts)


def _worth_checking(half: np.ndarray, totals: Sequence[float], number: int) -> list[int]:
    """Runs to hold against a finer rule: the best at the end, and the largest step sizes."""
    last = half[:, 0, :, -1].sum(axis=0)
    finite = [k for k in range(len(totals)) if np.isfinite(last[k])]
    by_reach = sorted(finite, key=lambda k: totals[k])[::-1]
    by_risk = sorted(finite, key=lambda k: last[k])
    order = [k for pair in zip(by_risk, by_reach, strict=True) for k in pair]
    return list(dict.fromkeys(order))[:number]


class _State(NamedTuple):
    """The moments after an update.

    Attributes:
      m: float64[K, 2, S], second moments of the iterate's error.
      risk: float64[2, S], <lambda, m>.
      cross: float64[K, A, 2, S], (1 - eta lambda) C with the step size of the update to come.
      averaged: float64[A, 2, S], <lambda, A>.
    """

    m: jax.Array
    risk: jax.Array
    cross: jax.Array
    averaged: jax.Array


def _run(
    problem: Problem,
    nodes: Nodes,
    schedules: Sequence[Schedule],
    kept: Plan,
    checkpoints: Sequence[int],
    report: Callable[[float], None],
) -> np.ndarray:
    """Half of <lambda, A> at the checkpoints: float64[2, averages, S, T], the iterate first."""
    columns = len(kept.columns)
    out = np.full((2, len(kept.labels), len(schedules), len(checkpoints)), np.nan)
    if not schedules:
        return out
    nodes_count = len(nodes.index)
    lambdas = nodes.index**-problem.a
    weights = lambdas * nodes.weight
    first = np.array([float(schedule.evaluate(0)) for schedule in schedules])
    m = np.zeros((nodes_count, 2, len(schedules)))
    m[:, 0] = nodes.index[:, None] ** -(problem.b - problem.a)
    cross = (1 - lambdas[:, None] * first)[:, None, None] * m[:, None]
    cross = np.broadcast_to(cross, (nodes_count, columns, 2, len(schedules)))
    risk = np.einsum("k,kcs->cs", weights, m)
    averaged = np.broadcast_to(risk, (columns, *risk.shape))
    cpu = jax.local_devices(backend="cpu")[0]  # small steps in a row: no work for an accelerator
    with jax.enable_x64(True), jax.default_device(cpu):
        state = _State(*jax.device_put((m, risk, cross, averaged)))
        for begin, end, rates, newest in _chunks(schedules, kept, checkpoints):
            state = _advance(
                state, lambdas, weights, rates, newest, end - begin, problem.batch_size
            )
            if end in checkpoints:
                now = np.concatenate([np.asarray(state.risk)[None], np.asarray(state.averaged)])
                at = checkpoints.index(end)
                where = np.concatenate([[0], kept.found[:, at] + 1])
                found = np.where(kept.exists[:, at, None, None], now[where], np.nan)
                out[..., at] = 0.5 * found.transpose(1, 0, 2)
            state.risk.block_until_ready()
            report(end / checkpoints[-1])
    return diverged_to_inf(out, kept)


def diverged_to_inf(risks: np.ndarray, kept: Plan) -> np.ndarray:
    """Returns risks of both channels, float64[2, averages, S, T], inf where either overflowed."""
    lost = ~np.isfinite(risks).all(axis=0) & kept.exists[:, None]
    return np.where(lost, np.inf, risks)


def _chunks(
    schedules: Sequence[Schedule], kept: Plan, checkpoints: Sequence[int]
) -> Iterator[tuple[int, int, np.ndarray, np.ndarray]]:
    """Yields runs of updates: from where, to where, step sizes and newest weights.

    The step sizes are float64[chunk + 1, S], one more than updates, and padded.
    """
    stops = sorted({*checkpoints, *range(_CHUNK, checkpoints[-1], _CHUNK)})
    steps = checkpoints[-1]
    begin = 0
    for end in stops:
        counts = np.arange(begin, min(end + 1, steps))  # the count before update t is t - 1
        rates = np.zeros((_CHUNK + 1, len(schedules)))
        rates[: len(counts)] = np.stack([x.evaluate(counts) for x in schedules], axis=-1)
        newest = np.ones((_CHUNK, len(kept.columns)))
        newest[: end - begin] = kept.newest_weights(np.arange(begin + 1, end + 1))
        yield begin, end, rates, newest
        begin = end


@functools.partial(jax.jit, static_argnames="batch_size")
def _advance(
    state: _State,
    lambdas: jax.Array,
    weights: jax.Array,
    rates: jax.Array,
    newest: jax.Array,
    updates: int,
    batch_size: int,
) -> _State:
    """The moments some updates later: the recursions of the module's docstring."""
    noise = jnp.array([[0.0], [1.0]])

    def update(t: jax.Array, state: _State) -> _State:
        eta, following, rho = rates[t], rates[t + 1], newest[t][:, None, None]
        step = lambdas[:, None] * eta
        kept = (1 - step) ** 2 + step**2 / batch_size
        added = step * eta / batch_size
        m = kept[:, None] * state.m + added[:, None] * (state.risk + noise)
        risk = jnp.einsum("k,kcs->cs", weights, m)
        met = jnp.einsum("k,kacs->acs", weights, state.cross)
        averaged = (1 - rho) ** 2 * state.averaged + 2 * rho * (1 - rho) * met + rho**2 * risk
        decayed = (1 - lambdas[:, None] * following)[:, None, None]
        cross = decayed * ((1 - rho) * state.cross + rho * m[:, None])
        return _State(m, risk, cross, averaged)

    return jax.lax.fori_loop(0, updates, update, state)
