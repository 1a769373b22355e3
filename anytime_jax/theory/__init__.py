"""The theory bench: the exact risk of SGD on linear regression, for any schedule and average.

from anytime_jax import schedules, theory

problem = theory.Problem(a=1.5, b=3.0)
given = [schedules.Power(0.5 / problem.trace, gamma=0.5)]
risks = theory.excess_risk(problem, given, [25.0], checkpoints=[1_000, 100_000])
risks.excess(noise=0.1, label="f25")  # float64[schedules, checkpoints]
"""

from anytime_jax.theory.direct_recursion import direct_risk
from anytime_jax.theory.rates import gamma_star, theorem_1
from anytime_jax.theory.risk import Risks, excess_risk
from anytime_jax.theory.spectrum import Problem, Quadrature
from anytime_jax.theory.tail_averages import Tail
from anytime_jax.weights.post_hoc import LastFraction

__all__ = [
    "LastFraction",
    "Problem",
    "Quadrature",
    "Risks",
    "Tail",
    "direct_risk",
    "excess_risk",
    "gamma_star",
    "theorem_1",
]
