"""Report of a forecast: tables and lines for a terminal, and the same as JSON values."""

from collections.abc import Iterator
from typing import Any

from anytime_jax.averaging import LIVE
from anytime_jax.formatting import format_count
from anytime_jax.tables import Table, numbers
from anytime_lab.forecast.forecast_advice import Outlook, advise
from anytime_lab.forecast.forecast_subject import Subject
from anytime_lab.forecast.run_forecast import COST_NATS, Estimate, ForecastRow, RunForecast

_GOOD_MISFIT = 1.5  # misfit of a law that fits
_INTERVALS = "± is half an 80% interval"
_BEYOND = (
    "* beyond four times the run so far: nothing was calibrated there, and the true losses may lie "
    "outside of the intervals"
)


def describe(subject: Subject, forecast: RunForecast) -> Iterator[str | Table]:
    """Yields the tables and lines about a forecast."""
    now = _point(subject, forecast.history.step)
    yield f"forecast of {subject.name} from {now}, {len(forecast.history.losses):,} losses"
    yield from summarize(subject, forecast)
    if forecast.decays:
        yield _decays_table(subject, forecast)
    yield from (f"  {line}" for line in _about_the_law(subject, forecast))


def summarize(subject: Subject, forecast: RunForecast) -> Iterator[str | Table]:
    """Yields the table of losses at the coming points, the costs and the advice."""
    yield _loss_table(subject, forecast)
    yield f"  {_INTERVALS}" if subject.is_log else f"  {_INTERVALS}; a loss without it was measured"
    if not all(row.calibrated for row in forecast.rows):
        yield f"  {_BEYOND}"
    yield f"  {describe_costs(subject, forecast)}"
    yield f"  {advise(outlook(subject, forecast))}"


def _loss_table(subject: Subject, forecast: RunForecast) -> Table:
    """Returns the losses now and at each point."""
    tokens = ["tokens"] if subject.has_tokens else []
    decay = f"decay of last {100 * forecast.plan.fraction:.3g}%"
    budget = "run so far" if subject.is_log else "budget"
    kind = "loss" if subject.is_log else "validation loss"
    columns = [*numbers(budget), *numbers("steps", format=","), *numbers(*tokens)]
    columns += numbers("live", "best average", decay, "cosine")
    table = Table(f"forecast of the {kind} (nats per token)", columns)
    for row in (forecast.now, *forecast.rows):
        measured = _measured(subject, row.step)
        average, best = "", row.best_average
        if found := {label: x for label, x in measured.items() if label != LIVE}:
            best = min(found, key=lambda label: found[label])
        if best:
            loss = _loss(measured.get(best), row.losses[best])
            average = f"{loss} {forecast.name(best, row.step)}"
        mark = "" if row.calibrated else "*"
        table.add_row(
            f"{subject.clock.multiple(row.step):.4g}x{mark}",
            row.step,
            *([format_count(subject.clock.tokens(row.step))] if tokens else []),
            _loss(measured.get(LIVE), row.losses.get(LIVE)),
            average,
            _loss(None, row.decayed),
            _loss(None, row.cosine),
        )
    return table


def describe_costs(subject: Subject, forecast: RunForecast) -> str:
    """Returns a line on what each further 0.01 nats costs."""
    start, last = forecast.history.step, int(forecast.path_steps[-1])
    weights = _name(forecast.name(forecast.label, last))
    if not forecast.costs:
        end = _point(subject, last)
        return f"a loss lower by {COST_NATS:g} nats through {weights} is not reached by {end}"
    parts = []
    for cost in forecast.costs:
        until = "or more" if cost.high is None else f"to {_amount(subject, start, cost.high)}"
        interval = f"{_amount(subject, start, cost.low)} {until}"
        parts.append(
            f"{cost.nats:.2f} nats takes {_amount(subject, start, cost.step)} ({interval})"
        )
    shown = parts if len(parts) < 4 else [parts[0], parts[1], parts[-1]]
    unit = "tokens" if subject.has_tokens else "steps"
    return f"further {unit} for a lower loss through {weights}: {', '.join(shown)}"


def outlook(subject: Subject, forecast: RunForecast) -> Outlook:
    """Returns what a forecast says about its first point that the run's schedule reaches."""
    row = next(x for x in forecast.rows if x.losses)
    tracked = [LIVE, *forecast.history.rules]
    weights = min(tracked, key=lambda label: row.losses[label].loss)
    gain = forecast.difference(forecast.now.losses[weights], row.losses[weights])
    over = None
    if row.decayed is not None and forecast.has_seen_noise:
        over = forecast.difference(row.losses[weights], row.decayed)
    start, plan = forecast.history.step, forecast.plan
    unit = "tokens" if subject.has_tokens else "steps"
    return Outlook(
        f"{subject.clock.multiple(row.step):.4g}x",
        f"{_amount(subject, start, row.step)} more {unit}",
        _name(forecast.name(weights, row.step)),
        gain,
        over,
        f"a decay over the last {100 * plan.fraction:.3g}%",
        plan.start(row.step, start),
        row.calibrated,
    )


def to_json(subject: Subject, forecast: RunForecast) -> dict[str, Any]:
    """Returns a forecast as values for JSON."""
    clock, has_tokens = subject.clock, subject.has_tokens

    def at(step: int) -> dict[str, Any]:
        return {"step": step} | ({"tokens": clock.tokens(step)} if has_tokens else {})

    def row(row: ForecastRow) -> dict[str, Any]:
        losses = {label: _interval(x) for label, x in row.losses.items()}
        errors = {label: forecast.kernel_error(label, row.step) for label in losses}
        ends = {"decayed": _interval(row.decayed), "cosine": _interval(row.cosine)}
        weights = {"losses": losses, "kernel_errors": errors}
        return at(row.step) | {"calibrated": row.calibrated, **weights} | ends

    return {
        "name": subject.name,
        "now": row(forecast.now) | {"measured": _measured(subject, forecast.history.step)},
        "rows": [row(x) for x in forecast.rows],
        "decays": [
            {"fraction": fraction, **at(step), "loss": _interval(loss)}
            for fraction, (step, loss) in forecast.decays.items()
        ],
        "costs": [
            {"nats": x.nats, "weights": forecast.label, "from": x.low, "to": x.high, **at(x.step)}
            for x in forecast.costs
        ],
        "misfit": forecast.fit.misfit,
        "study": subject.study,
        "advice": advise(outlook(subject, forecast)),
    }


def _decays_table(subject: Subject, forecast: RunForecast) -> Table:
    tokens = ["tokens"] if subject.has_tokens else []
    columns = [*numbers("share"), *numbers("ends at", format=","), *numbers(*tokens)]
    columns += numbers(
        "loss", f"minus {forecast.name(forecast.label, forecast.history.step)} there"
    )
    title = "live weights if a decay starts now, by its share of the run at its end"
    table = Table(title, columns)
    end = forecast.history.schedule.end
    steps = [step for step, _ in forecast.decays.values() if end is None or step <= end]
    averages = dict(zip(steps, forecast.losses_at(steps), strict=True)) if steps else {}
    for fraction, (step, loss) in forecast.decays.items():
        difference = ""
        if step in averages:
            x = forecast.difference(loss, averages[step][forecast.label])
            difference = f"{x.loss:+.4f} ± {x.half_width:.3f}"
        count = [format_count(subject.clock.tokens(step))] if tokens else []
        table.add_row(f"{100 * fraction:.3g}%", step, *count, _loss(None, loss), difference)
    return table


def _about_the_law(subject: Subject, forecast: RunForecast) -> Iterator[str]:
    misfit = forecast.fit.misfit
    quality = (
        "the law fits the losses so far within their noise"
        if misfit <= _GOOD_MISFIT
        else f"the law fits poorly: the losses are {misfit:.1f} times farther from it than their "
        "noise, so expect larger errors than the intervals say"
    )
    known = f"runs of the study {subject.study}" if subject.study else "decoders in general"
    yield f"{quality}; prior knowledge: of {known}"
    if any(phase.step <= forecast.rows[-1].step for phase in subject.clock.phases[1:]):
        yield (
            "the batch grows in this run, which changes the noise and which the law does not know: "
            "expect larger errors than the intervals say"
        )
    if subject.last_rate is not None:
        yield (
            f"the log has no learning rate after step {forecast.history.step:,}: it is taken to "
            f"stay at {subject.last_rate:.3g} (--schedule says otherwise)"
        )
    if not forecast.history.rules:
        yield "f25 is an average that the run could have tracked (docs/readout.md)"
    if not forecast.has_seen_noise:
        yield (
            "the losses are of one rate and of no average: what f25, a decay and a cosine gain is "
            "known from other runs alone"
        )


def _measured(subject: Subject, step: int) -> dict[str, float]:
    """The losses of an evaluation at a step, by weight label; a log may have training losses."""
    history = subject.history
    if subject.is_log:
        return {}
    rows = zip(history.labels, history.losses, history.last, history.training, strict=True)
    return {x: float(loss) for x, loss, last, training in rows if last == step and not training}


def _loss(measured: float | None, estimate: Estimate | None) -> str:
    if measured is not None:
        return f"{measured:.4f}"
    return "" if estimate is None else f"{estimate.loss:.4f} ± {estimate.half_width:.3f}"


def _name(label: str) -> str:
    return "the live weights" if label == LIVE else label


def _interval(estimate: Estimate | None) -> dict[str, float] | None:
    if estimate is None:
        return None
    return {"loss": estimate.loss, "low": estimate.low, "high": estimate.high}


def _amount(subject: Subject, start: int, step: int) -> str:
    """The training from one step to another, as text."""
    if not subject.has_tokens:
        return f"{step - start:,}"
    return format_count(subject.clock.tokens(step) - subject.clock.tokens(start))


def _point(subject: Subject, step: int) -> str:
    return subject.clock.describe(step) if not subject.is_log else f"step {step:,}"
