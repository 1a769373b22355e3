"""Text generated with weights of a saved run."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import jax

from anytime_jax.models.sampling import SamplingSettings, generate_tokens
from anytime_jax.weights import weight_names
from anytime_jax.weights.evaluation_data import find_vocabulary
from anytime_jax.weights.post_hoc_averages import Mixture
from anytime_jax.weights.saved_run import SavedRun
from anytime_jax.weights.weight_names import DEFAULT_LIMITS, MixtureLimits


def generate_text(
    run: SavedRun,
    weights: str,
    prompt: str,
    settings: SamplingSettings,
    tokens: int,
    *,
    limits: MixtureLimits = DEFAULT_LIMITS,
    vocabulary: Path | None = None,
) -> tuple[Mixture, Iterator[str]]:
    """Returns the mixture of weights, and a prompt and its continuation in pieces.

    Pieces after the prompt are generated when they are asked for, at most `tokens` tokens.
    `vocabulary` is a file (default: that of the run's data).
    """
    _, words = find_vocabulary(run, vocabulary)
    mixture, params = weight_names.load(run, weights, limits)
    (ids,) = words.encode([prompt])
    params = jax.device_put(params)  # one device: a single sequence is too small to shard
    new = generate_tokens(run.config.model, params, ids, settings, tokens, words.eos_id)
    text = words.incremental_decoder()

    def pieces() -> Iterator[str]:
        for token in itertools.chain(ids, new):
            yield text.decode(int(token))
        yield text.flush()

    return mixture, pieces()
