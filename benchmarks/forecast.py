"""Errors of forecasts of real loss curves, by law, and the seconds that a forecast takes.

    python -m benchmarks.forecast

Laws are fitted to some curves and predict six others that they have not seen, of models of 25M and
100M parameters, as in arXiv 2503.12811: to a cosine, a constant run and a drop of the rate, and,
harder, without the cosine. The published law is the authors' own fit.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from anytime_jax import schedules
from anytime_jax.forecast import law_fit
from anytime_jax.forecast.functional_law_fit import FunctionalFit
from anytime_jax.forecast.laws import Law, MultiPowerLaw, PowerLaw
from anytime_jax.forecast.loss_history import LossHistory
from anytime_jax.forecast.prior import general_prior
from benchmarks import harness, loss_curves, record

# Fits by the name of their law; another law is one more line.
FITS: Mapping[str, Callable[[Sequence[LossHistory]], Law]] = {
    "power": lambda histories: law_fit.fit(PowerLaw, histories).law,
    "multi-power": lambda histories: law_fit.fit(MultiPowerLaw, histories).law,
    "functional": lambda histories: FunctionalFit(histories, general_prior(histories[0])).law,
}
_FITTED = (loss_curves.FITTED, ("constant_24000", "wsdcon_9"))
_LONG = 1_000_000  # updates
_ERRORS = ("R2", "MAE", "RMSE", "mean_relative", "worst_relative")


def main(argv: Sequence[str]) -> int:
    parser = harness.make_parser("forecast", __doc__, rounds=3)
    return record.run(parser, argv, _measure)


def _measure(options: argparse.Namespace) -> record.Result:
    rows: list[record.Row] = []
    details: list[record.Row] = []
    for size, published in loss_curves.PUBLISHED.items():
        curves = loss_curves.load(size)
        for names in _FITTED:
            histories = [curves[name] for name in names]
            laws = {"published": lambda _, law=published: law} if names == _FITTED[0] else {}
            for law_name, fit in {**laws, **FITS}.items():
                seconds, law = _time(lambda: fit(histories), options.rounds)  # noqa: B023
                long, _ = _time(lambda: _predict(law), options.rounds)  # noqa: B023
                errors = {name: _errors(law, curves[name]) for name in loss_curves.PREDICTED}
                head = {"size": size, "fitted to": ", ".join(names), "law": law_name}
                means = np.mean(list(errors.values()), axis=0).tolist()
                fitted = law_name != "published"
                times = {"fit_seconds": seconds if fitted else None, "million_seconds": long}
                rows.append({**head, **dict(zip(_ERRORS, means, strict=True)), **times})
                details += [
                    {**head, "curve": name, **dict(zip(_ERRORS, values, strict=True))}
                    for name, values in errors.items()
                ]
    record.show("Errors of each predicted curve", details)
    title = f"Errors in nats per token, means over {len(loss_curves.PREDICTED)} predicted curves"
    return record.Result(title, rows, {"curves": details})


def _time(function: Callable[[], Law], rounds: int) -> tuple[float, Law]:
    """The median seconds of some calls, and the last result."""
    seconds, result = [], function()
    for _ in range(rounds):
        start = time.perf_counter()
        result = function()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds), result


def _predict(law: Law) -> Law:
    """Predicts 100 losses of a long cosine run."""
    steps = np.linspace(_LONG / 100, _LONG, 100).astype(int)
    law.losses(schedules.cosine(loss_curves.PEAK, _LONG, loss_curves.WARMUP_STEPS), steps)
    return law


def _errors(law: Law, history: LossHistory) -> tuple[float, ...]:
    """The numbers of `_ERRORS`."""
    error = law.losses(history.schedule, history.last) - history.losses
    relative = np.abs(error) / history.losses
    explained = 1 - np.mean(error**2) / np.var(history.losses)
    values = explained, np.abs(error).mean(), np.sqrt(np.mean(error**2)), relative.mean()
    return (*map(float, values), float(relative.max()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
