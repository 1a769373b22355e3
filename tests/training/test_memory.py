"""Memory estimate: against what XLA's compiler assigns."""

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

SCALARS = 10  # int32 and float32: the step, the counts, the guard's statistics


def compile_step(config, mesh):
    """The compiler's memory analysis of a train step, and the bytes of its tokens."""
    program = make_program(config, mesh)
    shape, rows = (config.batch_size, config.model.length + 1), sharding.batch_sharding(mesh)
    tokens = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=rows)
    analysis = (
        program.train_step.lower(program.abstract_state, tokens, True).compile().memory_analysis()
    )
    return analysis, 4 * shape[0] * shape[1] // sharding.batch_shards(mesh)


def estimate_memory(config, mesh):
    return measure(config, dict(mesh.shape), "cpu")


def state_bytes(estimate):
    return estimate.parameters + estimate.moments + estimate.averages


def check_state(config, mesh):
    """The arguments of a step are the state and the tokens; the state is updated in place."""
    analysis, tokens = compile_step(config, mesh)
    state = state_bytes(estimate_memory(config, mesh))
    assert analysis.argument_size_in_bytes == state + tokens + 4 * SCALARS
    assert analysis.alias_size_in_bytes == state + 4 * SCALARS
    return analysis


@pytest.mark.parametrize(
    ("devices", "axes"),
    [
        (1, {}),
        pytest.param(8, {"fsdp": 8}, marks=pytest.mark.slow),
        pytest.param(4, {"fsdp": 2, "tensor": 2}, marks=pytest.mark.slow),
    ],
)
def test_state_bytes_equal_compiler_arguments(devices, axes):
    check_state(small_run.config("run"), small_run.mesh(devices, **axes))


def medium(**changes):
    """The paper's 150M model, with fewer sequences."""
    config = importlib.import_module("configs.150m_constant").get_config()
    config.update(microbatches=1)
    config.update_from_flattened_dict({k.replace("__", "."): v for k, v in changes.items()})
    return schema.build(config.to_dict())


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
def test_estimate_of_150m_is_near_compiler(axes, changes, low, high):
    config = medium(**changes)
    devices = jax.devices()[: axes[0] * axes[1] * axes[2]]
    mesh = sharding.make_mesh(MeshConfig(*axes), devices)
    analysis, estimate = check_state(config, mesh), estimate_memory(config, mesh)
    ratio = (estimate.gradients + estimate.activations) / analysis.temp_size_in_bytes
    assert low < ratio < high
    assert estimate.least < state_bytes(estimate) + analysis.temp_size_in_bytes


def test_parts_of_memory():
    def estimate(**changes):
        return estimate_memory(small_run.config("run", **changes), small_run.mesh())

    one, parts = estimate(), estimate(microbatches=2)
    expected = [n * one.parameters for n in (2, 2, 1)]
    assert [one.moments, one.averages, one.gradients] == expected
    assert one.least == 6 * one.parameters
    assert one.total == one.least + one.activations
    assert (parts.gradients, parts.least) == (2 * one.parameters, one.least)
    assert estimate(averages=()).averages == 0


def activations(platform="gpu", shape=(1, 1, 1), **changes):
    """The estimate of a 150M model's activations."""
    axes = dict(zip(sharding.MESH_AXES, shape, strict=True))
    return memory.estimate_activations(medium(batch_size=256, **changes), axes, platform)


def test_estimate_follows_settings():
    by_remat = [activations(model__remat=remat) for remat in ("none", "products", "full")]
    assert by_remat == sorted(by_remat, reverse=True)
    assert activations(microbatches=8) == pytest.approx(activations() / 8)
    assert activations(shape=(8, 1, 1)) == pytest.approx(activations() / 8)
    gathered = activations(shape=(1, 8, 1)) - activations(shape=(8, 1, 1))
    assert gathered > 0  # weights, for use
    assert activations() / 8 < activations(shape=(1, 1, 8)) < activations() / 2
    # The probabilities: 6 bytes for each pair of tokens, head and layer.
    plain, xla, flash = (activations(model__attention=name) for name in ("plain", "xla", "auto"))
    assert xla < plain < activations(platform="cpu")  # operands in 16 bits
    pairs = 6 * 256 * 16 * 1024**2
    assert 11 * pairs < xla - flash < 13 * pairs


def test_describe_memory():
    memory_of_run = Memory(600_000_000, 1_200_000_000, 3_000_000_000, 600_000_000, 9_000_000_000)
    assert preflight.describe_memory(memory_of_run, 80_000_000_000) == (
        "600 MB parameters + 1.2 GB moments + 3 GB averages + 600 MB gradients "
        "+ about 9 GB activations = about 14.4 GB of 80 GB on each device"
    )
    assert "which is MORE THAN there is" in preflight.describe_memory(memory_of_run, 10_000_000_000)
    without = preflight.describe_memory(dataclasses.replace(memory_of_run, averages=0), None)
    assert "averages" not in without
    assert without.endswith("= about 11.4 GB on each device")
