"""Theoretical results of the paper: exponents, the best gamma, and the bound of Theorem 1.

Source: Theorem 1, Corollary 1, Table 1.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from anytime_jax.checks import is_number, require, require_count, require_positive
from anytime_lab.theory.problem import Problem
from anytime_lab.theory.risk import require_noise


class Rate(NamedTuple):
    """Step sizes that reach the minimax exponent in some regime of (a, b)."""

    schedule: str
    averaged: str  # "yes" for the rate of an average of iterates
    horizon: str  # "free" for step sizes independent of the length of the run
    regime: str
    holds: Callable[[float, float], bool]  # the regime, as a predicate of (a, b)


def _between(a: float, b: float) -> bool:
    return a < b <= 2 * a


# Source: Table 1.
RATES = (
    Rate("constant", "yes", "free", "1 < b <= a", lambda a, b: b <= a),
    Rate("constant, peak ~ N^(a/b-1)", "yes", "needed", "a < b <= 2a", _between),
    Rate("horizon-optimal", "no", "needed", "b <= 2a", lambda a, b: b <= 2 * a),
    Rate("1/t^gamma*, gamma* = 1 - a/b", "yes", "free", "1 < a < b <= 2a", _between),
)


def gamma_star(a: float, b: float) -> float:
    """Returns the rate-optimal decay of step sizes, clipped to where it is proven, 0 to 1/2.

        gamma* = 1 - a/b

    Up to b = a a constant rate is optimal: 0. Beyond b = 2a no exponent is proven to be the best,
    because Theorem 1 holds for gamma of at most 1/2: 1/2.

    Examples:
      >>> theory.gamma_star(a=1.5, b=2.0)
      0.25

    Source: Corollary 1; Section 3, "Constant learning rate".
    """
    Problem(a, b)  # raises for bad exponents
    return min(max(1 - a / b, 0.0), 0.5)


def power_law_exponent(a: float, b: float, gamma: float) -> float:
    """Returns the exponent of Theorem 1 for `eta_t = eta / t^gamma`, logarithms aside.

    With k* ~ N^((1-gamma)/a) the terms of the bound fall as

        bias       N^-min(1, (1-gamma)(b-1)/a)
        variance   N^-(1-(1-gamma)/a)

    and the slower one decides. At gamma* both are 1 - 1/b. The theorem holds up to gamma = 1/2.

    Examples:
      >>> theory.convergence_rates.power_law_exponent(a=1.5, b=2.0, gamma=0.25)
      0.5

    Source: Theorem 1 with lambda_k = k^-a, lambda_k (w*_k)^2 = k^-b.
    """
    Problem(a, b)  # raises for bad exponents
    require(is_number(gamma) and 0 <= gamma < 1, "gamma", gamma, "a number from 0 to below 1")
    return min(1.0, (1 - gamma) * (b - 1) / a, 1 - (1 - gamma) / a)


def minimax_exponent(a: float, b: float) -> float:
    """Returns the exponent that no method can beat, `(b - 1) / max(a, b)`, proven for b <= 2a.

    Examples:
      >>> theory.convergence_rates.minimax_exponent(a=1.5, b=2.0)
      0.5

    Source: Table 1; Section 2, "Nonparametric Least Squares".
    """
    Problem(a, b)  # raises for bad exponents
    return (b - 1) / max(a, b)


@dataclasses.dataclass(frozen=True)
class Bound:
    """The bound of Theorem 1, without its unknown constant and logarithm."""

    k_star: int  # number of coordinates with lambda_k >= log N / (eta N^(1-gamma))
    bias_head: float  # (1/N) * sum_{k <= k*} lambda_k (w*_k)^2
    bias_tail: float  # sum_{k > k*} lambda_k (w*_k)^2
    variance_head: float  # k* sigma^2 / N
    variance_square: float  # sigma^2 * sum_{k > k*} eta^2 lambda_k^2 N^(1-2 gamma)
    variance_linear: float  # sigma^2 * sum_{k > k*} eta lambda_k N^-gamma

    @property
    def total(self) -> float:
        """The sum of all terms."""
        return sum(dataclasses.astuple(self)[1:])


def theorem_1(problem: Problem, eta: float, gamma: float, steps: int, noise: float) -> Bound:
    """Returns the bound on the excess risk of w_{s:s+N} with s = Theta(N), term by term.

    Step sizes are eta / t^gamma with gamma from 0 (which the theorem excludes, but for which the
    bound is known) to 1/2, batches are single samples, N is `steps` and sigma^2 is `noise`. The
    theorem also assumes ||w*||_H^2 <~ sigma^2 and a step size of the order of 1/tr(H) or less; the
    constants of both are unknown, so neither is checked.

    Examples:
      >>> problem = theory.Problem(a=1.5, b=2.0)
      >>> bound = theory.theorem_1(problem, 0.5 / problem.trace, 0.25, steps=1_000, noise=1.0)
      >>> bound.k_star, round(bound.total, 2)
      (2, 0.53)

    Source: Theorem 1.
    """
    require_positive("eta", eta)
    require(is_number(gamma) and 0 <= gamma <= 0.5, "gamma", gamma, "a number from 0 to 1/2")
    require_count("steps", steps, least=2)
    require_noise(noise)
    threshold = math.log(steps) / (eta * steps ** (1 - gamma))
    k_star = math.floor(threshold ** (-1 / problem.a) + 1e-12) if threshold <= 1 else 0
    k_star = int(min(k_star, problem.dimension))
    head = problem.power_sum(problem.b) - problem.power_sum(problem.b, k_star)
    square = eta**2 * steps ** (1 - 2 * gamma) * problem.power_sum(2 * problem.a, k_star)
    return Bound(
        k_star,
        head / steps,
        problem.power_sum(problem.b, k_star),
        k_star * noise / steps,
        noise * square,
        noise * eta * steps**-gamma * problem.power_sum(problem.a, k_star),
    )


def fitted_exponent(steps: np.ndarray, risks: np.ndarray) -> float:
    """Returns the p of the least-squares fit `log risk = log c - p log N` to runs of N steps.

    NaN for fewer than two lengths, or if a risk is not positive and finite.

    Examples:
      >>> steps = np.array([10, 100, 1_000])
      >>> round(theory.convergence_rates.fitted_exponent(steps, 3.0 * steps**-0.7), 6)
      0.7
    """
    if len(steps) < 2 or not (np.isfinite(risks) & (risks > 0)).all():
        return math.nan
    return float(-np.polyfit(np.log(steps), np.log(risks), 1)[0])
