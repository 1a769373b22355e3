"""Text drawn from a decoder, one token at a time and without end.

Legend of shape suffixes: L length, V rows of the embedding, W words of the vocabulary.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from anytime_jax.checks import is_number, require, require_count, require_fraction
from anytime_jax.config.model import ModelConfig
from anytime_jax.models import decoder
from anytime_jax.models.decoder import Cache, Params

# A prompt is filled up to the next of 16, 64, 256, ... tokens: few programs for all prompts.
_SHORTEST, _GROWTH = 16, 4


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How the next token is drawn from the logits.

    The logits are divided by the temperature, then all but the `top_k` most likely tokens are left
    out, then of those that remain all but the smallest set that holds `top_p` of the probability.

    Attributes:
      temperature: 1 for the decoder's own distribution; 0 for the most likely token, always.
      top_k: tokens to draw from; 0 for all.
      top_p: share of the probability to draw from; 1 for all.
      seed: the same seed gives the same text.
    """

    temperature: float
    top_k: int
    top_p: float
    seed: int

    def __post_init__(self) -> None:
        """Checks every field."""
        ok = is_number(self.temperature) and (self.temperature == 0 or self.temperature >= 1e-3)
        allowed = "0 for the most likely token, or a number from 0.001"
        require(ok, "temperature", self.temperature, allowed)
        require_count("top_k", self.top_k)
        require_fraction("top_p", self.top_p)
        require(self.top_p > 0, "top_p", self.top_p, "above 0 (top_k = 1 takes the most likely)")
        require_count("seed", self.seed)


def choose(sampling: Sampling, logits_W: jax.Array, key: jax.Array) -> jax.Array:
    """Returns the id of one token drawn from the logits, int32.

    Of equally likely tokens the one with the lower id comes first.

    Args:
      sampling: how to draw; its seed is not used.
      logits_W: float32, of the tokens that exist.
      key: what the draw depends on.
    """
    if sampling.temperature == 0:
        return jnp.argmax(logits_W).astype(jnp.int32)
    logits_W /= sampling.temperature
    if sampling.top_k == 0 and sampling.top_p == 1:
        return jax.random.categorical(key, logits_W).astype(jnp.int32)
    order_W = jnp.argsort(logits_W, descending=True)
    logits_W = logits_W[order_W]
    if sampling.top_k:
        logits_W = jnp.where(jnp.arange(logits_W.size) < sampling.top_k, logits_W, -jnp.inf)
    if sampling.top_p < 1:
        share_W = jax.nn.softmax(logits_W)
        before_W = jnp.cumsum(share_W) - share_W
        # The first is always in, whatever the rounding of the sum.
        kept_W = (before_W < sampling.top_p).at[0].set(True)
        logits_W = jnp.where(kept_W, logits_W, -jnp.inf)
    return order_W[jax.random.categorical(key, logits_W)].astype(jnp.int32)


def stream(
    config: ModelConfig,
    params: Params,
    prompt_ids: Sequence[int] | np.ndarray,
    sampling: Sampling,
    count: int,
    stop_id: int,
) -> Iterator[int]:
    """Continues a text, token by token.

    The decoder sees at most `config.length` tokens, as in training. When there are more, it goes
    on from the last half of that many, so that text has no end and a token costs the same anywhere.
    The first call compiles a program for one token, and one for each size of prompt.

    Args:
      config: the decoder; its `dtype` is that of the products here as well.
      params: its weights.
      prompt_ids: the text so far. An empty one starts from `stop_id`, after which documents begin
        in the windows of training.
      sampling: how tokens are drawn.
      count: tokens to make at most.
      stop_id: the id that ends a document (EOS): the text ends there, without it.

    Returns:
      An iterator of ids, each made when it is asked for.

    Raises:
      ValueError: a token that does not exist, or a count that is none.
    """
    require_count("count", count)
    allowed = f"the id of a token, from 0 to {config.vocab_size - 1}"
    ids = [int(i) for i in prompt_ids] or [stop_id]
    for name, given in (("stop_id", stop_id), *(("prompt_ids", i) for i in ids)):
        require(0 <= given < config.vocab_size, name, given, allowed)
    return _stream(config, params, ids, sampling, count, stop_id)


def _stream(
    config: ModelConfig,
    params: Params,
    ids: list[int],
    sampling: Sampling,
    count: int,
    stop_id: int,
) -> Iterator[int]:
    key = jax.random.key(sampling.seed)
    # The draw knows the seed through its key: another seed compiles nothing.
    rule = dataclasses.replace(sampling, seed=0)
    cache, cached = decoder.init_cache(config, 1, config.length), 0
    for number in range(count):
        if len(ids) > config.length:
            ids, cached = ids[-max(config.length // 2, 1) :], 0
        tokens_L = _pad(ids[cached:], config.length - cached)
        drawn, cache = _next(
            config, rule, params, cache, tokens_L, cached, len(ids) - 1, key, number
        )
        cached = len(ids)
        ids.append(int(drawn))
        if ids[-1] == stop_id:
            return
        yield ids[-1]


def _pad(ids: Sequence[int], most: int) -> np.ndarray:
    """The tokens, filled up at the end to one of a few sizes."""
    size = 1 if len(ids) == 1 else _SHORTEST
    while size < len(ids):
        size *= _GROWTH
    return np.pad(np.asarray(ids, np.int32), (0, min(size, most) - len(ids)))


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=3)
def _next(
    config: ModelConfig,
    rule: Sampling,
    params: Params,
    cache: Cache,
    tokens_L: jax.Array,
    position: jax.Array,
    last: jax.Array,
    key: jax.Array,
    number: jax.Array,
) -> tuple[jax.Array, Cache]:
    """Draws token `number` after the one at position `last`, given those from `position`."""
    logits_1xLxV, cache = decoder.decode(config, params, cache, tokens_L[None], position)
    # Rows of the embedding beyond the vocabulary are no tokens.
    logits_W = logits_1xLxV[0, last - position, : config.vocab_size]
    return choose(rule, logits_W, jax.random.fold_in(key, number)), cache
