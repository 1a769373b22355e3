"""Events of a run: at which steps each is due."""

import math

import pytest
import small_run

from anytime_jax.training import due_steps
from anytime_jax.training.due_steps import Event


@pytest.mark.parametrize(
    ("every", "also", "stop", "expected"),
    [
        (3, (), math.inf, [3, 6, 9]),
        (20, (), 0, [0]),  # a run without data is at its stop at once
        (4, (0, 6), 9, [4, 6, 8, 9]),
    ],
)
def test_steps_at_which_an_event_is_due(every, also, stop, expected):
    event = Event(every, also.__contains__, stop)
    assert [step for step in range(11) if event.due(step)] == expected


def test_events_of_a_run():
    """Every 4 and 5 updates; milestones are 9, 10, 18, 20, doublings 10 and 20."""
    config = small_run.config("run", checkpoint__keep_every="7 steps")
    for make, expected in (
        (due_steps.save_event, [4, 7, 8, 9, 10, 12, 14, 16, 18, 19]),
        (due_steps.evaluation_event, [5, 10, 15, 19]),
    ):
        assert [step for step in range(20) if make(config, 19).due(step)] == expected
        assert [step for step in range(19) if make(config, math.inf).due(step)] == expected[:-1]
