"""The best read-out of a run, found on validation text without any training.

The first half of the windows chooses, the second half, which had no say, tells what it is worth.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

from anytime_jax.averaging import LIVE, GrowingWindow, Rule
from anytime_jax.errors import InputError
from anytime_jax.models.decoder import Params
from anytime_jax.weights import saved_weights
from anytime_jax.weights.post_hoc import Kept, Mix
from anytime_jax.weights.saved_weights import Limits, Saved
from anytime_jax.weights.scoring import Scorer, mean_and_error

_LEAST_DIRECTION = 1e-5  # of the spread of the kept trees, squared: below it all is rounding
_MOST_STEPS = 40  # of a descent
_LEAST_GAIN = 2e-5  # nats that a step must gain for another


@dataclasses.dataclass(frozen=True)
class Reading:
    """One way to read a run out.

    Attributes:
      name: of the weights, as `weights.find` takes it.
      mix: what they are made from.
      chosen: mean token loss in nats on the half that chooses.
      checked: that on the other half, window by window, float64.
    """

    name: str
    mix: Mix
    chosen: float
    checked: np.ndarray

    @property
    def loss(self) -> float:
        """Mean token loss in nats on the half that had no say."""
        return float(self.checked.mean())

    def minus(self, other: "Reading") -> tuple[float, float]:
        """Returns its loss minus that of another on the half that had no say, and its error."""
        return mean_and_error(self.checked - other.checked)


class Search:
    """Reads a run out in many ways, on the same two halves of some windows."""

    def __init__(self, saved: Saved, scorer: Scorer, count: int, limits: Limits):
        """Takes the run, the data and how many windows of each half to use."""
        self._saved, self._scorer, self._limits = saved, scorer, limits
        self._half = count

    def read(self, name: str) -> Reading:
        """Returns the reading of weights by name."""
        mix = saved_weights.find(self._saved, name, self._limits)
        return self._reading(name, mix, saved_weights.read(self._saved, mix))

    def windows(self, grid: Sequence[float]) -> list[Reading]:
        """Returns the readings of growing windows f, those too far from what is kept left out."""
        found = []
        for f in grid:
            try:
                found.append(self.read(f"f={f:.4g}"))
            except InputError:
                continue
        return found

    def best_window(self, readings: Sequence[Reading]) -> Reading:
        """Returns the reading of the best f: the bottom of a parabola through the three lowest.

        Args:
          readings: of growing windows, by f, three at least.
        """
        fs = np.log([float(x.name.removeprefix("f=")) for x in readings])
        losses = np.array([x.chosen for x in readings])
        at = int(np.clip(losses.argmin(), 1, len(fs) - 2))
        near = slice(at - 1, at + 2)
        curve, slope, _ = np.polyfit(fs[near], losses[near], 2)
        lowest = -slope / (2 * curve) if curve > 0 else fs[losses.argmin()]
        f = float(np.exp(np.clip(lowest, fs[near].min(), fs[near].max())))
        # The parabola is a guess: what was read may still be the better one.
        return min([*readings, self.read(f"f={f:.4g}")], key=lambda reading: reading.chosen)

    def best_mix(self, checkpoints: int, say: Callable[[str], None]) -> Reading:
        """Returns the reading of the best sum of kept trees, weights of any sign that sum to 1.

        The loss is followed downhill (BFGS) in the few directions between the trees.

        Args:
          checkpoints: the last ones, whose trees may take part.
          say: is told how far it has come.
        """
        steps = sorted({x.step for x in self._saved.kept})[-checkpoints:]
        kept = [x for x in self._saved.kept if x.step in steps]
        trees = [saved_weights.read(self._saved, Mix((x,), (1.0,))) for x in kept]
        start = next(i for i, x in enumerate(kept) if x == _nearest_to_25(self._saved.here))
        shares = self._descend(trees, start, say)
        mix = Mix(tuple(kept), tuple(shares.tolist()))
        spec = ", ".join(f'"{x.name}": {share:.9g}' for x, share in zip(kept, shares, strict=True))
        return self._reading(f"mix:{{{spec}}}", mix, saved_weights.read(self._saved, mix))

    def _descend(self, trees: list[Params], start: int, say: Callable[[str], None]) -> np.ndarray:
        """The weights of the trees at which the loss on the first half is lowest."""
        stacked = self._scorer.put(jax.tree.map(lambda *x: np.stack(x), *trees))
        directions = _directions(trees)
        unit = np.eye(len(trees))[start]

        def shares(z: np.ndarray) -> np.ndarray:
            return unit + directions @ z

        def mean_loss(x: jax.Array, stacked: Params, tokens: jax.Array, used: jax.Array):
            mixed = jax.tree.map(lambda w: jnp.tensordot(x, w, 1, precision="highest"), stacked)
            losses = self._scorer.mean_losses(mixed, tokens)
            return jnp.sum(jnp.where(jnp.arange(losses.size) < used, losses, 0.0))

        compiled = jax.jit(jax.value_and_grad(mean_loss))

        def value_and_grad(z: np.ndarray) -> tuple[float, np.ndarray]:
            x = jnp.asarray(shares(z), jnp.float32)
            parts = [
                compiled(x, stacked, tokens, used)
                for tokens, used in self._scorer.batches(0, self._half)
            ]
            value = sum(float(value) for value, _ in parts) / self._half
            slope = sum(np.asarray(grad, np.float64) for _, grad in parts) / self._half
            say(f"a mix of loss {value:.4f}")
            return value, directions.T @ slope

        reached = [np.inf]

        def stop_when_flat(intermediate_result: scipy.optimize.OptimizeResult) -> None:
            if reached[-1] - intermediate_result.fun < _LEAST_GAIN:
                raise StopIteration
            reached.append(intermediate_result.fun)

        found = scipy.optimize.minimize(
            value_and_grad,
            np.zeros(directions.shape[1]),
            jac=True,
            method="BFGS",
            callback=stop_when_flat,
            options={"maxiter": _MOST_STEPS, "gtol": 1e-6},
        )
        return shares(found.x)

    def _reading(self, name: str, mix: Mix, params: Params) -> Reading:
        losses = self._scorer.losses(self._scorer.put(params), 0, 2 * self._half)
        return Reading(name, mix, float(losses[: self._half].mean()), losses[self._half :])


def grid_of(saved: Saved, points: int) -> list[float]:
    """Returns windows f, evenly in log f, from half the smallest kept to twice the largest."""
    rules: list[Rule | None] = [x.rule for x in saved.here.values()]
    kept = [rule.f for rule in rules if isinstance(rule, GrowingWindow)]
    return np.geomspace(min(kept) / 2, max(kept) * 2, points).tolist() if kept else []


def _nearest_to_25(here: Mapping[str, Kept]) -> Kept:
    """Where a descent begins: the average nearest to f25, or the live weights."""
    windows = {k: x.rule.f for k, x in here.items() if isinstance(x.rule, GrowingWindow)}
    label = min(windows, key=lambda k: abs(np.log(windows[k] / 25)), default=LIVE)
    return here[label]


def _directions(trees: Sequence[Params]) -> np.ndarray:
    """Ways to move weight between trees, float64[trees, ways]: each moves the mix equally far.

    Without them the descent would see a long narrow valley: the trees are much alike.
    """
    flat = [jax.tree.leaves(tree) for tree in trees]
    inner = np.zeros((len(trees), len(trees)))
    for leaves in zip(*flat, strict=True):
        matrix = np.stack([leaf.ravel().astype(np.float64) for leaf in leaves])
        matrix -= matrix.mean(axis=0)
        inner += matrix @ matrix.T
    sizes, vectors = np.linalg.eigh(inner)
    # The mean being out, what is left is orthogonal to moving all weights alike: sums stay 1.
    kept = sizes > _LEAST_DIRECTION * sizes[-1]
    return vectors[:, kept] / np.sqrt(sizes[kept])
