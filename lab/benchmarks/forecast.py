"""Errors of forecasts of real loss curves, by law, and the seconds that a forecast takes.

    python -m lab.benchmarks.forecast

Laws are fitted to some curves of models of 25M and 100M parameters and predict six other curves, as
in arXiv 2503.12811. They are fitted to a cosine, a constant run and a drop of the rate, and, which
is harder, without the cosine. The published law is the authors' own fit. Then the functional law is
fitted to the beginning of one curve, as `forecast --csv` does.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from anytime_jax import schedules
from anytime_jax.schedules import Schedule
from anytime_lab.forecast.functional_law_fit import INTERVAL, FunctionalFit
from anytime_lab.forecast.loss_history import LossHistory
from anytime_lab.forecast.prior import general_prior
from benchmarks import harness, record
from lab.benchmarks import loss_curves, power_law_fit
from lab.benchmarks.rival_laws import MultiPowerLaw, PowerLaw


class Law(Protocol):
    """The loss of a run as a function of its schedule."""

    def losses(self, schedule: Schedule, steps: np.typing.ArrayLike) -> np.ndarray:
        """Returns the losses after `steps` updates."""
        ...


# Fits by the name of their law; to add a law, add a line.
FITS: Mapping[str, Callable[[Sequence[LossHistory]], Law]] = {
    "power": lambda histories: power_law_fit.fit(PowerLaw, histories),
    "multi-power": lambda histories: power_law_fit.fit(MultiPowerLaw, histories),
    "functional": lambda histories: FunctionalFit(histories, general_prior(histories[0])).law,
}
_FITTED = (loss_curves.FITTED, ("constant_24000", "wsdcon_9"))
_LONG_CURVES = ("constant_72000", "cosine_72000")  # the curves that are cut
_OTHER_CURVES = ("wsdld_20000_24000", "cosine_24000", "cosine_72000")
_CUTS = (4_000, 6_000, 8_000, 12_000, 18_000, 24_000, 36_000)
_LONG = 1_000_000  # updates
_ERRORS = ("R2", "MAE", "RMSE", "mean_relative", "worst_relative")


def main(argv: Sequence[str]) -> int:
    parser = harness.make_parser("lab.benchmarks.forecast", __doc__, rounds=3)
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
    cuts = [row for size in loss_curves.PUBLISHED for row in _cuts(size)]
    covered = sum(row["covered"] for row in cuts)
    record.show(f"One curve: {covered} of {len(cuts)} in their {INTERVAL:.0%} interval", cuts)
    title = f"Errors in nats per token, means over {len(loss_curves.PREDICTED)} predicted curves"
    return record.Result(title, rows, {"curves": details, "cuts": cuts})


def _cuts(size: str) -> list[record.Row]:
    """Forecasts one curve from its beginning, and curves of other schedules from it."""
    curves = loss_curves.load(size)
    rows: list[record.Row] = []
    for name in _LONG_CURVES:
        for cut in _CUTS:
            history = curves[name].until(cut)
            fit = FunctionalFit([history], general_prior(history))
            targets = [(name, factor * cut) for factor in (2, 4)]
            if name == "constant_72000":
                targets += [(other, curves[other].step) for other in _OTHER_CURVES]
            for target, step in targets:
                if cut < step <= curves[target].step + cut // 100:
                    rows.append(_compare(size, name, cut, fit, target, curves[target], step))
    return rows


def _compare(
    size: str,
    name: str,
    cut: int,
    fit: FunctionalFit,
    target: str,
    history: LossHistory,
    step: int,
) -> record.Row:
    """Returns a row of a forecast and the mean loss within a percent of its step."""
    actual = float(history.losses[np.abs(history.last / step - 1) < 0.01].mean())
    prediction = fit.predict(history.schedule, [min(step, history.step)])
    error = float(prediction.losses[0, 0]) - actual
    half_width = float(prediction.high[0, 0] - prediction.losses[0, 0])
    row = {"size": size, "curve": name, "cut at": cut, "forecast of": target, "at": step}
    return {**row, "error": error, "half_width": half_width, "covered": abs(error) <= half_width}


def _time(function: Callable[[], Law], rounds: int) -> tuple[float, Law]:
    """Returns the median seconds of some calls, and the last result."""
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
