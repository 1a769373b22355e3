"""What every optimizer keeps to in a run: checks of the settings of one, in both suites.

`changes` are the changes of a small run's settings that name the optimizer.
"""

import jax
import numpy as np
import pytest
import small_run
from training_runs import after, bits, records, start

from anytime_jax.checkpoints import checkpoint_reader
from anytime_jax.checkpoints.tree_names import flatten_by_name
from anytime_jax.training import step
from anytime_jax.training.loop import Outcome

CONSTANT = {"kind": "constant", "peak": 1e-2, "warmup": "3 steps"}
DECAY = {"decay__horizon": "2x", "decay__floor": 0.1, "stop": "horizon"}
# Of a trunk to 2x, 20 updates, with milestones 9, 10, 18, 20.
COMMON = {"averages": ("f25",), "checkpoint__every": "100 steps", "log__every": "1 steps"}


def check_resumed(changes, trunk, dataset, folder, readouts):
    """A run that is stopped at update 13 and resumed is bitwise the trunk, which learns."""
    outcome, _ = start(folder, dataset, after(13), stop="2x", **changes)
    assert outcome == Outcome(13, "interrupted")
    start(folder, dataset, stop="2x", **changes)
    assert bits(folder, 20) == bits(trunk, 20)
    assert records(folder) == records(trunk)
    labels = {name for _, _, values in records(trunk) for name in values if "eval/" in name}
    assert labels == {f"eval/{label}/loss" for label in ("last", "f25", *readouts)}
    losses = {step: values["train/loss"] for step, _, values in records(trunk)}
    assert losses[20] < losses[1] - 0.3  # it learned


def check_branch(changes, trunk, dataset, folder):
    """A branch is bitwise the run that decays there."""
    for name, branch in (("branch", {"branch__from_run": str(trunk)}), ("whole", {})):
        start(folder / name, dataset, **{**changes, **DECAY, **branch})
    assert bits(folder / "branch", 20) == bits(folder / "whole", 20)
    assert records(folder / "branch") == [x for x in records(folder / "whole") if x[0] > 18]
    assert bits(folder / "branch", 20) != bits(trunk, 20)


def check_state_of_any_decay(optimizer, kind):
    """A state has the same places with any weight decay, so that a branch may change it."""
    found = set()
    for decay in (0.0, 0.1, "g2"):
        changes = optimizer(kind, weight_decay=decay, decay_mask="matrices")
        config = small_run.config("run", schedule=CONSTANT, **changes)
        state = step.make_program(config, small_run.mesh()).abstract_state.opt_state
        found.add(tuple(flatten_by_name(state)))
    assert len(found) == 1


def stored(run, step, item, field=""):
    """The arrays of a checkpoint, or of a field of its optimizer's state, by parameter; float64."""
    path = run / "checkpoints" / str(step)
    names = {
        name: name.rpartition(f"/{field}/")[2] if field else name
        for name in checkpoint_reader.read_meta(path).checksums[item]
        if f"/{field}/" in name or not field
    }
    arrays = checkpoint_reader.read_arrays(path, item, dict.fromkeys(names))
    return {names[name]: array.astype(np.float64) for name, array in arrays.items()}


def check_split(changes, copies):
    """The state is split like the parameters, with so many trees of matrices and the average."""
    mesh = small_run.mesh(8, data=2, fsdp=2, tensor=2)
    state = small_run.program(small_run.config("unused", **changes), mesh).abstract_state
    params = {
        str(path[-1].key): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state.params)
    }
    found = 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(state.opt_state):
        name = getattr(path[-1], "key", None)
        if name in params and leaf.shape == params[name].shape:
            assert leaf.sharding == params[name].sharding
            found += name == "qkv"
        else:  # counts, scales of norms, and mean squares of neurons
            assert leaf.size <= 64 or not leaf.sharding.is_fully_replicated
    assert found == copies + 1


def check_eight_devices(changes, dataset, folder):
    """Eight devices train like one."""
    changes = {**changes, "stop": "6 steps", "eval__every": "3 steps"}
    start(folder / "one", dataset, **changes)
    start(folder / "eight", dataset, mesh=small_run.mesh(8, data=2, fsdp=2, tensor=2), **changes)
    for row, expected in zip(records(folder / "eight"), records(folder / "one"), strict=True):
        assert row[:2] == expected[:2]
        assert row[2] == pytest.approx(expected[2], rel=1e-4, abs=1e-6)
