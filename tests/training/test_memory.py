"""What is said of a device's memory, against what XLA's compiler assigns."""

import dataclasses
import importlib

import jax
import jax.numpy as jnp
import pytest
import small_run

from anytime_jax.config import schema
from anytime_jax.config.schema import MeshConfig
from anytime_jax.distributed import sharding
from anytime_jax.training import memory, preflight
from anytime_jax.training.memory import Memory, measure
from anytime_jax.training.step import make_program

SCALARS = 10  # int32 and float32: the step, the counts, what the guard remembers


def compiled(given, mesh):
    """The compiler's account of a train step, and the bytes of the tokens it is given."""
    program = make_program(given, mesh)
    shape, rows = (given.batch_size, given.model.length + 1), sharding.batch_sharding(mesh)
    tokens = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=rows)
    account = (
        program.train_step.lower(program.abstract_state, tokens, True).compile().memory_analysis()
    )
    return account, 4 * shape[0] * shape[1] // sharding.batch_shards(mesh)


def takes(given, mesh):
    return measure(given, dict(mesh.shape), "cpu")


def check_state(given, mesh, account, tokens):
    """The arguments of a step are the state and the tokens; the state is given back in place."""
    said = takes(given, mesh)
    state = said.parameters + said.moments + said.averages
    assert account.argument_size_in_bytes == state + tokens + 4 * SCALARS
    assert account.alias_size_in_bytes == state + 4 * SCALARS


@pytest.mark.parametrize(
    ("devices", "axes"),
    [
        (1, {}),
        pytest.param(8, {"fsdp": 8}, marks=pytest.mark.slow),
        pytest.param(4, {"fsdp": 2, "tensor": 2}, marks=pytest.mark.slow),
    ],
)
def test_the_state_is_what_the_compiler_is_given(devices, axes):
    given, mesh = small_run.config("run", microbatches=1), small_run.mesh(devices, **axes)
    check_state(given, mesh, *compiled(given, mesh))


def medium(**changes):
    """The paper's 150M model, with fewer sequences."""
    given = importlib.import_module("configs.150m_constant").get_config()
    given.update(microbatches=1)
    given.update_from_flattened_dict({k.replace("__", "."): v for k, v in changes.items()})
    return schema.build(given.to_dict())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("axes", "changes", "low", "high"),
    [
        ((1, 1, 1), {"batch_size": 4}, 0.9, 1.1),
        ((1, 1, 1), {"batch_size": 4, "microbatches": 4}, 0.9, 1.1),
        ((1, 1, 1), {"batch_size": 4, "model__remat": "products"}, 0.8, 1.1),
        ((1, 1, 1), {"batch_size": 4, "model__remat": "full"}, 0.65, 1.1),
        ((1, 8, 1), {"batch_size": 32}, 0.9, 1.1),
        ((1, 2, 2), {"batch_size": 16, "microbatches": 4}, 0.9, 1.1),
        ((1, 2, 2), {"batch_size": 16, "model__architecture": "olmo2"}, 0.9, 1.1),
    ],
)
def test_the_150m_model_is_estimated_as_the_compiler_has_it(axes, changes, low, high):
    given = medium(**changes)
    devices = jax.devices()[: axes[0] * axes[1] * axes[2]]
    mesh = sharding.make_mesh(MeshConfig(*axes), devices)
    account, tokens = compiled(given, mesh)
    check_state(given, mesh, account, tokens)
    said = takes(given, mesh)
    ratio = (said.gradients + said.activations) / account.temp_size_in_bytes
    assert low < ratio < high
    state = said.parameters + said.moments + said.averages
    assert said.least < state + account.temp_size_in_bytes


def test_the_parts():
    given = small_run.config("run")
    one = takes(given, small_run.mesh(1))
    assert (one.moments, one.averages, one.gradients) == tuple(
        n * one.parameters for n in (2, 2, 1)
    )
    assert one.least == 6 * one.parameters
    assert one.total == one.least + one.activations
    parts = takes(dataclasses.replace(given, microbatches=2), small_run.mesh(1))
    assert (parts.gradients, parts.least) == (2 * one.parameters, one.least)
    assert takes(dataclasses.replace(given, averages=()), small_run.mesh(1)).averages == 0


def working(platform="gpu", shape=(1, 1, 1), **changes):
    """The estimate of a 150M model's activations."""
    axes = dict(zip(sharding.MESH_AXES, shape, strict=True))
    return memory.estimate_activations(medium(batch_size=256, **changes), axes, platform)


def test_the_estimate_follows_the_settings():
    by_remat = [working(model__remat=remat) for remat in ("none", "products", "full")]
    assert by_remat == sorted(by_remat, reverse=True)
    assert working(microbatches=8) == pytest.approx(working() / 8)
    assert working(shape=(8, 1, 1)) == pytest.approx(working() / 8)
    assert working(shape=(1, 8, 1)) > working(shape=(8, 1, 1))  # what is put together for use
    assert working() / 8 < working(shape=(1, 1, 8)) < working() / 2
    # The probabilities: 6 bytes for each pair of tokens, head and layer.
    kept = working(model__attention="xla") - working(model__attention="plain")
    assert kept < 0  # operands in 16 bits
    flash, other = working(model__attention="auto"), working(model__attention="xla")
    pairs = 6 * 256 * 16 * 1024**2
    assert 11 * pairs < other - flash < 13 * pairs
    assert working(platform="cpu") > working(model__attention="plain")


def test_what_is_said_at_the_start():
    said = Memory(600_000_000, 1_200_000_000, 3_000_000_000, 600_000_000, 9_000_000_000)
    line = preflight.describe_memory(said, 80_000_000_000)
    assert line == (
        "600 MB parameters + 1.2 GB moments + 3 GB averages + 600 MB gradients "
        "+ about 9 GB activations = about 14.4 GB of 80 GB on each device"
    )
    assert "which is MORE THAN there is" in preflight.describe_memory(said, 10_000_000_000)
    bare = dataclasses.replace(said, averages=0)
    assert "averages" not in preflight.describe_memory(bare, None)
    assert preflight.describe_memory(bare, None).endswith("= about 11.4 GB on each device")
