"""Shardings: the same results on one device and on eight, and every array split by the rule."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec
from reference_decoders import OLMO

from anytime_jax import averaging
from anytime_jax.config.mesh import MeshConfig
from anytime_jax.config.model import Qwen
from anytime_jax.distributed import sharding
from anytime_jax.models import decoder
from anytime_jax.training.objective import Objective

CONFIG = dataclasses.replace(
    OLMO, layers=2, width=16, mlp_width=32, length=6, vocab_size=20, embedding_rows=24
)
BATCH = 8

# Of every matrix that is gathered over data; those of "blocks" are stacked over layers. Other
# parameters are then replicated.
SPECS = {
    "embedding": PartitionSpec("tensor", "fsdp"),
    "head": PartitionSpec("fsdp", "tensor"),
    "qkv": PartitionSpec(None, "fsdp", None, "tensor"),
    "attn_out": PartitionSpec(None, "tensor", "fsdp"),
    "mlp_in": PartitionSpec(None, "fsdp", None, "tensor"),
    "mlp_out": PartitionSpec(None, "tensor", "fsdp"),
}
# The first axis that data divides: of two parts the layers, of eight the next.
SPLIT_OVER_DATA = {
    2: {"embedding": 0, "head": 0, "blocks": 0},
    8: {"embedding": 0, "head": 0, "blocks": 1},
}


def mesh_of(data, fsdp, tensor):
    devices = jax.devices()[: data * fsdp * tensor]
    return sharding.make_mesh(MeshConfig(data, fsdp, tensor), devices)


def tokens():
    rows = np.random.default_rng(0).integers(0, CONFIG.vocab_size, (BATCH, CONFIG.length + 1))
    return rows.astype(np.int32)


def loss_and_gradients(config, mesh, several_microbatches=True):
    """Parameters made on the mesh, their loss and gradients."""
    shapes = decoder.param_shapes(config)
    shardings = sharding.parameter_shardings(shapes, decoder.PARAMETER_AXES, mesh)
    rows = sharding.batch_sharding(mesh)
    objective = Objective(config, sharding.ShardingConstraint(mesh))
    init = functools.partial(decoder.init_params, config, jax.random.key(3))
    params = jax.jit(init, out_shardings=shardings)()

    microbatches = BATCH // sharding.batch_shards(mesh) if several_microbatches else 1
    compute = jax.jit(
        lambda params, rows: objective.loss_and_gradient(params, rows, microbatches),
        in_shardings=(shardings, rows),
        out_shardings=(sharding.replicated(mesh), shardings),
    )
    value, grads = compute(params, sharding.put_batch(mesh, tokens(), BATCH))
    return params, value, grads


@functools.cache
def single_device(config):
    return loss_and_gradients(config, mesh_of(1, 1, 1), several_microbatches=False)


def test_grouped_queries_and_a_tied_head_are_sharded_as_their_parts():
    mesh = mesh_of(2, 2, 2)
    options = {"kv_heads": 2, "head_size": 6, "tied": True, "qkv_bias": True, "output_bias": True}
    config = Qwen(**dataclasses.asdict(CONFIG) | options)
    params, loss, grads = loss_and_gradients(config, mesh)
    _, loss_one, grads_one = single_device(config)
    assert float(loss) == pytest.approx(float(loss_one), abs=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), grads, grads_one)
    assert "head" not in params
    sizes = {"q": (16, 1, 24), "kv": (16, 2, 12), "attn_out": (24, 16)}
    for name, (D, *parts, E) in sizes.items():
        shape = params["blocks"][name].addressable_shards[0].data.shape
        assert shape == (config.layers // 2, D // 2, *parts, E // 2)


@pytest.mark.slow
@pytest.mark.parametrize("axes", [(8, 1, 1), (1, 2, 4), (2, 2, 2)], ids=str)
def test_layouts_give_the_same_loss_and_gradients(axes):
    mesh = mesh_of(*axes)
    params, loss, grads = loss_and_gradients(CONFIG, mesh)
    params_one, loss_one, grads_one = single_device(CONFIG)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), params, params_one)
    assert float(loss) == pytest.approx(float(loss_one), abs=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), grads, grads_one)
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(grads)) > 1e-2
    for name, leaf in {**grads, **grads["blocks"]}.items():
        if name in SPECS:
            spec = (*SPECS[name], *[None] * (leaf.ndim - len(SPECS[name])))
            parts = [1 if axis is None else mesh.shape[axis] for axis in spec]
            if axes[0] > 1:
                split = SPLIT_OVER_DATA[axes[0]]
                parts[split.get(name, split["blocks"])] *= axes[0]
            expected = tuple(n // p for n, p in zip(leaf.shape, parts, strict=True))
            assert leaf.addressable_shards[0].data.shape == expected


@pytest.mark.parametrize(("kv_heads", "axes"), [(0, (8, 1, 1)), (2, (2, 2, 2))], ids=str)
def test_parts_of_matrices_give_the_same_loss_and_gradients(kv_heads, axes, monkeypatch):
    """A program for TPUs has queries, keys, values, gate and up apart; this one runs on a CPU."""
    options = {"kv_heads": kv_heads, "head_size": 128, "attention": "plain"}
    config = Qwen(**dataclasses.asdict(CONFIG) | options)
    _, loss_one, grads_one = single_device(config)
    with monkeypatch.context() as patch:
        patch.setattr(sharding.ShardingConstraint, "platform", "tpu")
        _, loss, grads = loss_and_gradients(config, mesh_of(*axes))
        blocks = jax.eval_shape(
            Objective(config, sharding.ShardingConstraint(mesh_of(*axes)))._gather,
            decoder.param_shapes(config),
        )["blocks"]
    of_attention = {"kv": 2} if kv_heads else {"qkv": 3}
    parts = {name: len(x) for name, x in blocks.items() if isinstance(x, dict) and name[-1] != "m"}
    assert parts == {**of_attention, "mlp_in": 2}
    assert float(loss) == pytest.approx(float(loss_one), abs=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), grads, grads_one)


def test_parameters_moments_and_averages_are_sharded_alike():
    mesh, params = mesh_of(2, 2, 2), decoder.param_shapes(CONFIG)
    optimizer = optax.chain(optax.adam(1e-3), averaging.average_params([6.25, 25.0]))
    state = jax.eval_shape(optimizer.init, params)
    of_state = sharding.state_shardings(state, params, decoder.PARAMETER_AXES, mesh)
    of_params = sharding.parameter_shardings(params, decoder.PARAMETER_AXES, mesh)
    whole = sharding.parameter_shardings(params, decoder.PARAMETER_AXES, mesh, gathered=True)
    for places, over_data in ((whole, False), (of_params, True)):
        for name, leaf in {**places, **places["blocks"]}.items():
            if name in SPECS:
                first, *others = SPECS[name]
                split = "data" if first is None else (first, "data")
                assert leaf.spec == PartitionSpec(split if over_data else first, *others)
            elif name != "blocks":
                assert leaf["scale"].is_fully_replicated is not over_data
    adam, average = of_state[0][0], averaging.find_state(of_state)
    assert set(average.averages) == {"f6.25", "f25"}
    for tree in (adam.mu, adam.nu, *average.averages.values()):
        assert tree == of_params
    assert adam.count.is_fully_replicated
    assert average.count.is_fully_replicated


def test_parameters_of_unknown_names_are_replicated():
    """Such as a gate of a block from outside, though a program has parts of the same name."""
    gates = {"gate": jax.ShapeDtypeStruct((3,), jnp.float32)}
    (place,) = sharding.parameter_shardings(
        gates, decoder.PARAMETER_AXES, mesh_of(1, 2, 4)
    ).values()
    assert place.is_fully_replicated


def test_factored_moments_and_placeholders_are_replicated():
    mesh, params = mesh_of(2, 2, 2), decoder.param_shapes(CONFIG)
    optimizer = optax.adafactor(1e-2, min_dim_size_to_factor=8, momentum=0.9)
    state = jax.eval_shape(optimizer.init, params)
    of_state = sharding.state_shardings(state, params, decoder.PARAMETER_AXES, mesh)
    shapes = {str(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
    assert {leaf.shape for leaf in jax.tree.leaves(state)} > {(1,), (2, 16), (2, 16, 3), ()}
    split = 0
    for (_, leaf), place in zip(
        jax.tree_util.tree_leaves_with_path(state), jax.tree.leaves(of_state), strict=True
    ):
        split += not place.is_fully_replicated
        assert place.is_fully_replicated or leaf.shape in shapes.values()
    scales = [x for x in jax.tree.leaves(state) if x.shape in ((2, 16), (16,))]
    assert split == len(SPECS) + len(scales)  # the momentum, and what has the shape of a scale


def test_make_mesh():
    mesh = mesh_of(2, 1, 4)
    assert dict(mesh.shape) == {"data": 2, "fsdp": 1, "tensor": 4}
    assert set(mesh.devices.flat) == set(jax.devices())
    rest = sharding.make_mesh(MeshConfig(-1, 2, 1))
    assert dict(rest.shape) == {"data": 4, "fsdp": 2, "tensor": 1}
    assert [sharding.batch_shards(x) for x in (mesh, rest)] == [2, 8]


def test_put_batch_splits_rows_over_data_and_fsdp():
    mesh = mesh_of(2, 2, 2)
    batch = tokens()
    placed = sharding.put_batch(mesh, batch, BATCH)
    np.testing.assert_array_equal(placed, batch)
    assert placed.sharding.is_equivalent_to(sharding.batch_sharding(mesh), 2)
    assert {shard.data.shape for shard in placed.addressable_shards} == {(2, CONFIG.length + 1)}
    starts = [shard.index[0].start or 0 for shard in placed.addressable_shards]
    assert sorted(starts) == [0, 0, 2, 2, 4, 4, 6, 6]
    weights = np.arange(BATCH, dtype=np.float32)  # of one axis
    np.testing.assert_array_equal(sharding.put_batch(mesh, weights, BATCH), weights)


def test_local_rows_may_have_gaps(monkeypatch):
    """As of a host of a TPU slice, whose chips are not neighbors in the batch."""
    indices = {"chip 0": (slice(8, 10),), "chip 1": (slice(0, 2),), "replica": (slice(0, 2),)}
    placed = types.SimpleNamespace(addressable_devices_indices_map=lambda shape: indices)
    monkeypatch.setattr(sharding, "batch_sharding", lambda mesh: placed)
    np.testing.assert_array_equal(sharding.local_rows(mesh_of(1, 1, 1), 16), [0, 1, 8, 9])


@pytest.mark.parametrize("axes", [(4, 4, 1), (-1, 3, 1), (1, 1, 1)])
def test_make_mesh_rejects_wrong_number_of_devices(axes):
    with pytest.raises(ValueError, match=" x ".join(map(str, axes))):
        sharding.make_mesh(MeshConfig(*axes))


@pytest.mark.parametrize(
    ("change", "mesh", "named"),
    [
        ({"width": 24}, (1, 5, 1), r"mesh\.fsdp = 5"),
        ({"mlp_width": 30}, (2, 1, 4), r"mesh\.tensor = 4"),
    ],
)
def test_parameter_shardings_rejects_indivisible_axes(change, mesh, named):
    shapes = decoder.param_shapes(dataclasses.replace(CONFIG, **change))
    with pytest.raises(ValueError, match=named):
        sharding.parameter_shardings(shapes, decoder.PARAMETER_AXES, mesh_of(*mesh))
