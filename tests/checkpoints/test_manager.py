"""Checkpoint manager: bitwise round trips on any sharding, retention, and every kind of damage."""

import contextlib
import dataclasses
import gc
import hashlib
import json
import random
import re
import shutil
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
import small_run
from forked_starts import environment
from jax.experimental import multihost_utils
from run_files import META
from small_run import same_bits, write_config
from training_runs import update_by_hand

from anytime_jax import averaging
from anytime_jax.checkpoints import manager
from anytime_jax.checkpoints.array_checksums import checksums
from anytime_jax.checkpoints.checkpoint_listing import saved_steps
from anytime_jax.checkpoints.checkpoint_reader import (
    ARRAY_ITEMS,
    read_arrays,
    read_meta,
    verify_checkpoint,
)
from anytime_jax.checkpoints.manager import CheckpointManager, restore_checkpoint
from anytime_jax.checkpoints.retention import RetentionPolicy
from anytime_jax.config.clock import Clock
from anytime_jax.errors import RunError
from anytime_jax.train_state import TrainState

# Reads of damaged files leave coroutines behind, which warn when they are garbage-collected.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

LAYOUT = {"data": 2, "fsdp": 2, "tensor": 2}


def latest(count):
    """A policy that keeps the latest checkpoints alone, up to the first milestone."""
    return RetentionPolicy(Clock(1, 1, 10**6), None, count)


def abstract(state):
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )


def assert_placed(state, like):
    """Every leaf has the sharding and type of an abstract state."""
    assert jax.tree.structure(state) == jax.tree.structure(like)
    for leaf, expected in zip(jax.tree.leaves(state), jax.tree.leaves(like), strict=True):
        assert leaf.sharding.is_equivalent_to(expected.sharding, leaf.ndim)
        assert leaf.dtype == expected.dtype


def test_save_writes_a_part_of_an_item_at_a_time(tmp_path, monkeypatch):
    """What is written at once is in memory a second time."""
    limits, init = [], ocp.BasePyTreeCheckpointHandler.__init__

    def record(handler, save_concurrent_bytes=None, **options):
        limits.append(save_concurrent_bytes)
        init(handler, save_concurrent_bytes=save_concurrent_bytes, **options)

    checkpoints = CheckpointManager(tmp_path, latest(1))
    monkeypatch.setattr(ocp.BasePyTreeCheckpointHandler, "__init__", record)
    params = {str(i): jnp.ones((8, 16)) for i in range(64)} | {"large": jnp.ones((1_000, 4))}
    optimizer = averaging.average_params([6.25])
    checkpoints.save(TrainState(jnp.asarray(1), params, optimizer.init(params)), META)
    checkpoints.close()
    assert limits[0] == 16_001  # of Orbax's own handlers; the large array is more than a sixteenth


def small_state(step, seed=0):
    """A state of a few arrays, quick to save."""
    rng = np.random.RandomState(seed)
    params = {"w": jnp.asarray(rng.standard_normal((40, 30)), jnp.float32), "b": jnp.zeros(3)}
    optimizer = optax.chain(optax.scale_by_adam(), averaging.average_params([6.25, 25.0]))
    return TrainState(jnp.asarray(step, jnp.int32), params, optimizer.init(params))


def save(run, state, meta=META):
    """Saves a state in a run directory and returns the path of the checkpoint."""
    checkpoints = CheckpointManager(run, latest(2))
    checkpoints.save(state, meta)
    checkpoints.close()
    return run / "checkpoints" / str(int(state.step))


@pytest.fixture(scope="module")
def trained(dataset):
    """The state of a tiny run after some updates."""
    config = small_run.config("unused", dataset.path)
    first = small_run.program(config, small_run.mesh()).init()
    *_, (state, _) = update_by_hand(first, config, dataset, [small_run.BATCH] * 3)
    return state


@pytest.fixture(scope="module")
def checkpoint(trained, tmp_path_factory):
    """The checkpoint of that state."""
    meta = dataclasses.replace(META, samples=24, config={"averages": (6.25, 25.0)})
    return save(tmp_path_factory.mktemp("saved"), trained, meta=meta)


# Round trips


@pytest.mark.parametrize("mesh", [small_run.mesh(), small_run.mesh(8, **LAYOUT)], ids=str)
def test_restore_is_bitwise_on_any_sharding(mesh, trained, checkpoint):
    like = small_run.program(small_run.config("unused"), mesh).abstract_state
    restored = restore_checkpoint(checkpoint, like)
    assert same_bits(restored.state, trained)
    assert_placed(restored.state, like)
    assert restored.state.params["blocks"]["qkv"].sharding.is_fully_replicated == (mesh.size == 1)
    assert (restored.added_averages, restored.dropped_averages) == ((), ())


def test_state_may_be_donated_after_save_returns(tmp_path):
    state = small_state(5)
    like = abstract(state)
    checkpoints = CheckpointManager(tmp_path, latest(1))
    checkpoints.save(state, META)
    for leaf in jax.tree.leaves(state):
        leaf.delete()
    assert same_bits(checkpoints.restore(5, like).state, small_state(5))
    checkpoints.close()


def test_meta_has_step_checksums_and_digest(trained, checkpoint):
    meta = read_meta(checkpoint)
    assert (meta.step, meta.samples, meta.config) == (3, 24, {"averages": [6.25, 25.0]})
    sums = meta.checksums
    assert sums.keys() == {"params", "opt", "averages"}
    count = sum(map(len, sums.values()))
    assert count == len(jax.tree.leaves(trained)) - 1  # all but the step, which meta has itself
    assert sums["params"] == checksums(trained.params)
    content = json.loads((checkpoint / "meta" / "metadata").read_text())
    assert content.pop("digest") == meta.digest
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    assert meta.digest == hashlib.sha256(text.encode()).hexdigest()


# Averages


def test_restore_adds_and_drops_averages(trained, checkpoint):
    config = small_run.config("unused", averages=("f25", "f100", "uniform"))
    like = small_run.program(config, small_run.mesh(8, **LAYOUT)).abstract_state
    restored = restore_checkpoint(checkpoint, like)
    assert set(restored.added_averages) == {"f100", "uniform"}
    assert restored.dropped_averages == ("f6.25",)
    averages = averaging.averages(restored.state.opt_state)
    assert averages.keys() == {"f25", "f100", "uniform"}
    assert same_bits(averages["f25"], averaging.averages(trained.opt_state)["f25"])
    assert same_bits(averages["f100"], trained.params)
    assert same_bits(averages["uniform"], trained.params)
    # Ready for a step that donates: placed as it expects, and no buffer is shared.
    assert_placed(restored.state, like)
    owners = {}
    for i, leaf in enumerate(jax.tree.leaves(restored.state)):
        for shard in leaf.addressable_shards:
            assert owners.setdefault(shard.data.unsafe_buffer_pointer(), i) == i


def test_run_without_averages_round_trips(tmp_path):
    """An average added to it keeps the sign of zero."""
    params = {"w": jnp.asarray([-0.0, 0.0, 1.0], jnp.float32)}
    none, one = (averaging.average_params(rules).init(params) for rules in ({}, [25.0]))
    state = TrainState(jnp.asarray(1, jnp.int32), params, (none,))
    path = save(tmp_path, state)
    assert same_bits(restore_checkpoint(path, abstract(state)).state, state)
    later = restore_checkpoint(path, abstract(state._replace(opt_state=(one,))))
    assert later.added_averages == ("f25",)
    assert same_bits(averaging.averages(later.state.opt_state)["f25"], params)


# Entries of the directory


def test_half_written_save_is_removed_and_foreign_file_left(tmp_path):
    path = save(tmp_path, small_state(4))
    shutil.copytree(path, path.with_name("9.orbax-checkpoint-tmp-1"))
    path.with_name("notes").write_text("mine")
    assert saved_steps(tmp_path) == [4]
    lines = []
    CheckpointManager(tmp_path, latest(2), lines.append).close()
    assert sorted(x.name for x in path.parent.iterdir()) == ["4", "notes"]
    assert ["9.orbax" in lines[0], "notes" in lines[1]] == [True, True]


# A full disk


@pytest.fixture(name="checkpoints")
def checkpoints_fixture(tmp_path):
    """A manager that has saved step 4."""
    checkpoints = CheckpointManager(tmp_path, latest(2))
    checkpoints.save(small_state(4), META)
    checkpoints.wait()
    yield checkpoints
    checkpoints.close()


def test_save_is_refused_before_writing_if_the_disk_is_too_small(
    checkpoints, tmp_path, monkeypatch
):
    monkeypatch.setattr(manager, "free_bytes", lambda directory: 1000)
    array_bytes = sum(x.nbytes for x in jax.tree.leaves(small_state(4)[1:]))
    needed = array_bytes + array_bytes // 50 + 2**18
    with pytest.raises(RunError, match=f"needs {needed:,} bytes, 1,000 are free; .* step 4"):
        checkpoints.save(small_state(5), META)
    monkeypatch.undo()
    checkpoints.save(small_state(6), META)
    checkpoints.wait()
    assert saved_steps(tmp_path) == [4, 6]


def test_no_process_saves_if_another_one_cannot(checkpoints, tmp_path, monkeypatch):
    @contextlib.contextmanager
    def fail_in_another(action, error_type):
        yield
        raise error_type(f"process 1 could not {action}")

    monkeypatch.setattr(manager.processes, "fail_together", fail_in_another)
    with pytest.raises(RunError, match="process 1 could not"):
        checkpoints.save(small_state(5), META)
    checkpoints.wait()
    assert saved_steps(tmp_path) == [4]


def test_disk_that_fills_up_while_saving_is_reported(checkpoints, monkeypatch):
    def fail(*args, **keywords):
        raise ValueError("RESOURCE_EXHAUSTED: Failed to write: No space left on device [...]")

    monkeypatch.setattr(checkpoints._manager, "save", fail)
    with pytest.raises(RunError, match=r"the disk is full: .* are free; .* step 4"):
        checkpoints.save(small_state(5), META)


ON_A_SMALL_DISK = """
mount -t tmpfs -o size=900k small "$1" || exit 77
"$2" -m anytime_jax.main --config="$3" 2> "$4"
status=$?
cp -r "$1/run" "$5"
exit $status
"""


@pytest.mark.slow
def test_full_disk_stops_the_run_and_leaves_its_last_checkpoint_intact(dataset, tmp_path):
    (tmp_path / "disk").mkdir()
    file = write_config(tmp_path / "config.py", tmp_path / "disk" / "run", dataset.path, stop="4x")
    paths = (tmp_path / "disk", sys.executable, file, tmp_path / "errors", tmp_path / "copy")
    try:
        process = subprocess.run(
            ["unshare", "-rm", "sh", "-c", ON_A_SMALL_DISK, "sh", *map(str, paths)],
            env=environment(), cwd=tmp_path, timeout=120, stdout=subprocess.DEVNULL,
        )  # fmt: skip
    except FileNotFoundError:
        pytest.skip("this machine has no unshare")
    if process.returncode == 77:
        pytest.skip("this machine allows no mount in a namespace")
    (line,) = (tmp_path / "errors").read_text().splitlines()
    assert process.returncode == 1
    assert re.match(r"error: a checkpoint .* disk is full: .* are free; .* step 4$", line)
    verify_checkpoint(tmp_path / "copy" / "checkpoints" / "4")


# Damage


def flip(content, position, bit):
    flipped = bytearray(content)
    flipped[position] ^= 1 << bit
    return bytes(flipped)


def damages(content: bytes):
    """Kinds of damage to a file."""
    if content:
        yield content[: len(content) // 2]
        yield flip(content, len(content) // 2, 0)
        yield bytes(len(content))
    yield None  # missing


@pytest.mark.slow
def test_damage_to_any_file_is_reported_or_harmless(tmp_path):
    """The state is restored bitwise, or a RunError names the checkpoint."""
    state = small_state(4)
    good = save(tmp_path / "good", state)
    files = [p for p in sorted(good.rglob("*")) if p.is_file()]
    # Averages and optimizer are read as the weights are.
    files = [p for p in files if p.parent.name == "4" or {"params", "meta"} & set(p.parts)]
    assert len(files) > 8
    reported = []
    for i, file in enumerate(files):
        for j, damaged in enumerate(damages(file.read_bytes())):
            path, relative = tmp_path / f"{i}-{j}" / "4", file.relative_to(good)
            shutil.copytree(good, path)
            if damaged is None:
                (path / relative).unlink()
            else:
                (path / relative).write_bytes(damaged)
            try:
                restored = restore_checkpoint(path, abstract(state)).state
                assert same_bits(restored, state), (relative, damaged)
            except RunError as error:
                reported.append((relative.parts[0], str(path), str(error)))
    for _ in range(5):  # abandoned reads of Orbax warn here
        time.sleep(0.1)
        gc.collect()
    assert {"params", "meta"} <= {item for item, _, _ in reported}
    for _, path, message in reported:
        assert path in message
        assert len(message) < 700


@pytest.mark.slow
def test_flipped_bits_are_reported_or_harmless(tmp_path):
    """`verify_checkpoint` names the checkpoint, or no number differs."""
    path = save(tmp_path, small_state(4), dataclasses.replace(META, samples=32))
    meta = verify_checkpoint(path)
    names = {item: dict.fromkeys(meta.checksums[item]) for item in ARRAY_ITEMS}
    expected = {item: read_arrays(path, item, names[item]) for item in ARRAY_ITEMS}
    files = [p for p in sorted(path.rglob("*")) if p.is_file() and p.stat().st_size]
    draw, reported = random.Random(0), []
    for _ in range(300):
        # Half of the files uniformly, half by size: most bits are in arrays.
        weights = [p.stat().st_size for p in files] if draw.random() < 0.5 else None
        (file,) = draw.choices(files, weights)
        content = file.read_bytes()
        position, bit = draw.randrange(len(content)), draw.randrange(8)
        file.write_bytes(flip(content, position, bit))
        try:
            assert verify_checkpoint(path) == meta, (file, position, bit)
            for item in ARRAY_ITEMS:
                arrays = read_arrays(path, item, names[item])
                assert same_bits(arrays, expected[item]), (file, position, bit)
        except RunError as error:
            reported.append(str(error))
        file.write_bytes(content)
    print(f"\n300 flipped bits: {len(reported)} reported, the others harmless")
    assert len(reported) > 100
    assert all(str(path) in message for message in reported)


def test_save_does_not_ask_for_preemption(tmp_path, monkeypatch):
    """JAX would take the step for one of the numbers of `processes.PreemptionSignal`."""
    monkeypatch.setattr(multihost_utils, "reached_preemption_sync_point", pytest.fail)
    save(tmp_path, small_state(4))


def test_restore_needs_no_file_of_a_single_process(tmp_path):
    state = small_state(4)
    path = save(tmp_path, state)
    files = list(path.glob("*/array_metadatas/*"))
    assert files
    for file in files:
        file.write_text("damaged")
    assert same_bits(restore_checkpoint(path, abstract(state)).state, state)


def test_nested_file_of_a_checkpoint_is_one_line(tmp_path):
    (save(tmp_path, small_state(2)) / "_CHECKPOINT_METADATA").write_text("[" * 100_000)
    with pytest.raises(RunError, match=r"a _CHECKPOINT_METADATA in .* is damaged"):
        CheckpointManager(tmp_path, latest(2))


def test_restore_rejects_intact_files_of_other_numbers(tmp_path):
    """Only the checksum can tell."""
    path, other = (save(tmp_path / name, small_state(4, seed=i)) for i, name in enumerate("ab"))
    shutil.rmtree(path / "params")
    shutil.copytree(other / "params", path / "params")
    with pytest.raises(RunError, match=r"checkpoints/4: params/w is damaged"):
        restore_checkpoint(path, abstract(small_state(4)))


def test_save_rejects_nonfinite_states(checkpoints, tmp_path):
    state = small_state(5)
    state.params["w"] = state.params["w"].at[3, 4].set(jnp.nan)
    with pytest.raises(RunError, match="params/w has a NaN or an infinity at step 5"):
        checkpoints.save(state, META)
    assert saved_steps(tmp_path) == [4]
