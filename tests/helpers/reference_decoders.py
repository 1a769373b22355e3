"""Fixtures of other libraries' decoders: settings, parameters and gradients by our names."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from paths import FIXTURES

from anytime_jax.config.model import Olmo, Olmo2
from anytime_jax.models import decoder

LAYERS, WIDTH = 3, 32  # of the oracles

PAPER = Olmo(
    layers=12, heads=16, width=1024, mlp_width=4096, length=1024,
    vocab_size=32_100, embedding_rows=32_128, rope_theta=10_000.0, norm_epsilon=1e-5,
    dtype="bfloat16", attention="auto", layer_loop="scan", remat="none",
)  # fmt: skip
OLMO = dataclasses.replace(
    PAPER, layers=LAYERS, heads=4, width=WIDTH, mlp_width=128, length=16,
    vocab_size=90, embedding_rows=96, dtype="float32", attention="plain",
)  # fmt: skip
OLMO2 = dataclasses.replace(
    Olmo2(**dataclasses.asdict(OLMO)), mlp_width=96, rope_theta=500_000.0, norm_epsilon=1e-6
)
CONFIGS = {"olmo": OLMO, "olmo2": OLMO2}


def stack(array_of_layer):
    return np.stack([array_of_layer(layer) for layer in range(LAYERS)])


def from_olmo(arrays, prefix):
    """Renames AI2's parameters; its linear weights are [out, in], ours [in, out]."""

    def block(layer, name):
        return arrays[f"{prefix}/transformer.blocks.{layer}.{name}.weight"]

    return {
        "embedding": arrays[f"{prefix}/transformer.wte.weight"],
        "blocks": {
            "attn_norm": {"scale": stack(lambda i: block(i, "attn_norm"))},
            "qkv": stack(lambda i: block(i, "att_proj").T.reshape(WIDTH, 3, WIDTH)),
            "q_norm": {"scale": stack(lambda i: block(i, "q_norm"))},
            "k_norm": {"scale": stack(lambda i: block(i, "k_norm"))},
            "attn_out": stack(lambda i: block(i, "attn_out").T),
            "mlp_norm": {"scale": stack(lambda i: block(i, "ff_norm"))},
            "mlp_in": stack(lambda i: block(i, "ff_proj").T[:, None, :]),
            "mlp_out": stack(lambda i: block(i, "ff_out").T),
        },
        "final_norm": {"scale": arrays[f"{prefix}/transformer.ln_f.weight"]},
        "head": arrays[f"{prefix}/transformer.ff_out.weight"].T,
    }


def from_olmo2(arrays, prefix):
    """Renames the parameters of `transformers`' Olmo2ForCausalLM."""

    def layer(i, name):
        return arrays[f"{prefix}/model.layers.{i}.{name}.weight"]

    def join(*names):
        return stack(lambda i: np.stack([layer(i, name).T for name in names], axis=1))

    return {
        "embedding": arrays[f"{prefix}/model.embed_tokens.weight"],
        "blocks": {
            "attn_norm": {"scale": stack(lambda i: layer(i, "post_attention_layernorm"))},
            "qkv": join("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            "q_norm": {"scale": stack(lambda i: layer(i, "self_attn.q_norm"))},
            "k_norm": {"scale": stack(lambda i: layer(i, "self_attn.k_norm"))},
            "attn_out": stack(lambda i: layer(i, "self_attn.o_proj").T),
            "mlp_norm": {"scale": stack(lambda i: layer(i, "post_feedforward_layernorm"))},
            "mlp_in": join("mlp.gate_proj", "mlp.up_proj"),
            "mlp_out": stack(lambda i: layer(i, "mlp.down_proj").T),
        },
        "final_norm": {"scale": arrays[f"{prefix}/model.norm.weight"]},
        "head": arrays[f"{prefix}/lm_head.weight"].T,
    }


@functools.cache
def oracle(architecture):
    """Returns the fixture of an architecture: all arrays, parameters, gradients."""
    with np.load(FIXTURES / f"{architecture}.npz", allow_pickle=False) as file:
        arrays = dict(file)
    rename = {"olmo": from_olmo, "olmo2": from_olmo2}[architecture]
    return arrays, rename(arrays, "param"), rename(arrays, "grad")


@functools.cache
def compiled(architecture):
    """Returns the compiled function from parameters and tokens to logits."""
    return jax.jit(functools.partial(decoder.apply, CONFIGS[architecture]))


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)
