"""Prior knowledge of a functional law: what is believed of its parameters before a run's losses."""

import dataclasses
import math

import numpy as np

from anytime_jax.lab.forecast.loss_history import LossHistory

TYPICAL_VARIANCE = 0.02**2  # of initial weights


@dataclasses.dataclass(frozen=True)
class Belief:
    """Normal distribution of a value, or of its logarithm."""

    mean: float
    sd: float


@dataclasses.dataclass(frozen=True)
class LawError:
    """Standard deviation of what laws of this form miss, whatever their parameters.

    That of a loss is the root of the sum of the squares of two shares: of how far the noise term is
    from that of the latest live loss, and of the noise term itself. From the errors of forecasts of
    the laptop study (docs/forecast.md).

    Attributes:
      fall: a share of the difference of two losses, beside what comes of their noise.
    """

    noise_change: float = 0.15
    noise: float = 0.2
    fall: float = 0.1


@dataclasses.dataclass(frozen=True)
class Prior:
    """Beliefs about the parameters of a `FunctionalLaw`; about logarithms, unless said otherwise.

    The amplitudes are believed by the terms of the live loss at the latest step, in nats.

    Attributes:
      floor: about the parameter itself.
      training_offset: about the training loss minus the held-out loss of the same weights, in nats.
    """

    signal: Belief
    noise: Belief
    signal_exponent: Belief
    signal_time: Belief
    noise_rate: Belief
    noise_exponent: Belief
    weight_growth: Belief
    drift: Belief
    training_offset: Belief = Belief(0.0, 0.05)
    floor: Belief = Belief(0.0, 1e6)
    law_error: LawError = LawError()


def general_prior(history: LossHistory, initial_variance: float = TYPICAL_VARIANCE) -> Prior:
    """Returns beliefs about any decoder trained with Adam, in the run's own unit of the rate.

    They are wide: one standard deviation is a factor of two or more, of the exponents 1.2 to 1.5.
    Their centers are round numbers near the laws of two kinds of runs: the decoders of 98,304
    parameters of the laptop study, and the published losses of decoders of 25M and 100M (arXiv
    2503.12811). Forecasts of these runs are therefore no test of them. An update adds about 0.3
    times its squared rate to the variance of the weights, `initial_variance` at first, whence
    `weight_growth`.
    """
    peak = history.schedule.peak
    warmup = np.arange(max(history.warmup_steps, int(history.first.min()), 1))
    # A log whose first rates are all 0 has no time before its first loss, of which a log is taken.
    warmup_time = float(history.schedule.evaluate(warmup).sum()) or peak
    return Prior(
        signal=Belief(math.log(0.4), 0.7),
        noise=Belief(math.log(0.08), 0.7),
        signal_exponent=Belief(math.log(0.7), 0.4),
        signal_time=Belief(math.log(0.2 * warmup_time), 1.5),
        noise_rate=Belief(math.log(0.5 / peak), 1.3),
        noise_exponent=Belief(math.log(1.1), 0.2),
        weight_growth=Belief(math.log(0.3 / initial_variance), 1.0),
        drift=Belief(math.log(0.4), 0.7),
    )
