"""Memory of a run: against what XLA's compiler assigns."""

import pytest
import small_run

from anytime_jax.distributed import sharding
from anytime_jax.training.state_memory import measure_state
from anytime_jax.training.step import make_program

SCALARS = 9  # int32 and float32 of the optimizer: its counts, the guard's statistics


@pytest.mark.parametrize(
    ("devices", "axes"),
    [
        (1, {}),
        pytest.param(4, {"fsdp": 2, "tensor": 2}, marks=pytest.mark.slow),
    ],
)
def test_state_bytes_equal_compiler_arguments(devices, axes):
    """The arguments of an update are the state, the tokens and the rate; the state is in place."""
    config, mesh = small_run.config("run"), small_run.mesh(devices, **axes)
    program = make_program(config, mesh)
    analysis = program.lower_update().compile().memory_analysis()
    state = sum(measure_state(program.abstract_state).sizes.values()) + 4  # the step
    tokens = 4 * config.batch_size * (config.model.length + 1) // sharding.batch_shards(mesh)
    assert analysis.argument_size_in_bytes == state + tokens + 4
    assert analysis.alias_size_in_bytes == state


def test_measure_state():
    def measure(**changes):
        program = make_program(small_run.config("run", **changes), small_run.mesh())
        return measure_state(program.abstract_state)

    state = measure()
    parameters, moments, averages = state.sizes.values()
    assert moments == 2 * parameters + 4 * SCALARS
    assert averages == 2 * parameters
    assert state.least == sum(state.sizes.values()) + parameters
    assert measure(averages=()).averages == 0
    stored = measure(optimizer__moments="bfloat16").moments
    assert stored == parameters + 4 * (SCALARS + 1)  # an update count more


def test_gradients_are_not_split_over_data():
    def measure(data):
        mesh = small_run.mesh(data * 2, data=data, fsdp=2)
        program = make_program(small_run.config("run"), mesh)
        return measure_state(program.abstract_state)

    one, four = measure(1), measure(4)
    assert one.gradients == four.gradients == one.parameters
    assert four.parameters < 0.3 * one.parameters  # small vectors are on every device


@pytest.mark.parametrize(
    ("microbatches", "accumulation", "size"),
    [(2, "float32", 1000), (2, "bfloat16", 500), (1, "bfloat16", 1000)],
)
def test_gradients_have_the_type_in_which_microbatches_sum_them(microbatches, accumulation, size):
    state = make_program(small_run.config("run"), small_run.mesh()).abstract_state
    whole, found = measure_state(state), measure_state(state, accumulation, microbatches)
    assert found.gradients * 1000 == whole.gradients * size
    assert found.least == sum(whole.sizes.values()) + found.gradients
