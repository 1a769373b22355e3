"""Text generated with weights of a saved run."""

import itertools
from collections.abc import Iterator

import jax

from anytime_jax.corpus import companion_files
from anytime_jax.corpus.vocabulary_interface import Vocabulary
from anytime_jax.models.sampling import SamplingSettings, generate_tokens
from anytime_jax.weights.post_hoc_averages import WeightedSum
from anytime_jax.weights.saved_run import SavedRun, load_weights


def generate_text(
    run: SavedRun,
    weighted_sum: WeightedSum,
    vocabulary: Vocabulary,
    prompt: str,
    settings: SamplingSettings,
    tokens: int,
) -> Iterator[str]:
    """Yields a prompt and its continuation by at most `tokens` tokens, in pieces.

    It ends before the EOS of the data, and before those of a model that the run began with.
    """
    # A single sequence is too small to shard, so one device computes it.
    params = jax.device_put(load_weights(run, weighted_sum))
    (ids,) = vocabulary.encode([prompt])
    ids = [*run.delimiters.begin, *ids]
    of_model = companion_files.load(run.run_dir)
    ends = [vocabulary.eos_id, *companion_files.end_ids(of_model, vocabulary.eos_id)]
    new = generate_tokens(run.model, params, ids, settings, tokens, ends)
    text = vocabulary.incremental_decoder()
    for token in itertools.chain(ids, new):  # a BOS decodes to nothing
        yield text.decode(int(token))
    yield text.flush()
