"""Search for the best read-out of a run on validation text, without any training.

The first half of the windows selects a read-out; the second half measures its held-out loss.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

from anytime_jax.averaging import LIVE
from anytime_jax.errors import InputError
from anytime_jax.models.decoder import Params
from anytime_jax.training.evaluator import Evaluators, WindowLosses
from anytime_jax.weights import weight_names
from anytime_jax.weights.post_hoc_averages import WeightedSum
from anytime_jax.weights.saved_run import SavedRun, load_weights, mix, put_on_mesh
from anytime_jax.weights.weight_names import SumLimits

_MIN_VARIANCE = 1e-5  # of a direction, relative to the largest; smaller ones are rounding errors
_MAX_ITERATIONS = 40  # BFGS iterations
_MIN_GAIN = 2e-5  # nats per iteration, below which the descent stops


@dataclasses.dataclass(frozen=True)
class ScoredReadout:
    """A read-out, with a name that `weight_names.parse` accepts, and its losses.

    Attributes:
      selection_loss: mean token loss in nats on the half that selects.
      heldout_losses: losses of the windows of the other half.
    """

    name: str
    weighted_sum: WeightedSum
    selection_loss: float
    heldout_losses: WindowLosses

    @property
    def loss(self) -> float:
        """Mean token loss in nats on the held-out half."""
        return self.heldout_losses.mean

    def minus(self, other: "ScoredReadout") -> tuple[float, float]:
        """Returns the difference in held-out loss to another read-out, and its standard error."""
        return self.heldout_losses.minus(other.heldout_losses)


class ReadoutSearch:
    """Search that scores every read-out of a run on the same two halves of some windows.

    The loss is the mean over the sets.
    """

    def __init__(self, run: SavedRun, evaluators: Evaluators, limits: SumLimits):
        """Halves the windows of each evaluator, an even number."""
        self._run, self._evaluators, self._limits = run, evaluators.of_mean, limits

    def score(self, name: str) -> ScoredReadout:
        """Scores weights by name."""
        weighted_sum = weight_names.parse(self._run, name, self._limits)
        return self._score(name, weighted_sum, load_weights(self._run, weighted_sum))

    def score_growing_windows(self, grid: Sequence[float]) -> list[ScoredReadout]:
        """Scores growing windows f, omitting those whose kernel error is above the limit."""
        scored = []
        for f in grid:
            try:
                scored.append(self.score(f"f={f:.4g}"))
            except InputError:
                continue
        return scored

    def best_growing_window(self, windows: Sequence[ScoredReadout]) -> ScoredReadout:
        """Returns the best f, refined by a parabola in log f through the three lowest losses.

        `windows` must be at least three growing windows in order of f.
        """
        log_fs = np.log([float(x.name.removeprefix("f=")) for x in windows])
        losses = np.array([x.selection_loss for x in windows])
        middle = int(np.clip(losses.argmin(), 1, len(log_fs) - 2))
        near = slice(middle - 1, middle + 2)
        curvature, slope, _ = np.polyfit(log_fs[near], losses[near], 2)
        lowest = -slope / (2 * curvature) if curvature > 0 else log_fs[losses.argmin()]
        f = float(np.exp(np.clip(lowest, log_fs[near].min(), log_fs[near].max())))
        # The vertex is an estimate: a window of the grid may still be better.
        return min([*windows, self.score(f"f={f:.4g}")], key=lambda each: each.selection_loss)

    def best_sum(self, checkpoints: int, report: Callable[[str], None]) -> ScoredReadout:
        """Returns the best sum of stored weights, with coefficients of any sign that sum to 1.

        The loss is minimized by BFGS in the few directions between the weights of the last
        `checkpoints` checkpoints. `report` is called with a line at every evaluation of the loss.
        """
        steps = sorted({x.step for x in self._run.history})[-checkpoints:]
        stored = [x for x in self._run.history if x.step in steps]
        stored += self._run.iterates.values()
        trees = [load_weights(self._run, WeightedSum((x,))) for x in stored]
        start = stored.index(self._run.weights[_nearest_to_f25(self._run.growing_windows)])
        coefficients = self._minimize(trees, start, report).tolist()
        pairs = zip(stored, coefficients, strict=True)
        terms = ", ".join(f'"{x.name}": {coefficient:.9g}' for x, coefficient in pairs)
        weighted_sum = WeightedSum(tuple(stored), tuple(coefficients))
        mixed = jax.tree.map(lambda *x: mix(x, coefficients), *trees)
        return self._score(f"mix:{{{terms}}}", weighted_sum, mixed)

    def _minimize(
        self, trees: list[Params], start: int, report: Callable[[str], None]
    ) -> np.ndarray:
        """Returns the coefficients of the trees that minimize the selection loss."""
        stacked = self._put(jax.tree.map(lambda *x: np.stack(x), *trees))
        directions = _directions(trees)
        origin = np.eye(len(trees))[start]

        @functools.partial(jax.jit, static_argnums=0)
        @functools.partial(jax.value_and_grad, argnums=1)
        def loss_sum(name: str, x: jax.Array, stacked: Params, tokens: jax.Array, rows: jax.Array):
            mixed = jax.tree.map(lambda w: jnp.tensordot(x, w, 1, precision="highest"), stacked)
            return self._loss_sum(name, mixed, tokens, rows)

        def loss_and_gradient(z: np.ndarray) -> tuple[float, np.ndarray]:
            x = jnp.asarray(origin + directions @ z, jnp.float32)
            loss, gradient = 0.0, np.zeros(len(trees))
            for name, weight in self._evaluators.weights.items():
                evaluator = self._evaluators.by_set[name]
                half = evaluator.count // 2
                sums = [loss_sum(name, x, stacked, *batch) for batch in evaluator.batches(half)]
                scale = weight / (half * evaluator.length)
                loss += scale * sum(float(value) for value, _ in sums)
                gradient += scale * sum(np.asarray(grad, np.float64) for _, grad in sums)
            report(f"a weighted sum of loss {loss:.4f}")
            return loss, directions.T @ gradient

        losses = [np.inf]

        def stop_when_flat(intermediate_result: scipy.optimize.OptimizeResult) -> None:
            if losses[-1] - intermediate_result.fun < _MIN_GAIN:
                raise StopIteration
            losses.append(intermediate_result.fun)

        result = scipy.optimize.minimize(
            loss_and_gradient,
            np.zeros(directions.shape[1]),
            jac=True,
            method="BFGS",
            callback=stop_when_flat,
            options={"maxiter": _MAX_ITERATIONS, "gtol": 1e-6},
        )
        return origin + directions @ result.x

    def _score(self, name: str, weighted_sum: WeightedSum, params: Params) -> ScoredReadout:
        selection, heldout = self._evaluators.window_losses(self._put(params)).halves()
        return ScoredReadout(name, weighted_sum, selection.mean, heldout)

    def _put(self, params: Params) -> Params:
        return put_on_mesh(self._run, params, self._evaluators.mesh)

    def _loss_sum(
        self, name: str, params: Params, tokens_BxT: jax.Array, weights_B: jax.Array
    ) -> jax.Array:
        objective = self._evaluators.by_set[name].program.objective
        return objective.weighted_loss(params, tokens_BxT, weights_B)


def growing_window_grid(run: SavedRun, points: int) -> list[float]:
    """Returns windows f, evenly in log f, from half the smallest stored to twice the largest."""
    stored = run.growing_windows.values()
    return np.geomspace(min(stored) / 2, max(stored) * 2, points).tolist() if stored else []


def _nearest_to_f25(windows: dict[str, float]) -> str:
    """Returns the label of the growing window nearest to f25, or else of the live weights."""
    return min(windows, key=lambda label: abs(np.log(windows[label] / 25)), default=LIVE)


def _directions(trees: Sequence[Params]) -> np.ndarray:
    """Returns orthogonal directions between the trees, float64[trees, directions].

    Scaled to unit variance, they precondition the descent: the trees are nearly equal, so the loss
    is ill-conditioned in their coefficients.
    """
    flat = [jax.tree.leaves(tree) for tree in trees]
    covariance = np.zeros((len(trees), len(trees)))
    for leaves in zip(*flat, strict=True):
        matrix = np.stack([leaf.ravel().astype(np.float64) for leaf in leaves])
        matrix -= matrix.mean(axis=0)
        covariance += matrix @ matrix.T
    variances, vectors = np.linalg.eigh(covariance)
    # After centering, directions are orthogonal to a common change: the coefficients' sum stays 1.
    large = variances > _MIN_VARIANCE * variances[-1]
    return vectors[:, large] / np.sqrt(variances[large])
