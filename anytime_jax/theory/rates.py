"""What the paper proves: rates of decay, the best gamma, and the bound of Theorem 1 term by term.

Source: Theorem 1, Corollary 1, Table 1.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from anytime_jax.checks import is_number, require, require_count, require_positive
from anytime_jax.theory.risk import require_noise
from anytime_jax.theory.spectrum import Problem


@dataclasses.dataclass(frozen=True)
class Rate:
    """A row of the table of rates: where it holds, the minimax exponent is reached.

    Attributes:
      schedule: what the step sizes are.
      averaged: whether the rate is that of an average of iterates.
      horizon_free: whether the step sizes are independent of the length of the run.
      regime: where the rate holds, in words.
      holds: whether it holds at (a, b).
    """

    schedule: str
    averaged: bool
    horizon_free: bool
    regime: str
    holds: Callable[[float, float], bool]

    def exponent(self, a: float, b: float) -> float:
        """Returns the p of risk ~ N^-p, up to constants and logarithms, at an (a, b) it holds."""
        return minimax_exponent(a, b)


def _smooth(a: float, b: float) -> bool:
    return a < b <= 2 * a


# Source: Table 1.
RATES = (
    Rate("constant", True, True, "1 < b <= a", lambda a, b: b <= a),
    Rate("constant, peak ~ N^(a/b-1)", True, False, "a < b <= 2a", _smooth),
    Rate("horizon-optimal", False, False, "b <= 2a", lambda a, b: b <= 2 * a),
    Rate("1/t^gamma*, gamma* = 1 - a/b", True, True, "1 < a < b <= 2a", _smooth),
)


def gamma_star(a: float, b: float) -> float:
    """Returns the rate-optimal decay `gamma* = 1 - a/b`, held to where it is proven: 0 to 1/2.

    Up to b = a a constant rate is optimal: 0. Beyond b = 2a the theorem, which wants gamma of at
    most 1/2, proves no exponent to be the best: 1/2.

    Source: Corollary 1; Section 3, "Constant learning rate".
    """
    Problem(a, b)  # checks both
    return min(max(1 - a / b, 0.0), 0.5)


def power_law_exponent(a: float, b: float, gamma: float) -> float:
    """Returns the exponent that Theorem 1 gives for `eta_t = eta / t^gamma`, logarithms aside.

    With k* ~ N^((1-gamma)/a) the terms of the bound fall as

        bias       N^-min(1, (1-gamma)(b-1)/a)
        variance   N^-(1-(1-gamma)/a)

    and the slower one decides. At gamma* they meet at 1 - 1/b.

    Args:
      a: capacity exponent.
      b: source exponent.
      gamma: decay of the step sizes, from 0 to below 1; the theorem speaks of up to 1/2.

    Source: Theorem 1 with lambda_k = k^-a, lambda_k (w*_k)^2 = k^-b.
    """
    Problem(a, b)
    require(is_number(gamma) and 0 <= gamma < 1, "gamma", gamma, "a number from 0 to below 1")
    bias = min(1.0, (1 - gamma) * (b - 1) / a)
    return min(bias, 1 - (1 - gamma) / a)


def minimax_exponent(a: float, b: float) -> float:
    """Returns the exponent that no method can beat, `(b - 1) / max(a, b)`, proven for b <= 2a.

    Source: Table 1 and Section 3, "Nonparametric Least Squares".
    """
    Problem(a, b)
    return (b - 1) / max(a, b)


@dataclasses.dataclass(frozen=True)
class Bound:
    """The bound of Theorem 1, without its unknown constant and logarithm.

    Attributes:
      k_star: number of coordinates with lambda_k >= log N / (eta N^(1-gamma)).
      bias_head: (1/N) * sum_{k <= k*} lambda_k (w*_k)^2.
      bias_tail: sum_{k > k*} lambda_k (w*_k)^2.
      variance_head: k* sigma^2 / N.
      variance_square: sigma^2 * sum_{k > k*} eta^2 lambda_k^2 N^(1-2 gamma).
      variance_linear: sigma^2 * sum_{k > k*} eta lambda_k N^-gamma.
    """

    k_star: int
    bias_head: float
    bias_tail: float
    variance_head: float
    variance_square: float
    variance_linear: float

    @property
    def total(self) -> float:
        """The sum of all terms."""
        return sum(value for value in dataclasses.astuple(self)[1:])


def theorem_1(problem: Problem, eta: float, gamma: float, steps: int, noise: float) -> Bound:
    """Returns the bound on the excess risk of w_{s:s+N} with s = Theta(N), term by term.

    The theorem also wants the noise to be of the order of ||w*||_H^2 or more, and the step size
    small enough; neither constant is known, so neither is checked.

    Args:
      problem: the regression problem, with batches of one sample.
      eta: the step sizes are eta / t^gamma; of the order of 1/tr(H) or less.
      gamma: from 0 to 1/2 (the theorem leaves out 0, where it is the known result).
      steps: N, the number of iterates in the mean, 2 or more.
      noise: sigma^2.

    Raises:
      ValueError: for what the theorem does not cover.

    Source: Theorem 1.
    """
    require_positive("eta", eta)
    require(is_number(gamma) and 0 <= gamma <= 0.5, "gamma", gamma, "a number from 0 to 1/2")
    require_count("steps", steps, least=2)
    require_noise(noise)
    require(problem.batch_size == 1, "batch_size", problem.batch_size, "1: the theorem's own")
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
    """Returns the p of the best fit `risk = c N^-p`, by least squares of the logarithms.

    Args:
      steps: int[T], lengths of runs, two or more.
      risks: float64[T], their risks; one that is not positive and finite gives NaN, as does a
        single length.
    """
    if len(steps) < 2 or not (np.isfinite(risks) & (risks > 0)).all():
        return math.nan
    return float(-np.polyfit(np.log(steps), np.log(risks), 1)[0])
