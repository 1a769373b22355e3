"""Prior distributions of the parameters of a functional law, for a fit to few losses."""

import dataclasses
import math

import numpy as np

from anytime_lab.forecast.loss_history import LossHistory

_SAMPLES = 10_000  # updates of a longer warmup whose rates stand for all
TYPICAL_VARIANCE = 0.02**2  # variance of the initial weights


@dataclasses.dataclass(frozen=True)
class Belief:
    """Normal distribution of a parameter, or of its logarithm."""

    mean: float
    sd: float


@dataclasses.dataclass(frozen=True)
class LawError:
    """Error of a predicted loss that no choice of the parameters removes.

    With `noise` the noise term of the predicted loss, `noise_now` the noise term of the latest live
    loss and `other` the remaining terms, the standard deviation of the error is the root of

        (noise_change * (noise - noise_now))^2 + (noise * noise)^2 + (fall * (other - other_now))^2

    where the first factor of each square is the field below. The values are from the errors of
    forecasts of the first laptop study (docs/forecast.md).
    """

    noise_change: float = 0.15
    noise: float = 0.2
    fall: float = 0.1


@dataclasses.dataclass(frozen=True)
class Prior:
    """Beliefs about the parameters of a `FunctionalLaw`.

    They are beliefs about logarithms, except for `floor` and `training_offset`, which is the
    training loss minus the held-out loss of the same weights. The beliefs about the amplitudes
    `signal` and `noise` concern these terms of the live loss at the latest step, in nats.
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
    """Returns wide beliefs about any decoder trained with Adam.

    One standard deviation is a factor of two or more; for the exponents it is 1.2 to 1.5. The means
    are round numbers near the laws that fit the decoders of 98,304 parameters of the first laptop
    study and the published losses of decoders of 25M and 100M parameters (arXiv 2503.12811):
    forecasts of these runs do not test them. The mean of `weight_growth` assumes that an update
    adds about 0.3 times its squared rate to the variance of the weights, which is
    `initial_variance` at first.
    """
    peak = history.schedule.peak
    updates = max(history.warmup_steps, int(history.first.min()), 1)
    sampled = np.linspace(0, updates - 1, min(updates, _SAMPLES)).astype(int)
    # If the first recorded rates are all 0, their sum is 0 too and has no logarithm.
    warmup_time = updates * float(history.schedule.evaluate(sampled).mean()) or peak
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
