"""Search for the f of a run whose average has the lowest loss on validation text.

The first half of the windows selects a read-out; the second half measures its held-out loss.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from anytime_jax.errors import InputError
from anytime_jax.formatting import name_weights
from anytime_jax.training.evaluator import Evaluators, WindowLosses
from anytime_jax.weights import weight_names
from anytime_jax.weights.post_hoc_averages import WeightedSum
from anytime_jax.weights.saved_run import SavedRun, load_weights, put_on_mesh
from anytime_jax.weights.weight_names import SumLimits


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
    def full_name(self) -> str:
        """The name, with the kernel error if there is one."""
        return name_weights(self.name, self.weighted_sum.kernel_error)

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
        params = load_weights(self._run, weighted_sum)
        params = put_on_mesh(self._run, params, self._evaluators.mesh)
        selection, heldout = self._evaluators.window_losses(params).halves()
        return ScoredReadout(name, weighted_sum, selection.mean, heldout)

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


def growing_window_grid(run: SavedRun, points: int) -> list[float]:
    """Returns windows f, evenly in log f, from half the smallest stored to twice the largest."""
    stored = run.growing_windows.values()
    return np.geomspace(min(stored) / 2, max(stored) * 2, points).tolist() if stored else []
