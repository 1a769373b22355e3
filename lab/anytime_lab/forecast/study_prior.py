"""Prior knowledge of a run's losses from the runs of a study."""

import math
from collections.abc import Callable, Sequence

from anytime_jax.config.kinds import NOBODY, Trust
from anytime_jax.errors import InputError
from anytime_lab.forecast import run_loss_history
from anytime_lab.forecast.functional_law_fit import FunctionalFit
from anytime_lab.forecast.prior import Belief, LawError, Prior, general_prior
from anytime_lab.forecast.run_loss_history import RecordedRun
from anytime_lab.study.results import compared_settings

_MOST_RUNS = 12  # most runs in a fit, which then takes a few seconds
_SHORTEST = 0.1  # fraction of the longest run: shorter runs say little about later losses
# Standard deviations of a run's law around the law of other runs of the same model, data and peak,
# rounded from the first laptop study. They are of logarithms; floor and offset are in nats.
_SPREADS = {
    "floor": 0.007,
    "signal": 0.03,
    "signal_exponent": 0.06,
    "signal_time": 0.2,
    "noise": 0.06,
    "noise_rate": 0.15,
    "noise_exponent": 0.02,
    "weight_growth": 0.15,
    "drift": 0.1,
    "training_offset": 0.007,
}
_LAW_ERROR = LawError(noise_change=0.06, noise=0.06, fall=0.03)


def general(run: RecordedRun) -> Prior:
    """Returns beliefs about a run without similar runs."""
    model = run.config.model
    variance = 1 / model.width if model.initial_scale == "depth" else 0.02**2
    return general_prior(run.history.after_warmup(), variance)


def from_study(
    run: RecordedRun,
    path: str,
    warn: Callable[[str], None] = lambda text: None,
    trust: Trust = NOBODY,
) -> Prior:
    """Returns beliefs about a run from the study at `path`, without the run itself.

    `trust` says which packages are imported for the kinds that the study names.

    Raises an InputError if no run of the study has the run's model, batch and optimizer.
    """
    others = [other for other, _ in run_loss_history.read_study(path, warn, trust=trust)]
    return from_runs(run, [x for x in others if not _is_same(x, run)], f"--study={path}")


def from_runs(run: RecordedRun, others: Sequence[RecordedRun], source: str) -> Prior:
    """Returns beliefs about a run from other runs of its model, with the nearest peak.

    Raises an InputError that names `source` if there are none.
    """
    return RelatedRuns(run, others, source).prior(run)


class RelatedRuns:
    """Law of the runs with a run's model, data and optimizer, and the nearest peak."""

    def __init__(self, run: RecordedRun, others: Sequence[RecordedRun], source: str):
        """Fits the law.

        Raises an InputError that names `source` if there are no such runs.
        """
        alike = [x for x in others if not _differences(x, run)]
        longest = max((x.history.step for x in alike), default=0)
        alike = [x for x in alike if x.history.step >= _SHORTEST * longest]
        if not alike:
            shown = sorted(_differences(others[0], run)) if others else []
            reason = f" (others differ in {', '.join(shown[:4])})" if shown else ""
            raise InputError(
                f"{source} has no other run of the model, data and optimizer of {run.name}"
                f"{reason}: leave it out, or give the study of such runs"
            )
        self._distance = min(_distance(x, run) for x in alike)
        nearest = [x for x in alike if _distance(x, run) == self._distance]
        nearest.sort(key=lambda x: -x.history.step)
        histories = [x.history for x in nearest[:_MOST_RUNS]]
        self._fit = FunctionalFit(histories, general(nearest[0]), samples=2)

    def prior(self, run: RecordedRun) -> Prior:
        """Returns beliefs about a run, whose losses so far are counted from its latest step."""
        means = self._fit.beliefs(run.history.after_warmup())
        # With another peak, all parameters of the law but the exponents change.
        wider = 1 + 4 * self._distance
        beliefs = {name: Belief(means[name], sd * wider) for name, sd in _SPREADS.items()}
        return Prior(**beliefs, law_error=_LAW_ERROR)


def _distance(x: RecordedRun, run: RecordedRun) -> float:
    return abs(math.log(x.config.learning_rate.peak / run.config.learning_rate.peak))


def _is_same(x: RecordedRun, run: RecordedRun) -> bool:
    return x.config.identity(x.data) == run.config.identity(run.data)


def _differences(x: RecordedRun, run: RecordedRun) -> set[str]:
    """Settings that change a law in which two runs differ; seeds and schedules do not count."""
    ours, theirs = ({**compared_settings(z.config), "data": z.data} for z in (x, run))
    names = {name for name in ours.keys() | theirs.keys() if not name.startswith("schedule.")}
    return {name for name in names if ours.get(name) != theirs.get(name)}
