"""The problem: Gaussian linear regression with a power-law spectrum, and a rule for its sums.

    x ~ N(0, H),  y = <x, w*> + N(0, sigma^2),  H = diag(i^-a),  (w*_i)^2 = i^-(b-a),  i = 1 .. d

Every sum over coordinates that the risk needs is smooth in i. So a few dozen nodes i_k, which need
not be whole numbers, with weights W_k stand for all d coordinates, also for d = infinity:

    sum_i g(i) = sum_k W_k g(i_k)

The first coordinates are nodes of their own. The next ones, up to where `lambda_i * reach` falls to
1 (`reach` is the sum of all step sizes), are one Gauss rule of the measure i^-e in the variable
log i, and all that follow, which are hardly learned, another in i^(-1/4); e = min(b, 2a), since the
target's sums fall as i^-b and those of the noise as i^-2a. Both come from Lanczos'
algorithm with each vector orthogonalised twice.

Source: Section 3, "Setup and notation" and Corollary 1; Golub and Welsch (1969) for the rule.
"""

import dataclasses
import functools
import math

import numpy as np
from scipy.special import zeta

from anytime_jax.checks import is_number, require, require_count

_ENUMERATED = 2**16  # coordinates that enter the measure one by one; integrals beyond
_FAR_POWER = 0.25  # the variable of the far rule is i^-0.25


@dataclasses.dataclass(frozen=True)
class Problem:
    """Linear regression whose eigenvalues and target follow power laws.

    Attributes:
      a: capacity exponent, more than 1: eigenvalues lambda_i = i^-a.
      b: source exponent, more than 1: lambda_i (w*_i)^2 = i^-b.
      dimension: number of coordinates, `math.inf` for all.
      batch_size: samples in an update.

    Source: Corollary 1 (the target is not normalised).
    """

    a: float
    b: float
    dimension: float = math.inf
    batch_size: int = 1

    def __post_init__(self) -> None:
        """Checks every field."""
        for name, value in (("a", self.a), ("b", self.b)):
            ok = is_number(value) and 1 < value <= 20
            require(ok, name, value, "a number above 1, so that its sums converge, up to 20")
        if self.dimension != math.inf:
            whole = is_number(self.dimension) and self.dimension == int(self.dimension)
            ok = whole and 1 <= self.dimension <= 1e15
            require(ok, "dimension", self.dimension, "a whole number from 1 to 1e15, or inf")
        require_count("batch_size", self.batch_size, least=1)

    @functools.cached_property
    def trace(self) -> float:
        """tr(H), the sum of all eigenvalues, exactly."""
        return self.power_sum(self.a)

    @property
    def step_unit(self) -> float:
        """The unit of step sizes: 1/tr(H) for single samples, 1/lambda_1 for whole batches.

            1 / (tr(H) / B + lambda_1 (1 - 1/B)),      lambda_1 = 1

        Constant step sizes are stable up to 0.7 times it (a = 20) or 1.5 times it (a near 1).
        """
        return 1 / (self.trace / self.batch_size + 1 - 1 / self.batch_size)

    def power_sum(self, exponent: float, after: int = 0) -> float:
        """Returns the sum of i^-exponent over the coordinates i > after."""
        if after >= self.dimension:
            return 0.0
        end = 0.0 if self.dimension == math.inf else float(zeta(exponent, self.dimension + 1))
        return float(zeta(exponent, after + 1)) - end


@dataclasses.dataclass(frozen=True)
class Nodes:
    """Coordinates and what they stand for.

    Attributes:
      index: float64[K], coordinates i_k.
      weight: float64[K], number of coordinates each stands for.
    """

    index: np.ndarray
    weight: np.ndarray


@dataclasses.dataclass(frozen=True)
class Quadrature:
    """How many nodes stand for all coordinates.

    Attributes:
      first: coordinates that are nodes of their own.
      near: nodes for those that training reaches; four more for each factor of 10 in the reach
        beyond 1e5.
      far: nodes for all that follow.
    """

    first: int = 12
    near: int = 40
    far: int = 12

    def nodes(self, problem: Problem, reach: float) -> Nodes:
        """Returns the nodes of a problem.

        Args:
          problem: the problem.
          reach: the largest sum of step sizes of any run, in units of 1/eigenvalue.

        Returns:
          all coordinates, each with weight 1, where they are fewer than the rule's nodes; else the
          nodes of the rule.
        """
        near = self.near + 4 * max(0, math.ceil(math.log10(max(reach, 1.0)) - 5))
        if problem.dimension <= self.first + near + self.far:
            index = np.arange(1.0, problem.dimension + 1)
            return Nodes(index, np.ones_like(index))
        x, mass = _measure(problem, self.first)
        learned = x <= math.log(max(reach, 2.0 * self.first)) / problem.a
        x_near, mass_near = _gauss(x[learned], mass[learned], near)
        u_far, mass_far = _gauss(np.exp(-_FAR_POWER * x[~learned]), mass[~learned], self.far)
        index = np.exp(np.concatenate([x_near, -np.log(u_far) / _FAR_POWER]))
        weight = np.concatenate([mass_near, mass_far]) * index ** _exponent(problem)
        alone = np.arange(1.0, self.first + 1)
        return Nodes(np.concatenate([alone, index]), np.concatenate([np.ones_like(alone), weight]))


def _exponent(problem: Problem) -> float:
    """The slower of the two ways in which sums over coordinates fall."""
    return min(problem.b, 2 * problem.a)


def _measure(problem: Problem, first: int) -> tuple[np.ndarray, np.ndarray]:
    """Points x = log i and masses of i^-e over all i > first, e = min(b, 2a).

    One by one up to 2^16. Beyond, the sum is the integral from half a coordinate before the next
    one (Euler and Maclaurin: the relative error is e (e - 1) / 24 * 2^-32), by 20-point Gauss and
    Legendre on panels of growing width, as far as masses above 1e-20 reach.
    """
    exponent = _exponent(problem)
    end = min(problem.dimension, _ENUMERATED)
    x = np.log(np.arange(first + 1, end + 1))
    mass = np.exp(-exponent * x)
    if problem.dimension <= _ENUMERATED:
        return x, mass
    start = math.log(_ENUMERATED + 0.5)
    end = min(math.log(problem.dimension + 0.5), start + 46 / (exponent - 1))
    edges = start + 0.5 * (1.15 ** np.arange(0, 400) - 1) / 0.15
    edges = np.append(edges[edges < end], end)
    points, weights = np.polynomial.legendre.leggauss(20)
    half = np.diff(edges)[:, None] / 2
    beyond = (edges[:-1, None] + half * (1 + points)).ravel()
    mass_beyond = (half * weights).ravel() * np.exp(-(exponent - 1) * beyond)
    return np.concatenate([x, beyond]), np.concatenate([mass, mass_beyond])


def _gauss(x: np.ndarray, mass: np.ndarray, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """The Gauss rule of a discrete measure: nodes and masses, exact for polynomials in x."""
    if len(x) <= nodes:
        return x, mass
    basis = np.zeros((nodes, len(x)))
    diagonal, beside = np.zeros(nodes), np.zeros(nodes)
    vector = np.sqrt(mass / mass.sum())
    for k in range(nodes):
        basis[k] = vector
        vector = x * vector
        diagonal[k] = basis[k] @ vector
        for _ in range(2):  # once leaves rounding errors that grow from step to step
            vector -= (basis[: k + 1] @ vector) @ basis[: k + 1]
        beside[k] = np.linalg.norm(vector)
        vector /= beside[k]
    jacobi = np.diag(diagonal) + np.diag(beside[:-1], 1) + np.diag(beside[:-1], -1)
    at, vectors = np.linalg.eigh(jacobi)
    return at, mass.sum() * vectors[0] ** 2
