"""The forecast of a run: differences of its losses, and costs with intervals."""

import numpy as np
import pytest

from anytime_jax.averaging import LIVE, GrowingWindow
from anytime_jax.forecast.loss_history import LossHistory
from anytime_jax.forecast.prior import general_prior
from anytime_jax.forecast.run_forecast import make_forecast
from anytime_jax.schedules import constant


@pytest.fixture(scope="module", name="made")
def made_fixture():
    """A forecast from losses that fall as a power law, of the live weights and an average."""
    steps = np.arange(50, 1001, 50)
    curve = 2 + 6 * steps**-0.35
    at = np.concatenate([steps, steps])
    history = LossHistory(
        constant(1e-2, 50),
        50,
        at,
        at,
        np.concatenate([curve + 0.05, curve]),
        (LIVE,) * len(steps) + ("f25",) * len(steps),
        np.zeros(len(at), bool),
        {"f25": GrowingWindow(25.0)},
    )
    return make_forecast(history, general_prior(history), [2000, 4000])


def test_difference_of_a_loss_and_itself_is_certain(made):
    loss = made.rows[0].losses["f25"]
    difference = made.difference(loss, loss)
    assert (difference.loss, difference.low, difference.high) == (0, 0, 0)


def test_difference_is_that_of_the_losses_and_antisymmetric(made):
    a, b = made.now.losses["f25"], made.rows[1].losses["f25"]
    forth, back = made.difference(a, b), made.difference(b, a)
    assert forth.loss == pytest.approx(a.loss - b.loss)
    assert (back.low, back.high) == pytest.approx((-forth.high, -forth.low))
    # What both miss alike is not in it; what laws miss of a fall is.
    assert 0.1 * forth.loss < forth.half_width < a.half_width + b.half_width


def test_longer_differences_are_less_certain(made):
    now, near, far = (row.losses["f25"] for row in (made.now, *made.rows))
    assert made.difference(now, near).half_width < made.difference(now, far).half_width


def test_losses_at_a_row_are_those_of_the_row(made):
    (losses,) = made.losses_at([2000])
    for label, loss in made.rows[0].losses.items():
        assert losses[label].loss == pytest.approx(loss.loss, rel=1e-5)
        assert losses[label].half_width == pytest.approx(loss.half_width, rel=1e-4)


def test_costs_rise_and_their_intervals_hold_them(made):
    assert [round(cost.nats, 2) for cost in made.costs] == [0.01, 0.02, 0.03, 0.04, 0.05]
    for cost in made.costs:
        assert 1000 < cost.low < cost.step < cost.high
    # What laws miss of a fall makes each uncertain by a tenth at least.
    last = made.costs[-1]
    assert (last.high - last.low) / (last.step - 1000) > 0.2
