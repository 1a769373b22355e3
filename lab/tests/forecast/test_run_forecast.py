"""Forecast of one run: rows, decays, costs, and what is refused."""

import numpy as np
import pytest
from loss_laws import LAW

from anytime_jax import averaging, schedules
from anytime_jax.errors import InputError
from anytime_lab.forecast.loss_history import LossHistory
from anytime_lab.forecast.prior import general_prior
from anytime_lab.forecast.run_forecast import DecayPlan, make_forecast

PEAK, WARMUP, NOW = 1e-2, 50, 1_000
CONSTANT = schedules.constant(PEAK, WARMUP)
COSINE = schedules.cosine(PEAK, 1_600, WARMUP)
RULES = {x.label: x for x in (averaging.GrowingWindow(25.0), averaging.Uniform())}


def history(schedule=CONSTANT, rules=RULES, step=NOW, raised=0.0):
    """Losses of a law, of the live weights and averages, those after half the run raised."""
    steps = np.unique(np.geomspace(60, step, 24).astype(int))
    losses = [LAW.losses(schedule, steps, rule) for rule in (None, *rules.values())]
    labels = tuple(label for label in ("last", *rules) for _ in steps)
    at = np.tile(steps, len(losses))
    training = np.zeros(len(at), bool)
    values = np.concatenate(losses) + raised * (at > step / 2)
    return LossHistory(schedule, WARMUP, at, at, values, labels, training, rules)


def forecast(run, steps, **options):
    """Forecasts a run with the prior of any run."""
    return make_forecast(run, general_prior(run), steps, **options)


@pytest.fixture(name="made", scope="module")
def made_fixture():
    """A forecast of a run without a horizon, to eight times its length."""
    return forecast(history(), [8_000, 4_000, 2_000, 4_001])


def test_rows_are_the_later_steps_and_say_whether_they_are_calibrated(made):
    rows = {row.step: row.calibrated for row in made.rows}
    assert rows == {2_000: True, 4_000: True, 4_001: False, 8_000: False}
    assert list(rows) == sorted(rows)
    assert made.now.step == NOW
    assert made.now.decayed is None


def test_losses_of_a_row_are_those_of_the_law(made):
    row = next(x for x in made.rows if x.step == 2_000)
    for label, rule in {"last": None, **RULES}.items():
        actual = LAW.losses(CONSTANT, [2_000], rule)[0]
        estimate = row.losses[label]
        assert estimate.low < actual < estimate.high, label
        assert estimate.loss == pytest.approx(actual, abs=0.01), label
    wsd = schedules.wsd(PEAK, 2_000, 1_800, WARMUP)
    assert row.decayed.loss == pytest.approx(LAW.losses(wsd, [2_000])[0], abs=0.01)
    cosine = schedules.cosine(PEAK, 2_000, WARMUP)
    assert row.cosine.loss == pytest.approx(LAW.losses(cosine, [2_000])[0], abs=0.015)
    assert row.best_average == min(RULES, key=lambda x: row.losses[x].loss)
    assert made.label == row.best_average


def test_decays_start_now_and_end_by_their_share_of_the_run(made):
    horizons = {fraction: horizon for fraction, (horizon, _) in made.decays.items()}
    assert horizons == {0.05: 1_053, 0.1: 1_111, 0.2: 1_250, 0.4: 1_667}
    for horizon, estimate in made.decays.values():
        wsd = schedules.wsd(PEAK, horizon, NOW, WARMUP)
        assert estimate.loss == pytest.approx(LAW.losses(wsd, [horizon])[0], abs=0.012)


def test_costs_are_where_the_best_average_crosses_hundredths_of_a_nat(made):
    path = made.path[made.label][:, 0]
    assert [x.nats for x in made.costs] == pytest.approx([0.01, 0.02, 0.03, 0.04, 0.05])
    for cost in made.costs:
        expected = np.interp(cost.nats - path[0], -path, made.path_steps)
        assert cost.step == pytest.approx(expected, abs=2)
        assert NOW < cost.low < cost.step < cost.high
    # What laws miss of a fall makes each uncertain by a tenth at least.
    last = made.costs[-1]
    assert (last.high - last.low) / (last.step - NOW) > 0.2
    assert made.path_steps[0] == NOW
    assert made.path_steps[-1] == 8_000


def test_run_with_a_horizon_has_losses_up_to_its_end():
    made = forecast(history(COSINE), [1_500, 1_600, 4_000])
    reached = [row.step for row in made.rows if row.losses]
    assert reached == [1_500, 1_600]
    assert made.path_steps[-1] == 1_600
    own = next(x for x in made.rows if x.step == 1_600)
    assert own.cosine.loss == pytest.approx(own.losses["last"].loss, abs=1e-6)
    assert made.rows[-1].cosine is not None


def test_run_without_averages_has_one_that_it_could_have_had():
    made = forecast(history(rules={}), [2_000], plan=DecayPlan("1-sqrt", 0.3, 0.0))
    (row,) = made.rows
    (label,) = set(row.losses) - {"last"}
    assert row.best_average == label
    wsd = schedules.wsd(PEAK, 2_000, 1_400, WARMUP, floor=0.0, shape="1-sqrt")
    assert row.decayed.low < LAW.losses(wsd, [2_000])[0] < row.decayed.high
    assert set(made.decays) == {0.05, 0.1, 0.2, 0.3, 0.4}


@pytest.mark.usefixtures("quick_fits")
@pytest.mark.parametrize("fraction", [5e-324, 1e-4, 0.99])
def test_decays_of_any_length_take_an_update_at_least_and_end_within_reach(fraction):
    made = forecast(history(rules={}), [2_000], plan=DecayPlan(fraction=fraction))
    assert made.rows[0].decayed.loss < made.now.losses["last"].loss
    assert made.plan.start(2_000, NOW) == (NOW if fraction == 0.99 else 1_999)
    assert max(end for end, _ in made.decays.values()) <= 100 * NOW


def test_steps_that_are_over_or_too_far_are_refused():
    for step in (NOW, 100 * NOW + 1):
        with pytest.raises(InputError, match="step 1,000"):
            forecast(history(), [step])


@pytest.mark.usefixtures("quick_fits")
def test_losses_that_no_law_fits_are_refused():
    with pytest.raises(InputError, match="fit"):
        forecast(history(rules={}, raised=0.3), [2_000])


@pytest.mark.parametrize(
    ("plan", "named"),
    [
        ({"fraction": 0.0}, "fraction"),
        ({"fraction": 0.99999999}, "fraction"),
        ({"floor": -0.1}, "floor"),
        ({"shape": "square"}, "shape"),
    ],
)
def test_bad_plans_of_a_decay_are_named(plan, named):
    with pytest.raises(ValueError, match=named):
        DecayPlan(**plan)


def test_difference_is_antisymmetric_and_none_of_a_loss_and_itself(made):
    a, b = made.now.losses["f25"], made.rows[1].losses["f25"]
    same = made.difference(a, a)
    assert (same.loss, same.low, same.high) == (0, 0, 0)
    forth, back = made.difference(a, b), made.difference(b, a)
    assert forth.loss == pytest.approx(a.loss - b.loss)
    assert (back.low, back.high) == pytest.approx((-forth.high, -forth.low))
    assert 0 < forth.half_width < a.half_width + b.half_width  # what both miss alike is not in it


def test_losses_at_a_row_are_those_of_the_row(made):
    (losses,) = made.losses_at([2000])
    for label, loss in made.rows[0].losses.items():
        assert losses[label].loss == pytest.approx(loss.loss, rel=1e-5)
        assert losses[label].half_width == pytest.approx(loss.half_width, rel=1e-3)
