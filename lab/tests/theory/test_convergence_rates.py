"""Rates and the bound of Theorem 1 against their definitions."""

import math

import numpy as np
import pytest

from anytime_lab.theory import convergence_rates
from anytime_lab.theory.problem import Problem


def test_gamma_star_beyond_its_regime():
    assert convergence_rates.gamma_star(1.5, 1.2) == 0  # b <= a
    assert convergence_rates.gamma_star(1.5, 9.0) == 0.5  # b > 2a
    with pytest.raises(ValueError, match="a = 1"):
        convergence_rates.gamma_star(1.0, 2.0)


@pytest.mark.parametrize(("a", "b"), [(1.1, 1.4), (1.5, 2.5), (1.9, 3.8), (3.0, 3.1)])
def test_gamma_star_has_the_best_exponent_which_is_minimax(a, b):
    best = convergence_rates.power_law_exponent(a, b, convergence_rates.gamma_star(a, b))
    assert best == pytest.approx(1 - 1 / b)
    assert best == pytest.approx(convergence_rates.minimax_exponent(a, b))
    grid = np.linspace(0, 0.99, 100)
    assert max(convergence_rates.power_law_exponent(a, b, gamma) for gamma in grid) <= best + 1e-12
    assert all(rate.holds(a, b) for rate in convergence_rates.RATES[1:])


def test_terms_of_theorem_1_are_sums_over_coordinates():
    problem, eta, gamma, steps, noise = Problem(1.5, 2.5, 4000), 0.3, 0.4, 20_000, 0.2
    bound = convergence_rates.theorem_1(problem, eta, gamma, steps, noise)
    index = np.arange(1, 4001.0)
    lambdas, target = index**-1.5, index**-1.0
    k = int((lambdas >= math.log(steps) / (eta * steps ** (1 - gamma))).sum())
    assert bound.k_star == k
    assert k > 3
    tail = lambdas[k:]
    expected = {
        "bias_head": (lambdas[:k] * target[:k]).sum() / steps,
        "bias_tail": (tail * target[k:]).sum(),
        "variance_head": k * noise / steps,
        "variance_square": noise * (eta**2 * tail**2 * steps ** (1 - 2 * gamma)).sum(),
        "variance_linear": noise * (eta * tail * steps**-gamma).sum(),
    }
    for name, term in expected.items():
        assert getattr(bound, name) == pytest.approx(term, rel=1e-12)
    assert bound.total == pytest.approx(sum(expected.values()))


def test_theorem_1_with_no_coordinate_learned():
    assert convergence_rates.theorem_1(Problem(1.5, 2.5), 0.01, 0.5, 10, 0.1).k_star == 0


def test_fitted_exponent_of_diverged_runs_is_nan():
    risks = np.array([1.0, np.inf, np.inf])
    assert math.isnan(convergence_rates.fitted_exponent(np.array([10, 100, 1000]), risks))
