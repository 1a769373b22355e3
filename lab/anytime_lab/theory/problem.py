"""Linear regression with a power-law spectrum.

    x ~ N(0, H),  y = <x, w*> + N(0, sigma^2),  H = diag(i^-a),  (w*_i)^2 = i^-(b-a),  i = 1 .. d

Source: Section 3, "Setup and notation"; Corollary 1 (here the target is not normalized).
"""

import dataclasses
import functools
import math

from scipy.special import zeta

from anytime_jax.checks import is_number, require


@dataclasses.dataclass(frozen=True)
class Problem:
    """Linear regression whose eigenvalues and target follow power laws.

    Attributes:
      a: capacity exponent, more than 1: eigenvalues lambda_i = i^-a.
      b: source exponent, more than 1: lambda_i (w*_i)^2 = i^-b.
      dimension: number of coordinates, `math.inf` for all.

    Examples:
      >>> round(theory.Problem(a=2.0, b=3.0).trace, 6)  # pi^2 / 6
      1.644934
    """

    a: float
    b: float
    dimension: float = math.inf

    def __post_init__(self) -> None:
        for name, value in (("a", self.a), ("b", self.b)):
            ok = is_number(value) and 1 < value <= 20
            require(ok, name, value, "a number above 1, so that its sums converge, up to 20")
        if self.dimension != math.inf:
            whole = is_number(self.dimension) and self.dimension == int(self.dimension)
            ok = whole and 1 <= self.dimension <= 1e15
            require(ok, "dimension", self.dimension, "a whole number from 1 to 1e15, or inf")

    @functools.cached_property
    def trace(self) -> float:
        """tr(H), the sum of all eigenvalues, exactly."""
        return self.power_sum(self.a)

    def step_unit(self, batch_size: int = 1) -> float:
        """Unit of step sizes: 1/tr(H) for single samples, towards 1/lambda_1 for large batches.

            1 / (tr(H) / B + lambda_1 (1 - 1/B)),      lambda_1 = 1

        Constant step sizes are stable up to 0.7 times it (a = 20) or 1.5 times it (a near 1).
        """
        return 1 / (self.trace / batch_size + 1 - 1 / batch_size)

    def power_sum(self, exponent: float, after: int = 0) -> float:
        """Returns the sum of i^-exponent over the coordinates i > after."""
        if after >= self.dimension:
            return 0.0
        end = 0.0 if self.dimension == math.inf else float(zeta(exponent, self.dimension + 1))
        return float(zeta(exponent, after + 1)) - end
