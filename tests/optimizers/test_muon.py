"""Muon: against Optax's, against NumPy in float64, and on eight devices."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from matrix_trees import BLOCKS, LAYERS, MATRIX_AXES, matrices, newton_schulz, random_tree

from anytime_jax.config.mesh import MeshConfig
from anytime_jax.distributed import sharding
from anytime_jax.models import decoder
from anytime_jax.optimizers import muon


def optimizer(b1=0.95, **options):
    """As a run has it: Muon for matrices, Adam for others, then decay and learning rate."""
    matrices_alone = muon.scale_by_muon(MATRIX_AXES, b1, **options)
    adam = optax.scale_by_adam(0.9, 0.95, 1e-8)
    return optax.chain(
        muon.partition_matrices(matrices_alone, adam, MATRIX_AXES),
        optax.add_decayed_weights(0.1),
        optax.scale_by_learning_rate(1e-2),
    )


def optax_muon(nesterov=True):
    def axes(params):
        def one(path, _):
            axes = MATRIX_AXES.get(path[-1].key)
            return axes and optax.contrib.MuonDimensionNumbers(*axes)

        return jax.tree_util.tree_map_with_path(one, params)

    return optax.contrib.muon(
        1e-2, beta=0.95, weight_decay=0.1, adam_weight_decay=0.1, adam_b1=0.9, adam_b2=0.95,
        nesterov=nesterov, muon_weight_dimension_numbers=axes, consistent_rms=0.2,
    )  # fmt: skip


def train(optimizer, updates=20, params=None, scale=1.0):
    """Gradients are random, with a part that stays, and pull to the origin."""
    params = random_tree(0) if params is None else params
    start, update = optimizer.init(params), jax.jit(optimizer.update)

    for i in range(updates):
        grads = jax.tree.map(lambda p, g: scale * (0.3 * p + g), params, random_tree(i + 1))
        step, start = update(grads, start, params)
        params = optax.apply_updates(params, step)
    return params, start


def assert_close(actual, expected, **tolerance):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), actual, expected)


def test_twenty_updates_are_those_of_optax():
    theirs, _ = train(optax_muon())
    # Optax gives its Adam the Nesterov momentum too, which ours does not have.
    ours, _ = train(optimizer())
    blocks = {name: ours["blocks"][name] for name in BLOCKS}
    assert_close(blocks, {name: theirs["blocks"][name] for name in BLOCKS}, atol=1e-5)

    ours, _ = train(optimizer(nesterov=False))
    theirs, _ = train(optax_muon(nesterov=False))
    assert_close(ours, theirs, atol=1e-5)


def test_singular_values_are_those_of_numpy():
    tree = random_tree(3, BLOCKS)
    tree["mlp_out"] = tree["mlp_out"].at[0].set(0.0)  # the gradient of a layer that is not used
    tree["qkv"] = tree["qkv"].at[0].multiply(1e-6)
    actual = jax.jit(lambda x: muon.orthogonalize(x, MATRIX_AXES, epsilon=1e-20))(tree)
    for name, leaf in tree.items():
        expected = np.nan_to_num(newton_schulz(matrices(name, leaf)[1:]))
        np.testing.assert_allclose(matrices(name, actual[name])[1:], expected, atol=2e-5)
    values = np.linalg.svd(matrices("mlp_in", actual["mlp_in"]), compute_uv=False)
    assert 0.68 < values.min() < values.max() < 1.21
    values = np.linalg.svd(matrices("qkv", actual["qkv"])[0], compute_uv=False)
    assert values.max() > 0.68
    assert not np.any(actual["mlp_out"][0])


def test_the_reference_is_the_polynomial_of_singular_values():
    x = matrices("mlp_in", random_tree(3, BLOCKS)["mlp_in"])
    found = muon.newton_schulz(jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(found, newton_schulz(x), atol=2e-5)


def test_bfloat16_differs_by_its_rounding():
    tree = random_tree(3, BLOCKS)
    exact, rounded = (
        jax.jit(lambda tree, dtype=dtype: muon.orthogonalize(tree, MATRIX_AXES, dtype=dtype))(tree)
        for dtype in (jnp.float32, jnp.bfloat16)
    )
    for a, b in zip(jax.tree.leaves(exact), jax.tree.leaves(rounded), strict=True):
        assert b.dtype == jnp.float32
        assert 1e-4 < jnp.linalg.norm(a - b) / jnp.linalg.norm(a) < 0.1


def sharded(axes):
    """The FLOPs of an orthogonalization on each device of a mesh, and its result."""
    mesh = sharding.make_mesh(MeshConfig(*axes), jax.devices()[: math.prod(axes)])
    over_all = NamedSharding(mesh, PartitionSpec(sharding.MESH_AXES))
    tree = random_tree(3, {**BLOCKS, "mlp_in": (LAYERS, 32, 2, 64), "mlp_out": (LAYERS, 64, 32)})
    tree |= random_tree(4, {"qkv": (LAYERS, 32, 3, 32), "attn_out": (LAYERS, 32, 32)})
    places = sharding.parameter_shardings(tree, decoder.PARAMETER_AXES, mesh)
    compute = jax.jit(
        lambda tree: muon.orthogonalize(
            tree,
            MATRIX_AXES,
            constrain_stack=lambda x: jax.lax.with_sharding_constraint(x, over_all),
        ),
        in_shardings=(places,),
        out_shardings=places,
    )
    compiled = compute.lower(tree).compile()
    return compiled.cost_analysis()["flops"], compiled(jax.device_put(tree, places))


def test_each_device_orthogonalizes_its_share():
    def products(squares, others, R=32, C=64):
        return 5 * (6 * squares * R**3 + others * (4 * R * R * C + 2 * R**3))

    flops, expected = sharded((1, 1, 1))
    assert flops == pytest.approx(products(12, 9), rel=0.05)
    for axes in ((8, 1, 1), (2, 2, 2)):  # 12 and 9 matrices on 8 devices: 2 on each
        flops, actual = sharded(axes)
        assert products(2, 2) <= flops < 1.15 * products(2, 2)
        assert_close(actual, expected, atol=1e-5)


def test_matrix_axes_name_exactly_the_parameters():
    params = random_tree(0, BLOCKS)
    for axes in ({"qkv": (-3, -1)}, {**MATRIX_AXES, "typo": (-2, -1)}):
        with pytest.raises(ValueError, match="matrix_axes"):
            muon.scale_by_muon(axes).init(params)
