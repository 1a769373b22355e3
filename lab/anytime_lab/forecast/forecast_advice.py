"""Advice on a run from its forecast: one sentence, by rules that include the uncertainty."""

import dataclasses

from anytime_lab.forecast.run_forecast import COST_NATS, Estimate


@dataclasses.dataclass(frozen=True)
class Outlook:
    """Forecast of the next point of a run.

    Attributes:
      point: where that is, as text.
      distance: how far it is from now, as text.
      weights: label of the weights with the lowest loss there.
      gain: how much lower their loss is there than now.
      over_decay: their loss there minus the loss of a run whose decay ends there, if known.
      decay: that decay, as text.
      branch_step: the step at which it starts.
      is_calibrated: whether forecasts so far ahead were calibrated.
    """

    point: str
    distance: str
    weights: str
    gain: Estimate
    over_decay: Estimate | None
    decay: str
    branch_step: int
    is_calibrated: bool = True


def advise(outlook: Outlook) -> str:
    """Returns one sentence: what training on gains, and whether a decay is worth it."""
    if not outlook.is_calibrated:
        return (
            f"No advice on {outlook.point}: it is beyond four times the run so far, where no "
            "forecast was calibrated."
        )
    decay = _on_decay(outlook)
    return f"{_on_gain(outlook)}{f'; {decay}' if decay else ''}."


def _on_gain(outlook: Outlook) -> str:
    gain = outlook.gain
    goal = f"{outlook.distance} to {outlook.point}"
    if gain.high < COST_NATS:
        return (
            f"Little is left to gain: {goal} lower the loss through {outlook.weights} by less than "
            f"{COST_NATS:g} nats"
        )
    interval = f"{gain.loss:.3f} nats ({gain.low:.3f} to {gain.high:.3f})"
    if gain.low <= 0:
        return (
            f"It is not known whether training on helps: {goal} lower the loss through "
            f"{outlook.weights} by {interval}"
        )
    return f"Train on if {interval} through {outlook.weights} are worth {goal}"


def _on_decay(outlook: Outlook) -> str | None:
    """Returns the value of a decay that ends at the next point, in words."""
    over = outlook.over_decay
    if over is None:
        return None
    name, decay = outlook.weights, outlook.decay
    if over.low > 0:
        return (
            f"{decay} would end lower than {name} by {over.loss:.3f} nats ({over.low:.3f} to "
            f"{over.high:.3f}): branch at step {outlook.branch_step:,}"
        )
    if over.high < 0:
        return (
            f"{decay} is not needed: it would end higher than {name}, by {-over.loss:.3f} nats "
            f"({-over.high:.3f} to {-over.low:.3f})"
        )
    if max(-over.low, over.high) <= COST_NATS:
        return f"{decay} is not needed: it would end level with {name}, within {COST_NATS:g} nats"
    return (
        f"whether {decay} would end lower than {name} is not known: it would end between "
        f"{-over.low:.3f} nats higher and {over.high:.3f} lower"
    )
