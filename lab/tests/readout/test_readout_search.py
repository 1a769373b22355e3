"""The search for the best read-out, on losses whose best point is known."""

import numpy as np
import pytest

from anytime_jax.training.evaluator import WindowLosses
from anytime_jax.weights.post_hoc_averages import WeightedSum
from anytime_lab.readout.readout_search import ReadoutSearch, ScoredReadout


class QuadraticSearch(ReadoutSearch):
    """Scores of a loss that is quadratic in log f."""

    def __init__(self, best_f):
        self._best_f = best_f

    def score(self, name):
        f = float(name.removeprefix("f="))
        loss = 2 + 0.1 * np.log(f / self._best_f) ** 2
        heldout = WindowLosses({"": np.full(4, loss)}, {"": 1.0})
        return ScoredReadout(name, WeightedSum((), ()), loss, heldout)


@pytest.mark.parametrize("best_f", [17.0, 220.0])
def test_best_window_is_the_vertex_of_the_parabola(best_f):
    search = QuadraticSearch(best_f)
    best = search.best_growing_window(search.score_growing_windows(np.geomspace(3.1, 200, 13)))
    assert float(best.name.removeprefix("f=")) == pytest.approx(np.clip(best_f, 3.1, 200), rel=2e-3)
