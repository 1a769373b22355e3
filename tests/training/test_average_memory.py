"""Averages updated at every k-th update, and averages in host memory."""

import itertools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_run
import training_runs
from training_runs import bits, records, start

from anytime_jax import averaging
from anytime_jax.checkpoints import checksums
from anytime_jax.checkpoints.manager import CheckpointManager
from anytime_jax.checkpoints.retention import RetentionPolicy
from anytime_jax.config import schema
from anytime_jax.config.clock import Clock
from anytime_jax.data.windows import Windows
from anytime_jax.distributed import sharding
from anytime_jax.errors import InputError
from anytime_jax.training import evaluator, preflight, startup
from anytime_jax.training.evaluator import Evaluator
from anytime_jax.training.trainer import Outcome

EVERY = 3
UPDATES = 7
TOKENS = np.random.RandomState(0).randint(
    0, small_run.VOCABULARY, (UPDATES, small_run.BATCH, small_run.LENGTH + 1), np.int32
)
AXES = {"data": 2, "fsdp": 2, "tensor": 2}


def program_of(memory, every=EVERY, mesh=None):
    given = small_run.config("unused", average_every=every, average_memory=memory)
    return small_run.program(given, mesh or small_run.mesh())


def trained(memory, mesh=None, updates=UPDATES):
    """The leaves after every update from the first state on, and the last state."""
    program = program_of(memory, mesh=mesh)
    state = program.init()
    states = [small_run.leaves(state)]
    for step, tokens in enumerate(TOKENS[:updates], start=1):
        state, _ = program.train_step(state, jnp.asarray(tokens), step % EVERY == 0)
        states.append({name: np.array(leaf) for name, leaf in small_run.leaves(state).items()})
    return states, state


@pytest.fixture(scope="module")
def on_device():
    return trained("device")


@pytest.fixture(scope="module")
def on_host():
    return trained("host")


def kinds(state):
    """The kinds of memory that hold the averages."""
    return {leaf.sharding.memory_kind for leaf in held(state)}


def held(state):
    return jax.tree.leaves(averaging.averages(state.opt_state))


def assert_same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, leaf in wanted.items():
        np.testing.assert_array_equal(found[name], leaf, err_msg=name)


# Updates


def test_average_every_equals_sum_in_float64(on_device):
    states, _ = on_device
    for label, rule in averaging.label_rules(small_run.RULES).items():
        name = "['blocks']['qkv']"
        (path,) = (k for k in states[0] if f"averages['{label}']{name}" in k)
        for t, state in enumerate(states):
            weights = rule.kernel(t, EVERY)
            thetas = [s[f".params{name}"].astype(np.float64) for s in states[: t + 1]]
            np.testing.assert_allclose(
                state[path], np.tensordot(weights, thetas, axes=1), rtol=0, atol=2e-7
            )
        moved = [not np.array_equal(a[path], b[path]) for a, b in itertools.pairwise(states)]
        assert moved == [t % EVERY == 0 for t in range(1, UPDATES + 1)]


@pytest.mark.slow
def test_host_memory_gives_the_same_bits(on_device, on_host):
    for wanted, found in zip(on_device[0], on_host[0], strict=True):
        assert_same(found, wanted)
    assert kinds(on_host[1]) == {"pinned_host"}
    assert kinds(on_device[1]) == {"device"}
    moments = {leaf.sharding.memory_kind for leaf in jax.tree.leaves(on_host[1].opt_state[0])}
    assert moments == {"device"}


@pytest.mark.slow
def test_host_memory_on_eight_devices():
    mesh = small_run.mesh(8, **AXES)
    wanted, _ = trained("device", mesh, updates=EVERY)
    found, state = trained("host", mesh, updates=EVERY)
    assert_same(found[-1], wanted[-1])
    split = state.params["blocks"]["qkv"].sharding
    assert not split.is_fully_replicated
    for tree in averaging.averages(state.opt_state).values():
        assert tree["blocks"]["qkv"].sharding == split.with_memory_kind("pinned_host")


@pytest.mark.parametrize("memory", [pytest.param("device", marks=pytest.mark.slow), "host"])
def test_train_step_reuses_every_buffer(memory, compilations):
    program = program_of(memory)
    state, tokens = program.init(), [jnp.asarray(batch) for batch in TOKENS]
    for update_averages in (False, True):
        state, _ = program.train_step(state, tokens[0], update_averages)
    with compilations() as count:
        for step, batch in enumerate(tokens):
            old = jax.tree.leaves(state)
            places = [leaf.unsafe_buffer_pointer() for leaf in held(state)]
            state, _ = program.train_step(state, batch, step % 2 == 0)
            assert all(leaf.is_deleted() for leaf in old)
            assert [leaf.unsafe_buffer_pointer() for leaf in held(state)] == places
    assert count() == 0


@pytest.mark.slow
def test_average_every_update_is_one_program(compilations):
    given = small_run.config("unused", average_every=1, seed=7)
    program = small_run.program(given, small_run.mesh())
    state, _ = program.train_step(program.init(), jnp.asarray(TOKENS[0]), True)
    with compilations() as count:
        state, _ = program.train_step(state, jnp.asarray(TOKENS[1]), True)
        program.train_step(state, jnp.asarray(TOKENS[2]), True)
    assert count() == 0


@pytest.mark.parametrize("update_averages", [False, True])
@pytest.mark.parametrize("memory", ["device", "host"])
def test_averages_pass_through_where_not_updated(memory, update_averages):
    """In the traced program, where the output is the very variable of the input."""
    program = program_of(memory)
    state, batch = program.abstract_state, jax.ShapeDtypeStruct(TOKENS[0].shape, jnp.int32)
    traced = jax.make_jaxpr(lambda s, x: program.train_step(s, x, update_averages))(state, batch)
    (update,) = traced.jaxpr.eqns
    inside = update.params["jaxpr"].jaxpr
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(state)]
    ours = [i for i, name in enumerate(names) if ".averages" in name]
    assert len(ours) == 22  # two averages
    untouched = [inside.outvars[i] is inside.invars[i] for i in ours]
    assert untouched == [not update_averages] * len(ours)
    fetched = sum(len(eqn.invars) for eqn in inside.eqns if eqn.primitive.name == "device_put")
    assert fetched == (len(ours) if update_averages and memory == "host" else 0)


# Evaluation and checkpoints


class RecordedWindows:
    """Windows that record the batches read."""

    def __init__(self, windows):
        self.windows, self.starts = windows, []

    def batch(self, n, size, rows=None):
        self.starts.append(n)
        return self.windows.batch(n, size, rows)


@pytest.mark.slow
def test_evaluation_fetches_one_average_at_a_time(dataset, on_device, on_host, monkeypatch):
    windows = RecordedWindows(
        Windows(dataset, "validation", length=small_run.LENGTH, seed=0, repeat=True, shuffle=False)
    )
    step, fetched = program_of("host").eval_step, []

    def fetch(trees, inside=sharding.to_device_memory):
        fetched.append(list(trees))
        return inside(trees)

    monkeypatch.setattr(evaluator.sharding, "to_device_memory", fetch)
    measure = Evaluator(step, windows, small_run.LENGTH, 20, 8, small_run.mesh())
    wanted = measure.losses(evaluator.weight_trees(on_device[1]))
    assert fetched == [["last", "f6.25", "f25"]]
    assert windows.starts == [0, 8, 16]
    found = measure.losses(evaluator.weight_trees(on_host[1]))
    assert found == wanted
    assert list(found) == list(wanted)
    assert fetched[1:] == [["last"], ["f6.25"], ["f25"]]
    assert windows.starts == [0, 8, 16] * 4
    interrupted = iter([False] * 4 + [True]).__next__
    assert measure.losses(evaluator.weight_trees(on_host[1]), interrupted) is None
    assert kinds(on_host[1]) == {"pinned_host"}


@pytest.mark.slow
def test_checksums_fetch_one_array_at_a_time(on_device, on_host, monkeypatch):
    trees = [averaging.averages(state.opt_state) for state in (on_device[1], on_host[1])]
    wanted = checksums.checksums(trees[0])
    sizes = []

    def inspect(leaves, inside=checksums._inspect):
        sizes.append(len(leaves))
        assert {leaf.sharding.memory_kind for leaf in leaves} == {"device"}
        return inside(leaves)

    monkeypatch.setattr(checksums, "_inspect", inspect)
    assert checksums.checksums(trees[1]) == wanted
    assert sizes == [1] * 22
    spoiled = {"good": on_host[1].params, **trees[1]}
    spoiled["f25"] = jax.tree.map(
        lambda x: jax.device_put(x * jnp.nan, x.sharding), trees[1]["f25"]
    )
    sums, bad = checksums.checksums_and_nonfinite(spoiled)
    assert sizes[22:] == [11] + [1] * 22
    assert bad == [name for name in sums if name.startswith("f25/")]
    assert len(bad) == 11


def saved(folder, state):
    checkpoints = CheckpointManager(folder, RetentionPolicy(Clock(1, 1, 10**6), None, 2))
    checkpoints.save(state, {"samples": 0})
    return checkpoints


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("host", "host"),
        pytest.param("host", "device", marks=pytest.mark.slow),
        pytest.param("device", "host", marks=pytest.mark.slow),
    ],
)
def test_checkpoint_restores_to_either_memory(before, after, on_device, on_host, tmp_path):
    states, state = on_host if before == "host" else on_device
    checkpoints = saved(tmp_path, state)
    restored = checkpoints.restore(UPDATES, program_of(after).abstract_state).state
    assert_same(small_run.leaves(restored), states[-1])
    assert kinds(restored) == {{"host": "pinned_host", "device": "device"}[after]}
    wide = program_of(after, mesh=small_run.mesh(8, **AXES)).abstract_state
    assert_same(small_run.leaves(checkpoints.restore(UPDATES, wide).state), states[-1])
    checkpoints.close()


@pytest.mark.slow
def test_save_is_not_changed_by_later_updates(on_host, tmp_path):
    program, (states, _) = program_of("host"), on_host
    shardings = jax.tree.map(lambda x: x.sharding, program.abstract_state)
    state = jax.device_put(tiny_state(states[-1], program), shardings)
    checkpoints = saved(tmp_path, state)
    for tokens in TOKENS:
        state, _ = program.train_step(state, jnp.asarray(tokens))
    restored = checkpoints.restore(UPDATES, program.abstract_state).state
    checkpoints.close()
    assert_same(small_run.leaves(restored), states[-1])


def tiny_state(leaves, program):
    """A state of the leaves by path, on the host."""
    structure = jax.tree.structure(program.abstract_state)
    return jax.tree.unflatten(structure, [np.array(leaf) for leaf in leaves.values()])


def test_added_average_starts_in_host_memory(on_device, tmp_path):
    states, state = on_device
    checkpoints = saved(tmp_path, state)
    given = small_run.config("unused", average_memory="host", averages=(6.25, 50.0))
    restored = checkpoints.restore(
        UPDATES, small_run.program(given, small_run.mesh()).abstract_state
    )
    checkpoints.close()
    assert restored.added_averages == ("f50",)
    assert kinds(restored.state) == {"pinned_host"}
    new = averaging.averages(restored.state.opt_state)["f50"]
    np.testing.assert_array_equal(new["head"], states[-1][".params['head']"])


# Runs


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["device", "host"])
def test_stopped_and_resumed_run_equals_unbroken_one(memory, dataset, tmp_path, monkeypatch):
    """Stops, evaluations and saves do not fall on updates of the averages."""
    monkeypatch.setattr(preflight, "make_program", training_runs.recording)
    first = len(training_runs.updates)
    changes = {"average_every": EVERY, "average_memory": memory}
    outcome, _ = start(tmp_path / "whole", dataset, stop="10 steps", **changes)
    assert outcome == Outcome(10, "stop")
    updated = [update_averages for _, update_averages in training_runs.updates[first:]]
    assert updated == [step % EVERY == 0 for step in range(1, 11)]
    for stop in ("5 steps", "10 steps"):
        start(tmp_path / "parts", dataset, stop=stop, **changes)
    assert [flag for _, flag in training_runs.updates[first + 10 :]] == updated
    assert bits(tmp_path / "parts", 10) == bits(tmp_path / "whole", 10)
    assert records(tmp_path / "parts") == records(tmp_path / "whole")


# Rejections


def test_rejects_platform_without_host_memory(monkeypatch):
    given = small_run.config("unused", average_memory="host")
    startup.make_mesh(given)
    bare = types.SimpleNamespace(
        addressable_memories=lambda: [types.SimpleNamespace(kind="device")]
    )
    assert not sharding.has_host_memory(types.SimpleNamespace(local_devices=[bare]))
    monkeypatch.setattr(sharding, "has_host_memory", lambda mesh: False)
    startup.make_mesh(small_run.config("unused"))
    message = r"^config\.average_memory = 'host' needs devices .* none on this cpu: set 'device'$"
    with pytest.raises(InputError, match=message):
        startup.make_mesh(given)
    with pytest.raises(InputError, match=message):
        schema.check_layout(given, 1, 1, 1, "cpu", host_memory=False)


def test_averages_in_host_memory_take_no_device_memory(tmp_path, monkeypatch):
    alone = types.SimpleNamespace(platform="gpu")
    shape = {"data": 1, "fsdp": 1, "tensor": 1}
    gpu = types.SimpleNamespace(devices=np.array([alone]), shape=shape)
    given = {m: small_run.config(tmp_path, average_memory=m) for m in ("device", "host")}
    program = {m: small_run.program(given[m], small_run.mesh()) for m in given}
    weights = 4 * sum(x.size for x in jax.tree.leaves(program["host"].abstract_state.params))
    monkeypatch.setattr(preflight.sharding, "device_memory", lambda mesh: 4.5 * weights)
    preflight.check_capacity(given["host"], gpu, program["host"])
    with pytest.raises(InputError, match=r"averages \(2\) .* average_memory = 'host' or a"):
        preflight.check_capacity(given["device"], gpu, program["device"])
    monkeypatch.setattr(preflight.sharding, "device_memory", lambda mesh: 3.5 * weights)
    with pytest.raises(InputError, match="0 bytes averages"):
        preflight.check_capacity(given["host"], gpu, program["host"])
