"""Quadrature: a few dozen weighted nodes that stand for all coordinates of a problem.

Every sum over coordinates that the risk needs is smooth in i. So nodes i_k, which need not be
whole numbers, with weights W_k give it for any number of coordinates, infinity included:

    sum_i g(i) = sum_k W_k g(i_k)

The first coordinates are nodes of their own. The following coordinates, up to where `lambda_i *
reach` falls to 1 (`reach` is the sum of all step sizes), share one Gauss rule of the measure i^-e
in the variable log i; the rest, which are hardly learned, share another in i^(-1/4). Here e =
min(b, 2a), because sums of the target fall as i^-b and sums of the noise as i^-2a.

Source: Golub and Welsch (1969), "Calculation of Gauss quadrature rules"; Lanczos' algorithm with
each vector orthogonalised twice gives the Jacobi matrices.
"""

import math

import numpy as np

from anytime_lab.theory.problem import Problem

_ENUMERATED = 2**16  # coordinates that enter the measure one by one; the others enter by integrals
_FAR_POWER = 0.25  # the variable of the far rule is i^-0.25


def nodes(
    problem: Problem, reach: float, first: int = 12, near: int = 40, far: int = 12
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the nodes of a problem: coordinates i_k and weights W_k, float64[K] each.

    If there are fewer coordinates than nodes, all of them are nodes, with weight 1.

    Args:
      problem: the problem.
      reach: the largest sum of step sizes of any run.
      first: coordinates that are nodes of their own.
      near: nodes for the coordinates that training reaches; four more are added for each factor of
        10 in the reach beyond 1e5.
      far: nodes for all others.

    Examples:
      64 nodes give the sum of i^-1.5 over infinitely many coordinates:

      >>> problem = theory.Problem(a=1.5, b=2.0)
      >>> index, weight = theory.quadrature.nodes(problem, reach=1e5)
      >>> float(abs(weight @ index**-2.0 / problem.power_sum(2.0) - 1)) < 1e-9
      True
    """
    near += 4 * max(0, math.ceil(math.log10(max(reach, 1.0)) - 5))
    if problem.dimension <= first + near + far:
        index = np.arange(1.0, problem.dimension + 1)
        return index, np.ones_like(index)
    exponent = min(problem.b, 2 * problem.a)
    x, mass = _measure(problem.dimension, exponent, first)
    learned = x <= math.log(max(reach, 2.0 * first)) / problem.a
    x_near, mass_near = _gauss(x[learned], mass[learned], near)
    u_far, mass_far = _gauss(np.exp(-_FAR_POWER * x[~learned]), mass[~learned], far)
    index = np.exp(np.concatenate([x_near, -np.log(u_far) / _FAR_POWER]))
    weight = np.concatenate([mass_near, mass_far]) * index**exponent
    own = np.arange(1.0, first + 1)
    return np.concatenate([own, index]), np.concatenate([np.ones_like(own), weight])


def _measure(dimension: float, exponent: float, first: int) -> tuple[np.ndarray, np.ndarray]:
    """Points x = log i and masses of i^-e over all i > first.

    Coordinates are summed one by one up to 2^16. Beyond, the sum is the integral from half a
    coordinate before the next one (Euler and Maclaurin: the relative error is e (e - 1) / 24 *
    2^-32), by 20-point Gauss and Legendre on panels of growing width, up to where masses fall below
    1e-20.
    """
    end = min(dimension, _ENUMERATED)
    x = np.log(np.arange(first + 1, end + 1))
    mass = np.exp(-exponent * x)
    if dimension <= _ENUMERATED:
        return x, mass
    start = math.log(_ENUMERATED + 0.5)
    end = min(math.log(dimension + 0.5), start + 46 / (exponent - 1))
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
    diagonal, off_diagonal = np.zeros(nodes), np.zeros(nodes)
    vector = np.sqrt(mass / mass.sum())
    for k in range(nodes):
        basis[k] = vector
        vector = x * vector
        diagonal[k] = basis[k] @ vector
        # Orthogonalizing once leaves rounding errors that grow from step to step.
        for _ in range(2):
            vector -= (basis[: k + 1] @ vector) @ basis[: k + 1]
        off_diagonal[k] = np.linalg.norm(vector)
        vector /= off_diagonal[k]
    jacobi = np.diag(diagonal) + np.diag(off_diagonal[:-1], 1) + np.diag(off_diagonal[:-1], -1)
    nodes_x, vectors = np.linalg.eigh(jacobi)
    return nodes_x, mass.sum() * vectors[0] ** 2
