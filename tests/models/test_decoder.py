"""Decoder: against fixtures of other libraries (tests/oracles), and its own settings."""

import dataclasses
import functools
import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params
from reference_decoders import CONFIGS, OLMO, OLMO2, PAPER, oracle

from anytime_jax.config.mesh import MeshConfig
from anytime_jax.distributed.sharding import UNCONSTRAINED, ShardingConstraint, make_mesh
from anytime_jax.models import attention, decoder
from anytime_jax.models.attention import (
    GpuTimes,
    causal_attention,
    choose_implementation,
    plain_attention,
    rotary_table,
    rotate,
    unmet_need,
)
from anytime_jax.models.loss import token_losses
from anytime_jax.models.mixed_einsum import Precision, mixed_einsum
from anytime_jax.training.objective import Objective


def loss_logits_gradients(config, params, tokens):
    def loss(params):
        logits = decoder.apply(config, params, tokens[:, :-1])
        return token_losses(logits, tokens[:, 1:]).mean(), logits

    (value, logits), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    return value, logits, grads


@pytest.mark.parametrize(
    ("architecture", "layer_loop", "attention", "remat"),
    [
        ("olmo", "scan", "plain", "none"),
        ("olmo", "unroll", "blocks", "none"),
        ("olmo2", "scan", "blocks", "products"),
        ("olmo2", "unroll", "xla", "full"),
    ],
)
def test_logits_and_gradients_match_oracle(architecture, layer_loop, attention, remat):
    config = dataclasses.replace(
        CONFIGS[architecture], layer_loop=layer_loop, attention=attention, remat=remat
    )
    arrays, params, expected = oracle(architecture)
    loss, logits, grads = loss_logits_gradients(config, params, arrays["tokens"])
    assert logits.dtype == jnp.float32
    np.testing.assert_allclose(logits, arrays["logits"], rtol=0, atol=1e-5)
    assert float(loss) == pytest.approx(float(arrays["loss"]), abs=1e-6)
    assert jax.tree.structure(grads) == jax.tree.structure(expected)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=2e-6), grads, expected)


@pytest.mark.parametrize(
    ("config", "blocks", "total"),
    [
        (PAPER, 150_994_944, 216_843_264),
        (OLMO2, 39_936, 46_496),  # 3 (4 D^2 + 3 D F), 13 D and 2 D V more: D 32, F = V = 96
    ],
    ids=["150M", "gated MLP"],
)
def test_count_params(config, blocks, total):
    head = config.embedding_rows * config.width
    assert decoder.count_params(config) == {"blocks": blocks, "head": head, "all": total}


# Settings that change the program, not its results.


def gradient_jaxpr(**changes):
    config = dataclasses.replace(OLMO, **changes)
    _, params, _ = oracle("olmo")
    tokens = np.zeros((2, 8), np.int32)
    return str(jax.make_jaxpr(jax.grad(lambda p: decoder.apply(config, p, tokens).sum()))(params))


def test_layer_loop_scans_or_unrolls():
    texts = {loop: gradient_jaxpr(layer_loop=loop) for loop in ("scan", "unroll")}
    assert [text.count("scan[") for text in texts.values()] == [2, 0]  # forward and backward


def test_remat_recomputes_activations_or_products():
    texts = [gradient_jaxpr(remat=remat) for remat in ("none", "products", "full")]
    # The MLP's erf runs in the forward pass, and again in the backward pass unless it was saved.
    assert [text.count(" erf ") for text in texts] == [1, 2, 2]
    # So do the two products of attention, which have batch axes; the others only with "full".
    none, products, full = (text.count(" dot_general[") for text in texts)
    assert none == 3 * 7
    assert products == none + 2
    assert full >= none + 5


def check_attention_is_that_of_plain(path, heads, constrain=UNCONSTRAINED):
    """The weighted sum of what it gives, and the gradients."""
    sensitivity = np.random.default_rng(1).normal(size=heads[0].shape)
    precision = Precision("float32", "cpu")

    def value_and_grad(attention, *arguments):
        def weighted_sum(heads):
            return (attention(*heads, precision, *arguments) * sensitivity).sum()

        return jax.jit(jax.value_and_grad(weighted_sum))(heads)

    plain, plain_grad = value_and_grad(plain_attention)
    value, grad = value_and_grad(causal_attention, path, constrain)
    assert float(value) == pytest.approx(float(plain), rel=1e-5)
    for actual, expected in zip(grad, plain_grad, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=2e-5)


def random_heads(length, *counts):
    rng = np.random.default_rng(0)
    return [rng.normal(size=(2, length, n, 16)).astype("f4") for n in counts]


def test_blocks_attention_matches_plain():
    """For a length that blocks do not divide, and scores so large that a maximum is needed."""
    q, k, v = random_heads(7, 4, 4, 4)
    check_attention_is_that_of_plain("blocks", [30 * q, k, v])


def test_splash_attention_matches_plain():
    """Interpreted, with several blocks of keys; rows and heads are split over a mesh."""
    mesh = make_mesh(MeshConfig(2, 1, 2), jax.devices()[:4])
    check_attention_is_that_of_plain("splash", random_heads(384, 4, 2, 2), ShardingConstraint(mesh))


DEVICES = {
    "cpu": SimpleNamespace(platform="cpu"),
    "tpu": SimpleNamespace(platform="tpu"),
    "amd": SimpleNamespace(platform="gpu", compute_capability="gfx950"),
    "turing": SimpleNamespace(platform="gpu", compute_capability="7.5"),
    "ampere": SimpleNamespace(platform="gpu", compute_capability="8.0"),
    "gpu": SimpleNamespace(platform="gpu", compute_capability="9.0"),
}


@pytest.mark.parametrize(
    ("platform", "dtype", "length", "attention"),
    [
        ("cpu", "float32", 256, "blocks"),
        ("gpu", "float32", 256, "xla"),
        ("gpu", "bfloat16", 7, "cudnn"),
        ("ampere", "bfloat16", 7, "cudnn"),  # nobody measured one
        ("turing", "bfloat16", 7, "xla"),
        ("amd", "bfloat16", 7, "xla"),
        ("tpu", "float32", 256, "xla"),
        ("tpu", "bfloat16", 256, "splash"),
        ("tpu", "bfloat16", 200, "xla"),
    ],
)
def test_auto_attention_by_platform(platform, dtype, length, attention):
    config = dataclasses.replace(OLMO, attention="auto", dtype=dtype)
    assert choose_implementation(config, DEVICES[platform], length) == attention


@pytest.mark.parametrize(
    ("change", "platform", "need"),
    [
        ({"attention": "cudnn", "dtype": "float32"}, "gpu", "dtype"),
        ({"attention": "cudnn", "dtype": "bfloat16"}, "tpu", "GPU"),
        ({"attention": "cudnn", "dtype": "bfloat16", "width": 2 * 132, "heads": 2}, "gpu", "heads"),
        ({"attention": "splash", "length": 200}, "tpu", "128"),
        ({"attention": "splash", "length": 256}, "cpu", "TPU"),
        ({"attention": "xla"}, "cpu", ""),
    ],
)
def test_need_of_a_kernel_that_is_not_met_is_told(change, platform, need):
    config = dataclasses.replace(OLMO, **change)
    told = unmet_need(config.attention, config, DEVICES[platform], config.length)
    assert (need in told) if need else told == ""


def test_auto_takes_the_fastest_measured_on_the_generation(monkeypatch):
    """Bites if the table is not read, or another generation's row is."""
    rows = [GpuTimes("one", 9, {"cudnn": 1, "xla": 2}), GpuTimes("two", 8, {"cudnn": 2, "xla": 1})]
    monkeypatch.setattr(attention, "GPU_TIMES", rows)
    config = dataclasses.replace(OLMO, attention="auto", dtype="bfloat16")
    chosen = [choose_implementation(config, DEVICES[x], 256) for x in ("gpu", "ampere")]
    assert chosen == ["cudnn", "xla"]


def test_deterministic_flags_leave_cudnn(monkeypatch):
    """XLA fails to run cuDNN's attention with them: "auto" takes another, "cudnn" is refused."""
    config = dataclasses.replace(OLMO, dtype="bfloat16", attention="auto")
    assert choose_implementation(config, DEVICES["gpu"], config.length) == "cudnn"
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to= --xla_gpu_deterministic_ops=true")
    assert choose_implementation(config, DEVICES["gpu"], config.length) == "xla"
    assert "deterministic" in unmet_need("cudnn", config, DEVICES["gpu"], config.length)


def test_parameters_are_made_where_the_attention_cannot_run():
    config = dataclasses.replace(OLMO, attention="cudnn", dtype="bfloat16")
    assert decoder.param_shapes(config) == decoder.param_shapes(OLMO)


# bfloat16 products.


def test_only_products_compute_in_16_bits(monkeypatch):
    """On an accelerator, where results of products are stored in 16 bits."""

    def attend(*heads, **_):
        return sum(y.astype(jnp.float32) for y in heads).astype(jnp.bfloat16)

    monkeypatch.setattr(jax.nn, "dot_product_attention", attend)
    monkeypatch.setattr(ShardingConstraint, "platform", "gpu")
    config = dataclasses.replace(OLMO2, dtype="bfloat16", attention="cudnn")
    params = decoder.param_shapes(config)
    rows = jax.ShapeDtypeStruct((2, config.length + 1), jnp.int32)
    objective = Objective(config, ShardingConstraint())
    gradient = jax.grad(lambda params, rows: objective.loss_and_sums(params, None, rows)[0])
    in_16_bits = {
        equation.primitive.name
        for equation in all_equations(jax.make_jaxpr(gradient)(params, rows).jaxpr)
        if any(getattr(x.aval, "dtype", None) == jnp.bfloat16 for x in equation.outvars)
    }
    moves = {"reshape", "transpose", "broadcast_in_dim", "split", "concatenate", "squeeze", "slice"}
    calls = {"scan", "jit", "pjit", "custom_vjp_call", "remat2", "checkpoint", "closed_call"}
    assert "dot_general" in in_16_bits
    assert in_16_bits <= {"dot_general", "convert_element_type"} | moves | calls


def all_equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from all_equations(inner)


def test_bfloat16_results_are_near_float32():
    """Operands have 8 bits: logits of size 1 to 3 change by some 1e-2, gradients by 3%."""
    arrays, params, grads = oracle("olmo")
    config = dataclasses.replace(OLMO, dtype="bfloat16")
    loss, logits, actual = loss_logits_gradients(config, params, arrays["tokens"])
    assert logits.dtype == jnp.float32
    error = np.abs(np.asarray(logits) - arrays["logits"])
    assert 1e-4 < error.max() < 3e-2  # at least 1e-4: they are not float32
    assert float(loss) == pytest.approx(float(arrays["loss"]), abs=2e-3)

    def assert_near(value, exact):
        assert value.dtype == jnp.float32
        assert np.linalg.norm(value - exact) < 0.03 * np.linalg.norm(exact)

    jax.tree.map(assert_near, actual, grads)


SPECS = {
    "bld,dv->blv": ((2, 5, 8), (8, 7)),
    "blhk,bmhk->bhlm": ((2, 5, 3, 4), (2, 6, 3, 4)),
}


@pytest.mark.parametrize("spec", SPECS)
def test_mixed_einsum_and_gradients(spec):
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=shape).astype(np.float32) for shape in SPECS[spec])
    cotangent = rng.normal(size=np.einsum(spec, x, y).shape).astype(np.float32)

    def actual(dtype, platform="cpu", round_result=True):
        precision = Precision(dtype, platform)

        @jax.jit
        def run(x, y):
            out, back = jax.vjp(lambda *xy: mixed_einsum(spec, *xy, precision, round_result), x, y)
            return [out, *back(jnp.asarray(cotangent, out.dtype))]

        return run(x, y)

    @jax.jit
    def exact(x, y, cotangent):
        x, y, cotangent = (jnp.asarray(a, jnp.float32) for a in (x, y, cotangent))
        einsum = functools.partial(jnp.einsum, spec, precision="highest")
        out, back = jax.vjp(einsum, x, y)
        return [out, *back(cotangent)]

    for ours, expected in zip(actual("float32"), exact(x, y, cotangent), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=1e-6)
    # In 16 bits: the products of the rounded operands, the cotangent rounded too.
    rounded = [jnp.asarray(a).astype(jnp.bfloat16) for a in (x, y, cotangent)]
    for platform, stored in (("cpu", "float32"), ("gpu", "bfloat16")):
        out, dx, dy = actual("bfloat16", platform)
        assert (out.dtype, dx.dtype, dy.dtype) == (stored, "float32", "float32")
        for ours, expected in zip((out, dx), exact(*rounded), strict=False):
            assert (ours == ours.astype(jnp.bfloat16)).all()
            np.testing.assert_allclose(ours.astype("f4"), expected, rtol=2**-8, atol=1e-6)
        np.testing.assert_allclose(dy, exact(*rounded)[2], rtol=1e-6, atol=1e-6)
        unrounded = actual("bfloat16", platform, round_result=False)[0]
        assert unrounded.dtype == jnp.float32
        np.testing.assert_allclose(unrounded, exact(*rounded)[0], rtol=1e-6, atol=1e-6)


# Initialization.


@functools.cache
def wide_init(architecture):
    config = dataclasses.replace(
        CONFIGS[architecture], layers=3, width=64, mlp_width=192, vocab_size=500, embedding_rows=512
    )
    return config, jax.device_get(decoder.init_params(config, jax.random.key(7)))


def check_truncated_normal(values, sigma):
    """Mean, variance and truncation of a sample, the first two within five standard errors."""
    x = np.asarray(values, np.float64).ravel() / sigma
    density = math.exp(-4.5) / math.sqrt(2 * math.pi)
    inside = math.erf(3 / math.sqrt(2))
    variance = 1 - 6 * density / inside  # of a unit normal truncated at three sigma: 0.9866^2
    assert math.sqrt(variance) == pytest.approx(0.9866, abs=1e-4)
    assert abs(x.mean()) < 5 * math.sqrt(variance / x.size)
    assert abs(x.var() / variance - 1) < 5 * math.sqrt(2 / x.size)
    assert 2.5 < np.abs(x).max() <= 3 * (1 + 1e-6)


def test_init_of_matrices():
    config, params = wide_init("olmo")
    D, F = config.width, config.mlp_width
    check_truncated_normal(params["embedding"], 1 / math.sqrt(D))
    check_truncated_normal(params["head"], 1 / math.sqrt(D))
    for layer in range(config.layers):
        block = jax.tree.map(lambda leaf, layer=layer: leaf[layer], params["blocks"])
        for part in range(3):
            check_truncated_normal(block["qkv"][:, part], 1 / math.sqrt(D))
        check_truncated_normal(block["mlp_in"], 1 / math.sqrt(D))
        check_truncated_normal(block["attn_out"], 1 / math.sqrt(2 * D * (layer + 1)))
        check_truncated_normal(block["mlp_out"], 1 / math.sqrt(2 * F * (layer + 1)))
    _, params = wide_init("olmo2")
    for name in ("embedding", "head", "qkv", "attn_out", "mlp_in", "mlp_out"):
        check_truncated_normal({**params, **params["blocks"]}[name], 0.02)


def test_init_norms_are_one_and_matrices_uncorrelated():
    _, params = wide_init("olmo")
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype("float32")}
    blocks = params["blocks"]
    for norm in (params["final_norm"], *(blocks[f"{n}_norm"] for n in ("attn", "mlp", "q", "k"))):
        assert set(norm) == {"scale"}
        np.testing.assert_array_equal(norm["scale"], 1)
    matrices = [params["embedding"], params["head"].T]
    for name in ("qkv", "attn_out", "mlp_in", "mlp_out"):
        matrices += list(blocks[name])
    samples = np.stack([np.asarray(m).ravel()[:4096] for m in matrices])
    correlations = np.corrcoef(samples) - np.eye(len(samples))
    assert np.abs(correlations).max() < 6 / math.sqrt(4096)


def test_init_depends_on_key_and_not_on_layer_loop():
    config, params = wide_init("olmo")
    unrolled = dataclasses.replace(config, layer_loop="unroll")
    init = functools.partial(decoder.init_params, unrolled)
    other = jax.device_get(init(jax.random.key(7)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), params, other)
    third = init(jax.random.key(8))
    assert np.abs(params["blocks"]["qkv"] - third["blocks"]["qkv"]).max() > 0.1


# Positions.


@pytest.mark.parametrize(("dtype", "platform"), [("float32", "cpu"), ("bfloat16", "tpu")])
def test_rotate_multiplies_complex_pairs(dtype, platform):
    """Channels i and i + K/2 are a complex number, rotated by position times frequency."""
    K, L, theta = 8, 50, 10_000.0
    random = np.random.default_rng(0)
    x, grad = (jnp.asarray(random.normal(size=(1, L, 2, K)), dtype) for _ in range(2))
    frequency = theta ** (-2 * np.arange(K // 2) / K)
    phase = np.exp(1j * np.arange(L)[:, None] * frequency)[None, :, None, :]

    def multiply(x, phase):
        x = np.asarray(x, np.float64)
        product = (x[..., : K // 2] + 1j * x[..., K // 2 :]) * phase
        return np.concatenate([product.real, product.imag], axis=-1)

    table_2xLxK, precision = rotary_table(L, K, theta), Precision(dtype, platform)
    actual, vjp = jax.vjp(lambda x: rotate(x, table_2xLxK, precision), x)
    assert actual.dtype == jnp.float32
    np.testing.assert_allclose(actual, multiply(x, phase), rtol=0, atol=2e-5)
    (actual,) = vjp(grad.astype(jnp.float32))
    assert actual.dtype == dtype
    expected = jnp.asarray(multiply(grad, phase.conj()), dtype)
    atol = 2e-5 if dtype == "float32" else 2**-7
    np.testing.assert_allclose(*(np.float32(y) for y in (actual, expected)), rtol=0, atol=atol)
