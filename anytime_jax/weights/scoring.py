"""Losses of weights per window, for paired differences with standard errors."""

from collections.abc import Iterator, Sequence

import numpy as np

from anytime_jax.training.evaluator import Evaluator
from anytime_jax.weights.post_hoc_averages import Mixture
from anytime_jax.weights.saved_run import SavedRun, load_weights, put_on_mesh
from anytime_jax.weights.weight_names import DEFAULT_LIMITS, MixtureLimits, resolve


def score(
    run: SavedRun,
    names: Sequence[str],
    evaluator: Evaluator,
    limits: MixtureLimits = DEFAULT_LIMITS,
) -> Iterator[tuple[str, Mixture, np.ndarray]]:
    """Returns an iterator over the names, with mixtures and losses of windows (`window_losses`).

    Losses are computed when they are asked for; a name without weights raises an InputError here.
    """
    mixtures = {name: resolve(run, name, limits) for name in names}

    def losses(mixture: Mixture) -> np.ndarray:
        return evaluator.window_losses(put_on_mesh(run, load_weights(run, mixture), evaluator.mesh))

    return ((name, mixture, losses(mixture)) for name, mixture in mixtures.items())


def mean_and_standard_error(values: np.ndarray) -> tuple[float, float]:
    """Returns the mean of values and its standard error, assuming independent windows."""
    if len(values) < 2:
        return float(values.mean()), float("nan")
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))
