"""Triton kernels, interpreted on a CPU, against their twins in plain JAX."""

import contextlib
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anytime_jax.config.mesh import MeshConfig
from anytime_jax.config.model import KERNELS, Qwen
from anytime_jax.distributed.sharding import UNCONSTRAINED, ShardingConstraint, make_mesh
from anytime_jax.models import between_products, decoder, triton_kernels
from anytime_jax.models.attention import rotary_table
from anytime_jax.models.between_products import NormForm
from anytime_jax.models.mixed_einsum import Precision
from anytime_jax.training.objective import Objective

LAYER, RMS = NormForm(1e-5, centered=True), NormForm(1e-5, centered=False)
SMALL = Qwen(
    layers=1,
    heads=4,
    kv_heads=2,
    width=32,
    mlp_width=64,
    length=64,
    vocab_size=64,
    embedding_rows=64,
    dtype="float32",
    attention="plain",
)
DTYPES = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])


def draw(seed, *shape):
    return jnp.asarray(2 * np.random.default_rng(seed).normal(size=shape), jnp.float32)


@contextlib.contextmanager
def kernels_alone():
    """Models use the kernels on any device, and no kernel leaves its sizes to its twin."""
    with pytest.MonkeyPatch.context() as patch:
        for part in KERNELS:
            patch.setattr(between_products, between_products.FUNCTIONS[part].__name__, None)
            patch.setitem(between_products.FUNCTIONS, part, triton_kernels.FUNCTIONS[part])
        yield


def check(part, dtype, arrays, arguments):
    """Compares results and gradients of a kernel with those of its twin.

    `arrays` are of the type of rounded values where they are rounded, and `arguments` makes the
    arguments of the part before its last two from them.
    """
    precision = Precision(dtype, jax.default_backend())
    stored = [precision.round(x) if x.ndim > 2 else x for x in arrays]

    def run(functions):
        def results(*arrays):
            found = functions[part](*arguments(*arrays), precision, UNCONSTRAINED)
            return jax.tree.map(precision.round, found)

        found, pull_back = jax.vjp(results, *stored)
        leaves, tree = jax.tree.flatten(found)
        seeds = [precision.round(draw(9 + i, *x.shape)) for i, x in enumerate(leaves)]
        gradients = pull_back(tree.unflatten(seeds))
        # The product before the part rounds them in any case.
        gradients = [precision.round(x) if x.ndim > 2 else x for x in gradients]
        return [*leaves, *gradients]

    expected = jax.jit(lambda: run(between_products.FUNCTIONS))()
    with kernels_alone():
        ours = jax.jit(lambda: run(triton_kernels.FUNCTIONS))()
    for actual, twin in zip(ours, expected, strict=True):
        actual, twin = (np.asarray(x, np.float64) for x in (actual, twin))
        largest = np.abs(twin).max()
        if dtype == "float32" or twin.ndim < 3:
            np.testing.assert_allclose(actual, twin, rtol=1e-6, atol=1e-6 * largest)
        else:  # float32 results that differ in the last bit may round to neighbors
            np.testing.assert_allclose(actual, twin, atol=2**-8 * largest)
            assert np.mean(np.abs(actual - twin) > 1e-6 * largest) < 1e-3


@DTYPES
@pytest.mark.parametrize(
    ("parts", "heads", "channels", "norm", "form"),
    [
        ("qkv", 4, 64, "width", LAYER),
        ("kv", 2, 128, "head", RMS),
        ("q", 1, 32, "none", RMS),
    ],
)
def test_heads(parts, heads, channels, norm, form, dtype):
    table = rotary_table(64, channels, 10_000.0)
    shape = {"width": (heads, channels), "head": (channels,), "none": None}[norm]
    letters = [x for x in parts if x != "v" and shape]
    arrays = [draw(0, 2, 64, len(parts), heads, channels)]
    arrays += [1 + draw(i, *shape) / 8 for i, _ in enumerate(letters, 1)]

    def arguments(y, *scales):
        return y, parts, dict(zip(letters, scales, strict=True)), table, form

    check("heads", dtype, arrays, arguments)


@DTYPES
@pytest.mark.parametrize(("width", "form", "adds"), [(256, LAYER, True), (64, RMS, False)])
def test_norms(width, form, adds, dtype):
    arrays = [1 + draw(0, width) / 8, draw(1, 3, 32, width)]
    arrays += [draw(2, 3, 32, width)] * adds

    def arguments(scale, x, added=None):
        return x, added, scale, form

    check("norms", dtype, arrays, arguments)


@DTYPES
@pytest.mark.parametrize(("parts", "width"), [(1, 1536), (2, 64)])
def test_activation(parts, width, dtype):
    check("activation", dtype, [draw(0, 3, 32, parts, width)], lambda h: (h,))


def test_types_of_a_gpu():
    """The sum of the residual stream stays float32, and its norm is rounded; so are gradients."""
    precision = Precision("bfloat16", "gpu")
    stream, added = (jax.ShapeDtypeStruct((2, 32, 64), x) for x in ("float32", "bfloat16"))

    def run(*terms):
        def norm(x, added, scale):
            rest = LAYER, precision, UNCONSTRAINED
            return triton_kernels.add_and_normalize(x, added, scale, *rest)

        found, pull_back = jax.vjp(norm, *terms)
        return found, pull_back(found)

    scale = jax.ShapeDtypeStruct((64,), "float32")
    found, gradients = jax.eval_shape(run, stream, added, scale)
    assert [x.dtype for x in found] == ["float32", "bfloat16"]
    assert [x.dtype for x in gradients] == ["float32", "bfloat16", "float32"]


def loss_and_gradient(config, constrain=UNCONSTRAINED):
    params = decoder.init_params(config, jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (4, 65), 0, 64)
    return jax.jit(Objective(config, constrain).loss_and_gradient)(params, tokens)


def check_equal(trees, tolerance):
    for actual, expected in zip(*map(jax.tree.leaves, trees), strict=True):
        largest = np.abs(expected).max()
        np.testing.assert_allclose(actual, expected, atol=tolerance * largest)


def test_devices_share_kernels():
    """Rows are split over `data` and heads over `tensor`; gradients are those of one device."""
    mesh = make_mesh(MeshConfig(2, 1, 2), jax.devices()[:4])
    exact = loss_and_gradient(SMALL)
    with kernels_alone():
        shared = loss_and_gradient(SMALL, ShardingConstraint(mesh))
    check_equal((shared, exact), 1e-5)


def test_residual_stream_of_16_bits():
    """It changes the loss by rounding alone, with kernels as without them."""
    half = dataclasses.replace(SMALL, residual_dtype="bfloat16")
    found, exact = loss_and_gradient(half), loss_and_gradient(SMALL)
    with kernels_alone():
        check_equal((loss_and_gradient(half), found), 2e-2)
    assert found[0] != exact[0]
    check_equal((found, exact), 5e-2)
