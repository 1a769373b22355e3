"""NorMuon: against NumPy in float64, and its state on a mesh."""

import jax
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec
from matrix_trees import (
    BLOCKS,
    LAYERS,
    MATRIX_AXES,
    SHAPES,
    D,
    matrices,
    newton_schulz,
    random_tree,
)

from anytime_jax.checkpoints.tree_names import flatten_by_name
from anytime_jax.config.mesh import MeshConfig
from anytime_jax.distributed import sharding
from anytime_jax.models import decoder
from anytime_jax.optimizers import RunInfo
from anytime_lab.optimizers import NorMuon, normuon


@pytest.mark.parametrize("b1", [0.0, 0.9])
def test_updates_are_those_of_a_numpy_loop(b1):
    b2, epsilon = 0.8, 1e-8
    transform = normuon.scale_by_normuon(MATRIX_AXES, b1, b2, epsilon, nesterov=False)
    state = transform.init(random_tree(0, BLOCKS))
    mean, mean_square = dict.fromkeys(BLOCKS, 0.0), dict.fromkeys(BLOCKS, 0.0)
    for i in range(6):
        grads = random_tree(i, BLOCKS)
        updates, state = jax.jit(transform.update)(grads, state)
        for name, grad in grads.items():
            mean[name] = b1 * mean[name] + (1 - b1) * matrices(name, grad)
            x = newton_schulz(mean[name])
            of_neurons = np.mean(x**2, axis=-2, keepdims=True)
            mean_square[name] = b2 * mean_square[name] + (1 - b2) * of_neurons
            x = x / (np.sqrt(mean_square[name]) + epsilon)
            expected = 0.2 * x / np.sqrt(np.mean(x**2, axis=(-2, -1), keepdims=True))
            np.testing.assert_allclose(matrices(name, updates[name]), expected, atol=1e-4)


def test_state_is_sharded_and_named_like_parameters():
    run = RunInfo(optax.constant_schedule(1e-2), matrix_axes=MATRIX_AXES)
    mesh = sharding.make_mesh(MeshConfig(2, 2, 2), jax.devices())
    params = random_tree(0, {**SHAPES, "embedding": (12, D)})
    state = jax.eval_shape(NorMuon().transform(run).init, params)
    names = {name: leaf.shape for name, leaf in flatten_by_name(state).items()}
    inner = "0/inner_states/matrices/inner_state"
    assert names[f"{inner}/momentum/mu/blocks/qkv"] == (LAYERS, D, 3, D)
    assert names[f"{inner}/nu/blocks/mlp_out"] == (LAYERS, 1, D)
    assert names["0/inner_states/others/inner_state/nu/embedding"] == (12, D)
    assert len([name for name in names if "/nu/" in name]) == 6
    shardings = sharding.state_shardings(state, params, decoder.PARAMETER_AXES, mesh)
    inner = shardings[0].inner_states["matrices"].inner_state
    split = PartitionSpec(None, ("fsdp", "data"), None, "tensor")
    assert inner.momentum.mu["blocks"]["qkv"].spec == split
    assert inner.nu["blocks"]["qkv"].spec == PartitionSpec(None, None, None, "tensor")
