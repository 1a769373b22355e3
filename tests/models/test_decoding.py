"""Decoding with a cache of keys and values: the results of the whole sequence, part by part."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference_decoders import CONFIGS, OLMO, oracle

from anytime_jax.models import decoder


@functools.lru_cache
def jitted_decode(config):
    return jax.jit(functools.partial(decoder.decode, config), donate_argnums=1)


def decode_in_parts(config, params, tokens):
    """The logits of every position: a prompt of 5, three tokens at once, then one by one."""
    cache, position, all_logits = decoder.init_cache(config, len(tokens), 20), 0, []
    for length in (5, 3, *[1] * (tokens.shape[1] - 8)):
        part = tokens[:, position : position + length]
        logits, cache = jitted_decode(config)(params, cache, part, position)
        all_logits.append(np.asarray(logits))
        position += length
    assert position == tokens.shape[1]
    return np.concatenate(all_logits, axis=1)


@pytest.mark.parametrize(
    ("architecture", "layer_loop"),
    [("olmo", "scan"), ("olmo2", "unroll")],
)
def test_decoded_logits_match_oracle_and_apply(architecture, layer_loop):
    config = dataclasses.replace(CONFIGS[architecture], layer_loop=layer_loop)
    arrays, params, _ = oracle(architecture)
    tokens = arrays["tokens"][:, :-1]
    decoded = decode_in_parts(config, params, tokens)
    np.testing.assert_allclose(decoded, arrays["logits"], rtol=0, atol=1e-5)
    whole = jax.jit(functools.partial(decoder.apply, config))(params, tokens)
    np.testing.assert_allclose(decoded, whole, rtol=0, atol=1e-5)


def test_bfloat16_cache_loses_nothing():
    """The products round their operands to the type of the cache anyway.

    Sums in another order may round an operand to the neighboring 8-bit number, which is far less
    than the 1e-2 between bfloat16 and float32.
    """
    config = dataclasses.replace(OLMO, dtype="bfloat16")
    arrays, params, _ = oracle("olmo")
    tokens = arrays["tokens"][:, :-1]
    assert decoder.init_cache(config, 1, 4)["keys"].dtype == jnp.bfloat16
    decoded = decode_in_parts(config, params, tokens)
    whole = np.asarray(jax.jit(functools.partial(decoder.apply, config))(params, tokens))
    exact = arrays["logits"]
    assert decoded.dtype == np.float32
    assert np.linalg.norm(decoded - whole) < 0.2 * np.linalg.norm(whole - exact)


def test_padding_and_old_cache_contents_are_not_seen():
    arrays, params, _ = oracle("olmo")
    tokens = arrays["tokens"][:, :-1]
    cache = decoder.init_cache(OLMO, len(tokens), 16)
    # An older text fills the cache; then comes a prompt of 5 tokens, padded to 8.
    _, cache = jitted_decode(OLMO)(params, cache, tokens[::-1, ::-1], 0)
    padded = np.where(np.arange(8) < 5, tokens[:, :8], 77)
    logits, cache = jitted_decode(OLMO)(params, cache, padded, 0)
    decoded = [np.asarray(logits)[:, :5]]
    for position in range(5, tokens.shape[1]):
        logits, cache = jitted_decode(OLMO)(params, cache, tokens[:, [position]], position)
        decoded.append(np.asarray(logits))
    np.testing.assert_allclose(np.concatenate(decoded, axis=1), arrays["logits"], rtol=0, atol=1e-5)


def test_decoding_compiles_once_and_updates_the_cache_in_place(compilations):
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
            old, buffers = cache, {k: v.unsafe_buffer_pointer() for k, v in cache.items()}
            _, cache = decode(params, cache, tokens[:, position : position + 1], position)
            assert all(leaf.is_deleted() for leaf in old.values())
            assert {k: v.unsafe_buffer_pointer() for k, v in cache.items()} == buffers
        assert count() == 2
