"""The search for the best read-out, on losses whose best point is known."""

import types

import jax
import numpy as np
import pytest

from anytime_jax.weights import readout_search
from anytime_jax.weights.post_hoc_averages import Mixture
from anytime_jax.weights.readout_search import ReadoutSearch, ScoredReadout


class QuadraticSearch(ReadoutSearch):
    """Scores of a loss that is quadratic in log f."""

    def __init__(self, best_f):
        self._best_f = best_f

    def score(self, name):
        f = float(name.removeprefix("f="))
        loss = 2 + 0.1 * np.log(f / self._best_f) ** 2
        return ScoredReadout(name, Mixture((), ()), loss, np.full(4, loss))


@pytest.mark.parametrize("best_f", [17.0, 3.0, 220.0])
def test_best_window_is_the_vertex_of_the_parabola(best_f):
    search = QuadraticSearch(best_f)
    best = search.best_growing_window(search.score_growing_windows(np.geomspace(3.1, 200, 13)))
    assert float(best.name.removeprefix("f=")) == pytest.approx(np.clip(best_f, 3.1, 200), rel=2e-3)


class DistanceSearch(ReadoutSearch):
    """Losses that are the squared distance of a tree from a target."""

    def __init__(self, target):
        batches = [(np.zeros((4, 2)), np.ones(4))]
        self._evaluator = types.SimpleNamespace(count=8, length=1, batches=lambda count: batches)
        self._target = target

    def _put(self, params):
        return jax.device_put(params)

    def _loss_sum(self, params, tokens_BxT, weights_B):
        return weights_B.sum() * ((params["w"] - self._target) ** 2).sum()


def test_minimize_finds_the_best_affine_combination():
    """A quadratic loss of three trees in a plane."""
    points = np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 2.0]])
    target = np.array([0.3, 0.9])
    trees = [{"w": np.float32(point)} for point in points]
    coefficients = DistanceSearch(target)._minimize(trees, 0, lambda text: None)
    assert coefficients.sum() == pytest.approx(1)
    np.testing.assert_allclose(coefficients @ points, target, atol=1e-4)


def test_descent_starts_from_the_window_nearest_to_f25():
    assert readout_search._nearest_to_f25({"f6.25": 6.25, "f20": 20.0, "f100": 100.0}) == "f20"
    assert readout_search._nearest_to_f25({}) == "last"
