"""The search for the best read-out, on losses whose best point is known."""

import types

import jax
import numpy as np
import pytest

from anytime_jax.training.evaluator import Evaluators, WindowLosses
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


class DistanceSearch(ReadoutSearch):
    """Losses on sets that are the squared distance of a tree from the target of each set."""

    def __init__(self, targets, weights):
        def evaluator(count, length):
            def batches(rows):
                return [(np.zeros((1, length + 1)), np.ones(1))] * rows

            return types.SimpleNamespace(count=count, length=length, batches=batches)

        sizes = [(8, 1), (4, 3)]
        sets = {x: evaluator(*size) for x, size in zip(targets, sizes, strict=False)}
        self._evaluators = Evaluators(sets, weights)
        self._targets = targets

    def _put(self, params):
        return jax.device_put(params)

    def _loss_sum(self, name, params, tokens_BxT, weights_B):
        tokens = weights_B.sum() * (tokens_BxT.shape[1] - 1)
        return tokens * ((params["w"] - self._targets[name]) ** 2).sum()


def test_minimize_finds_the_best_affine_combination():
    """The mean of two quadratic losses of three trees in a plane."""
    targets = {"a": np.array([0.3, 0.9]), "b": np.array([0.7, -0.5])}
    weights = {"a": 0.25, "b": 0.75}
    points = np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 2.0]])
    trees = [{"w": np.float32(point)} for point in points]
    search = DistanceSearch(targets, weights)
    coefficients = search._minimize(trees, 0, lambda text: None)
    assert coefficients.sum() == pytest.approx(1)
    target = sum(weight * targets[name] for name, weight in weights.items())
    np.testing.assert_allclose(coefficients @ points, target, atol=1e-4)
