"""Runs of every kind of optimizer: resumed, branched, on meshes, and read out."""

import dataclasses
from typing import ClassVar

import jax
import numpy as np
import optax
import optimizer_runs
import pytest
import small_run
from flax import linen as nn
from optimizer_kinds import FAST, KINDS, kind_parameters, optimizer
from optimizer_runs import COMMON, CONSTANT, DECAY, stored
from run_command import run_command
from training_runs import finished, records

from anytime_jax import api, optimizers
from anytime_jax.checkpoints.tree_names import flatten_by_name
from anytime_jax.commands import evaluate
from anytime_jax.config.model import Olmo2
from anytime_jax.models import decoder
from anytime_jax.training import step
from anytime_jax.training.optimizer import make_optimizer
from anytime_jax.weights import saved_run, weight_names
from anytime_jax.weights.weight_names import SumLimits

READOUTS = {
    "adamw_g2": [],
    "muon": [],
    "muon_bfloat16": [],
    "schedule_free_adamw": ["x"],
}
# Trees of matrices in the state besides the average.
COPIES = {
    "adamw_g2": 2,
    "muon": 1,
    "muon_bfloat16": 1,
    "schedule_free_adamw": 2,
}


def changes_of(kind, **changes):
    return {"schedule": CONSTANT, **COMMON, **optimizer(kind), **changes}


@pytest.fixture(scope="module", params=kind_parameters())
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def trunk(kind, dataset, tmp_path_factory):
    """A constant run to 2x, 20 updates: milestones 9, 10, 18, 20."""
    return finished(tmp_path_factory, f"trunk_{kind}", dataset, stop="2x", **changes_of(kind))


# Resumed and branched


def test_stopped_and_resumed_run_equals_unbroken_one(kind, trunk, dataset, tmp_path):
    optimizer_runs.check_resumed(changes_of(kind), trunk, dataset, tmp_path, READOUTS[kind])


def test_branch_equals_run_that_decays_there(kind, trunk, dataset, tmp_path):
    optimizer_runs.check_branch(changes_of(kind), trunk, dataset, tmp_path)


def test_one_program_serves_trunk_branch_and_every_peak(kind):
    decay = {**DECAY, "branch__from_run": "trunk"}
    higher = {"schedule": {**CONSTANT, "peak": 3e-2}}
    configs = [small_run.config("run", **changes_of(kind, **x)) for x in ({}, decay, higher)]
    programs = [step.make_program(config, small_run.mesh()) for config in configs]
    texts = {
        program.lower_update().as_text() for program, config in zip(programs, configs, strict=True)
    }
    assert len(texts) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_any_weight_decay_has_the_same_state(kind):
    optimizer_runs.check_state_of_any_decay(optimizer, kind)


# Read-outs


def x_by_hand(run, step):
    """The schedule-free average of a checkpoint in float64, by the formula of the paper."""
    y, z = stored(run, step, "params"), stored(run, step, "opt", "z")
    return {name: (y[name] - (1 - 0.9) * z[name]) / 0.9 for name in y}


def test_recorded_losses_are_those_of_weights_in_the_checkpoint(kind, trunk):
    recorded = {step: values for step, _, values in records(trunk)}
    run = saved_run.open_saved_run(trunk, "10")
    assert sorted(run.readouts) == READOUTS[kind]
    for label, loss in api.evaluate(trunk, step=10).items():
        assert loss == pytest.approx(recorded[10][f"eval/{label}/loss"], rel=1e-6)
    if READOUTS[kind]:
        expected = x_by_hand(trunk, 10)
        weighted_sum = weight_names.parse(run, "x", SumLimits())
        params = flatten_by_name(saved_run.load_weights(run, weighted_sum))
        assert params.keys() == expected.keys()
        for name, array in params.items():
            np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-6)


@pytest.fixture(scope="module")
def schedule_free(dataset, tmp_path_factory):
    """The trunk of one kind, by itself."""
    return finished(tmp_path_factory, f"trunk_{FAST}", dataset, stop="2x", **changes_of(FAST))


def test_evaluation_takes_read_outs(schedule_free, capsys):
    run, mixture = f"--run={schedule_free}", 'mix:{"last": 0.4, "z": 0.6}'
    assert run_command(evaluate, [run, "--weights", "x", "last", mixture]) == 0
    printed = capsys.readouterr().out
    for name, loss in api.evaluate(schedule_free, ["x", "last", mixture]).items():
        assert name in printed
        assert f"{loss:.4f}" in printed


# Weight decay


def test_matrices_are_all_but_embedding_and_norms():
    """An optimizer that moves what decays, by one."""

    @dataclasses.dataclass(frozen=True)
    class Mark:
        def transform(self, run):
            def update(updates, state, params):
                mask = optimizers.is_decayed("matrices", run, params)
                return jax.tree.map(lambda x, moves: x * 0 + moves, updates, mask), state

            return optax.GradientTransformation(optax.init_empty_state, update)

    params = small_run.program(small_run.config("run"), small_run.mesh()).init().params
    config = dataclasses.replace(small_run.config("run", averages=()), optimizer=Mark())
    method = make_optimizer(config, lambda count: 0.0)
    extra = {"value": np.float32(1), "grad_norm": np.float32(1)}
    updates, _ = method.update(params, method.init(params), params, **extra)
    moved = {
        jax.tree_util.keystr(path): bool(np.all(x == 1))
        for path, x in jax.tree_util.tree_leaves_with_path(updates)
    }
    assert moved == {name: "embedding" not in name and "scale" not in name for name in moved}
    assert "['head']" in moved


# Meshes


@pytest.mark.parametrize("kind", KINDS)
def test_state_is_split_like_parameters(kind):
    optimizer_runs.check_split(changes_of(kind), COPIES[kind])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_eight_devices_train_like_one(kind, dataset, tmp_path):
    optimizer_runs.check_eight_devices(changes_of(kind), dataset, tmp_path)


class NarrowBlock(decoder.Block):
    """An MLP with matrices of its own, one of them under another name."""

    def mlp(self, x, layer):
        D, F = self.config.width, self.config.mlp_width
        up = self.param("up", nn.initializers.normal(0.02), (D, F))
        down = self.param("mlp_out", nn.initializers.normal(0.02), (F, D))
        return nn.relu(x @ up) @ down


@dataclasses.dataclass(frozen=True)
class Narrow(Olmo2):
    parameter_axes: ClassVar = {"up": ("width", "mlp")}
    matrix_axes: ClassVar = {"up": (-2, -1)}

    def block(self):
        return NarrowBlock


def test_block_of_ones_own_has_matrices_of_its_own():
    config = small_run.config("run", **optimizer("muon"))
    config = dataclasses.replace(config, model=Narrow(**dataclasses.asdict(config.model)))
    assert set(decoder.matrix_axes(config.model)) == {"qkv", "attn_out", "up", "mlp_out"}
    mesh = small_run.mesh(8, data=2, fsdp=2, tensor=2)
    state = step.make_program(config, mesh).abstract_state
    up = state.params["blocks"]["up"]
    assert up.sharding.spec[-2:] == ("fsdp", "tensor")
    moments = [
        leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(state.opt_state)
        if "up" in jax.tree_util.keystr(path) and leaf.shape == up.shape
    ]
    assert all(leaf.sharding == up.sharding for leaf in moments)
    assert len(moments) == 1 + len(config.averaging_rules)  # Muon has the momentum alone
