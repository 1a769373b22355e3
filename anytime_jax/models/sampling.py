"""Sampling of text from a decoder, token by token, beyond the length of its context.

Shape suffixes: L length, V rows of the embedding, W words of the vocabulary.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from anytime_jax.checks import LARGEST, is_number, require, require_count, require_fraction
from anytime_jax.config.model import ModelConfig
from anytime_jax.models import decoder
from anytime_jax.models.decoder import Cache, Params

# Prompts are padded to 16, 64, 256, ... tokens, so that few programs serve all lengths.
_MIN_PADDED, _GROWTH = 16, 4


@dataclasses.dataclass(frozen=True)
class SamplingSettings:
    """Settings of the distribution from which tokens are sampled.

    Logits are divided by `temperature` (0 for greedy decoding). Then the `top_k` most likely tokens
    are kept (0 for all). Of the tokens that are left, the most likely are kept: the fewest whose
    probabilities sum to `top_p` or more (above 0; 1 for all).
    """

    temperature: float
    top_k: int
    top_p: float
    seed: int

    def __post_init__(self) -> None:
        ok = is_number(self.temperature)
        ok = ok and (self.temperature == 0 or 1e-3 <= self.temperature <= LARGEST)
        allowed = f"0 for the most likely token, or a number from 0.001 to {LARGEST:g}"
        require(ok, "temperature", self.temperature, allowed)
        require_count("top_k", self.top_k)
        require_fraction("top_p", self.top_p)
        require(self.top_p > 0, "top_p", self.top_p, "above 0 (top_k = 1 takes the most likely)")
        require_count("seed", self.seed)


def sample_token(settings: SamplingSettings, logits_W: jax.Array, key: jax.Array) -> jax.Array:
    """Returns the id of one sampled token, int32; `settings.seed` is ignored.

    Equally likely tokens are ordered by id.
    """
    if settings.temperature == 0:
        return jnp.argmax(logits_W).astype(jnp.int32)
    logits_W /= settings.temperature
    if settings.top_k == 0 and settings.top_p == 1:
        return jax.random.categorical(key, logits_W).astype(jnp.int32)
    order_W = jnp.argsort(logits_W, descending=True)
    logits_W = logits_W[order_W]
    if settings.top_k:
        logits_W = jnp.where(jnp.arange(logits_W.size) < settings.top_k, logits_W, -jnp.inf)
    if settings.top_p < 1:
        share_W = jax.nn.softmax(logits_W)
        before_W = jnp.cumsum(share_W) - share_W
        # The most likely token always stays, whatever the rounding of the sum.
        kept_W = (before_W < settings.top_p).at[0].set(True)
        logits_W = jnp.where(kept_W, logits_W, -jnp.inf)
    return order_W[jax.random.categorical(key, logits_W)].astype(jnp.int32)


def generate_tokens(
    config: ModelConfig,
    params: Params,
    prompt_ids: Sequence[int] | np.ndarray,
    settings: SamplingSettings,
    count: int,
    end_ids: Sequence[int],
) -> Iterator[int]:
    """Continues a text lazily, by at most `count` tokens.

    The context has at most `config.length` tokens, as in training. When the text has grown longer,
    generation continues from the last `config.length // 2` tokens: a text may have any length, and
    every token costs the same. The first call compiles a program for one token, and a program for
    each padded length of a prompt.

    Generation stops before any of `end_ids`. The first is the id that ends a document in training
    (EOS): an empty prompt starts from it. Raises a ValueError for an EOS or an id of the prompt
    outside the vocabulary, and for a negative count.
    """
    require_count("count", count)
    allowed = f"the id of a token, from 0 to {config.vocab_size - 1}"
    ids = [int(i) for i in prompt_ids] or [end_ids[0]]
    for name, value in (("EOS", end_ids[0]), *(("prompt_ids", i) for i in ids)):
        require(0 <= value < config.vocab_size, name, value, allowed)
    return _generate(config, params, ids, settings, count, frozenset(end_ids))


def _generate(
    config: ModelConfig,
    params: Params,
    ids: list[int],
    settings: SamplingSettings,
    count: int,
    end_ids: frozenset[int],
) -> Iterator[int]:
    key = jax.random.key(settings.seed)
    # The key carries the seed; in the static settings, each seed would compile a new program.
    settings = dataclasses.replace(settings, seed=0)
    cache, cached = decoder.init_cache(config, 1, config.length), 0
    for number in range(count):
        if len(ids) > config.length:
            ids, cached = ids[-max(config.length // 2, 1) :], 0
        tokens_L = _pad(ids[cached:], config.length - cached)
        token, cache = _next_token(
            config, settings, params, cache, tokens_L, cached, len(ids) - 1, key, number
        )
        cached = len(ids)
        ids.append(int(token))
        if ids[-1] in end_ids:
            return
        yield ids[-1]


def _pad(ids: Sequence[int], most: int) -> np.ndarray:
    """Pads the tokens at the end to one of a few lengths."""
    size = 1 if len(ids) == 1 else _MIN_PADDED
    while size < len(ids):
        size *= _GROWTH
    return np.pad(np.asarray(ids, np.int32), (0, min(size, most) - len(ids)))


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=3)
def _next_token(
    config: ModelConfig,
    settings: SamplingSettings,
    params: Params,
    cache: Cache,
    tokens_L: jax.Array,
    position: jax.Array,
    last: jax.Array,
    key: jax.Array,
    number: jax.Array,
) -> tuple[jax.Array, Cache]:
    """Samples the token after position `last`; `tokens_L` are the tokens from `position` on.

    `number` counts the sampled tokens and makes a random key for each.
    """
    logits_1xLxV, cache = decoder.decode(config, params, cache, tokens_L[None], position)
    # Rows of the embedding beyond the vocabulary are not tokens.
    logits_W = logits_1xLxV[0, last - position, : config.vocab_size]
    return sample_token(settings, logits_W, jax.random.fold_in(key, number)), cache


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=3)
def next_tokens(
    config: ModelConfig,
    settings: SamplingSettings,
    params: Params,
    cache: Cache,
    tokens_BxL: jax.Array | np.ndarray,
    position_B: np.ndarray,
    last_B: np.ndarray,
    key_B: jax.Array,
    number: int,
) -> tuple[jax.Array, Cache]:
    """Samples token `number` of several texts, which may have different lengths.

    Each text is a row, with a cache of its own; the caches are stacked on a first axis. The tokens
    of a row start at its position in `position_B`, and the new token follows position `last_B`.
    Returns the new tokens, int32 of shape B, and the new cache.
    """
    of_row = functools.partial(_next_token, config, settings, params, number=number)
    return jax.vmap(of_row)(cache, tokens_BxL, position_B, last_B, key_B)
