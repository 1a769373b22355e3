"""Decoding with a cache of keys and values: the numbers of the whole sequence, a part at a time."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference_decoders import CONFIGS, OLMO, oracle, slow

from anytime_jax.models import decoder


@functools.lru_cache
def decoding(config):
    return jax.jit(functools.partial(decoder.decode, config), donate_argnums=1)


def decode_in_parts(config, params, tokens, parts, places):
    """The logits of every position, the tokens given in parts of these lengths."""
    cache, position, found = decoder.init_cache(config, len(tokens), places), 0, []
    for part in parts:
        given = tokens[:, position : position + part]
        logits, cache = decoding(config)(params, cache, given, position)
        found.append(np.asarray(logits))
        position += part
    assert position == tokens.shape[1]
    return np.concatenate(found, axis=1)


@pytest.mark.parametrize(
    ("architecture", "layer_loop"),
    [("olmo", "scan"), ("olmo2", "unroll"), slow("olmo", "unroll"), slow("olmo2", "scan")],
)
def test_every_position_has_the_logits_of_the_oracle(architecture, layer_loop):
    """And of `apply`: a prompt, three tokens at once, then one by one, with room to spare."""
    config = dataclasses.replace(CONFIGS[architecture], layer_loop=layer_loop)
    arrays, params, _ = oracle(architecture)
    tokens = arrays["tokens"][:, :-1]
    parts = [5, 3, *[1] * (tokens.shape[1] - 8)]
    found = decode_in_parts(config, params, tokens, parts, places=20)
    np.testing.assert_allclose(found, arrays["logits"], rtol=0, atol=1e-5)
    whole = jax.jit(functools.partial(decoder.apply, config))(params, tokens)
    np.testing.assert_allclose(found, whole, rtol=0, atol=1e-5)


@pytest.mark.parametrize("architecture", ["olmo", slow("olmo2")])
def test_a_cache_in_16_bits_loses_nothing(architecture):
    """The products round their operands to what the cache holds.

    Sums in another order may tip an operand to the neighbouring number of 8 bits: that is far less
    than the 1e-2 that 16 bits are from float32.
    """
    config = dataclasses.replace(CONFIGS[architecture], dtype="bfloat16")
    arrays, params, _ = oracle(architecture)
    tokens = arrays["tokens"][:, :-1]
    assert decoder.init_cache(config, 1, 4)["keys"].dtype == jnp.bfloat16
    found = decode_in_parts(config, params, tokens, [5, 3, *[1] * (tokens.shape[1] - 8)], places=20)
    whole = np.asarray(jax.jit(functools.partial(decoder.apply, config))(params, tokens))
    exact = arrays["logits"]
    assert found.dtype == np.float32
    assert np.linalg.norm(found - whole) < 0.2 * np.linalg.norm(whole - exact)


def test_padding_after_a_prompt_and_what_an_older_text_left_are_not_seen():
    arrays, params, _ = oracle("olmo")
    tokens = arrays["tokens"][:, :-1]
    cache = decoder.init_cache(OLMO, len(tokens), 16)
    # An older text fills every place, then a prompt of 5 tokens comes padded to 8.
    _, cache = decoding(OLMO)(params, cache, tokens[::-1, ::-1], 0)
    padded = np.where(np.arange(8) < 5, tokens[:, :8], 77)
    logits, cache = decoding(OLMO)(params, cache, padded, 0)
    found = [np.asarray(logits)[:, :5]]
    for position in range(5, tokens.shape[1]):
        logits, cache = decoding(OLMO)(params, cache, tokens[:, [position]], position)
        found.append(np.asarray(logits))
    np.testing.assert_allclose(np.concatenate(found, axis=1), arrays["logits"], rtol=0, atol=1e-5)


def test_tokens_compile_nothing_and_the_cache_stays_where_it_is(compilations):
    arrays, params, _ = oracle("olmo")
    params = jax.device_put(params)
    tokens = arrays["tokens"][:, :-1]
    decode = jax.jit(functools.partial(decoder.decode, OLMO), donate_argnums=1)
    cache = decoder.init_cache(OLMO, len(tokens), 16)
    with compilations() as count:
        _, cache = decode(params, cache, tokens[:, :6], 0)
        _, cache = decode(params, cache, tokens[:, 6:7], 6)
        assert count() == 2
        for position in range(7, 16):
            given, places = cache, {k: v.unsafe_buffer_pointer() for k, v in cache.items()}
            _, cache = decode(params, cache, tokens[:, position : position + 1], position)
            assert all(leaf.is_deleted() for leaf in given.values())
            assert {k: v.unsafe_buffer_pointer() for k, v in cache.items()} == places
        assert count() == 2
