"""Quadrature against explicit sums over all coordinates."""

import math

import numpy as np
import pytest

from anytime_lab.theory.problem import Problem
from anytime_lab.theory.quadrature import nodes


@pytest.mark.parametrize(("a", "b"), [(1.1, 1.1), (1.1, 2.2), (1.5, 1.7), (1.9, 3.8), (2.5, 1.3)])
def test_sums_over_all_coordinates(a, b):
    problems = [Problem(a, b, dimension) for dimension in (500_000, math.inf)]
    rules = [nodes(problem, reach=75_000.0) for problem in problems]
    assert max(len(at) for at, _ in rules) <= 64
    index = np.arange(1, 500_001.0)
    lambdas, powers = index**-a, (b, 2 * a)  # what multiplies the target, and the noise
    factors = {power: index**-power for power in powers}
    for time in (0.0, 1.0, 30.0, 1e3, 2e4, 75_000.0):
        decays = np.exp(-time * lambdas)
        for power in powers:
            # The rest of infinitely many, where the exponential is its first terms.
            beyond = [problems[1].power_sum(power + n * a, 500_000) for n in range(8)]
            rest = sum((-time) ** n / math.factorial(n) * x for n, x in enumerate(beyond))
            exact = factors[power] @ decays
            for (at, weight), expected in zip(rules, (exact, exact + rest), strict=True):
                quadrature = weight @ (at**-power * np.exp(-time * at**-a))
                assert quadrature == pytest.approx(expected, rel=1e-9)


def test_power_sums():
    index = np.arange(1, 1001.0)
    assert Problem(1.5, 2.0, 1000).trace == pytest.approx(math.fsum(index**-1.5), rel=1e-13)
    assert Problem(1.5, 2.0).power_sum(2.0) == pytest.approx(math.pi**2 / 6, rel=1e-14)
    assert Problem(1.5, 2.0, 10).power_sum(2.0, after=10) == 0


def test_few_coordinates_are_nodes_of_their_own():
    index, weight = nodes(Problem(1.5, 2.0, 64), reach=1e5)
    np.testing.assert_array_equal(index, np.arange(1, 65))
    np.testing.assert_array_equal(weight, 1)
