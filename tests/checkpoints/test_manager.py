"""CheckpointManager: bitwise, checked, on any layout, each part alone; never silently wrong."""

import collections
import gc
import hashlib
import json
import pathlib
import random
import re
import shutil
import subprocess
import sys
import time

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
import small_run
from forked_starts import environment
from small_run import (
    dataset_fixture,  # noqa: F401
    write_config,
)

from anytime_jax import averaging
from anytime_jax.checkpoints import manager
from anytime_jax.checkpoints.checkpoint_directory import saved_steps
from anytime_jax.checkpoints.checkpoint_reader import (
    ARRAY_ITEMS,
    read_arrays,
    read_meta,
    verify_checkpoint,
)
from anytime_jax.checkpoints.checksums import checksums
from anytime_jax.checkpoints.manager import CheckpointManager, read_averages
from anytime_jax.checkpoints.retention import RetentionPolicy
from anytime_jax.checkpoints.train_state import TrainState
from anytime_jax.config.clock import Clock
from anytime_jax.errors import RunError

# Reads of damaged files leave coroutines behind, which are complained about whenever they go.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

WIDE = {"data": 2, "fsdp": 2, "tensor": 2}


def latest(count):
    """A policy that keeps the latest checkpoints alone, as far as these tests go."""
    return RetentionPolicy(Clock(1, 1, 10**6), None, count)


def same_bits(left, right):
    left, right = small_run.leaves(left), small_run.leaves(right)
    return left.keys() == right.keys() and all(
        x.dtype == right[k].dtype and x.tobytes() == right[k].tobytes() for k, x in left.items()
    )


def abstract(state):
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )


@pytest.fixture(scope="module")
def trained():
    """The state of a tiny run after some updates, and its program."""
    program = small_run.program(small_run.config("unused"), small_run.mesh())
    state = program.init()
    tokens = (
        np.arange(small_run.BATCH * (small_run.LENGTH + 1), dtype=np.int32)
        * 7919
        % small_run.VOCABULARY
    )
    for _ in range(3):
        state, _ = program.train_step(state, jnp.asarray(tokens.reshape(small_run.BATCH, -1)))
    return state, program


@pytest.fixture(scope="module")
def saved(trained, tmp_path_factory):
    """A run directory with that state."""
    folder = tmp_path_factory.mktemp("saved")
    checkpoints = CheckpointManager(folder, latest(2))
    checkpoints.save(trained[0], {"samples": 24, "config": {"averages": (6.25, 25.0)}})
    checkpoints.close()
    return folder


def small_state(step, seed=0):
    """A state of a few arrays, quick to save."""
    rng = np.random.RandomState(seed)
    params = {"w": jnp.asarray(rng.standard_normal((40, 30)), jnp.float32), "b": jnp.zeros(3)}
    optimizer = optax.chain(optax.scale_by_adam(), averaging.average_params([6.25, 25.0]))
    return TrainState(jnp.asarray(step, jnp.int32), params, optimizer.init(params))


# Round trips


def test_what_is_restored_is_what_was_saved_to_the_bit(trained, saved):
    state, program = trained
    checkpoints = CheckpointManager(saved, latest(2))
    assert saved_steps(saved) == [3]
    restored = checkpoints.restore(3, program.abstract_state)
    checkpoints.close()
    assert same_bits(restored.state, state)
    assert jax.tree.structure(restored.state) == jax.tree.structure(state)
    assert (restored.added_averages, restored.dropped_averages) == ((), ())


def test_restored_on_another_layout_it_is_the_same_and_lies_there(trained, saved):
    state, _ = trained
    wanted = small_run.program(small_run.config("unused"), small_run.mesh(8, **WIDE)).abstract_state
    checkpoints = CheckpointManager(saved, latest(2))
    restored = checkpoints.restore(3, wanted).state
    checkpoints.close()
    assert same_bits(restored, state)
    for leaf, place in zip(jax.tree.leaves(restored), jax.tree.leaves(wanted), strict=True):
        assert leaf.sharding.is_equivalent_to(place.sharding, leaf.ndim)
    assert not restored.params["blocks"]["qkv"].sharding.is_fully_replicated


def test_the_state_may_be_donated_as_soon_as_save_returns(tmp_path):
    state = small_state(5)
    before = small_run.leaves(state)
    checkpoints = CheckpointManager(tmp_path, latest(1))
    checkpoints.save(state, {})
    wanted = abstract(state)
    for leaf in jax.tree.leaves(state):
        leaf.delete()
    checkpoints.wait()
    restored = checkpoints.restore(5, wanted).state
    checkpoints.close()
    assert {k: x.tobytes() for k, x in small_run.leaves(restored).items()} == {
        k: x.tobytes() for k, x in before.items()
    }


def test_meta_holds_the_step_what_was_given_and_a_checksum_of_every_array(trained, saved):
    state, _ = trained
    meta = read_meta(saved / "checkpoints" / "3")
    assert meta["step"] == 3
    assert meta["samples"] == 24
    assert meta["config"] == {"averages": [6.25, 25.0]}
    sums = meta["checksums"]
    assert sums.keys() == {"params", "opt", "averages"}
    count = sum(map(len, sums.values()))
    assert count == len(jax.tree.leaves(state)) - 1  # all but the step, which is said
    for name, leaf in small_run.leaves(state.params).items():
        total = sums["params"][name.strip("[']").replace("']['", "/")].split()[1]
        assert int(total) == numpy_checksum(leaf)
    text = json.dumps({k: v for k, v in meta.items() if k != "digest"}, sort_keys=True)
    text = text.replace(", ", ",").replace(": ", ":")
    assert meta["digest"] == hashlib.sha256(text.encode()).hexdigest()


# Averages


def test_one_average_is_read_without_the_rest(trained, saved, tmp_path):
    state, program = trained
    run = shutil.copytree(saved, tmp_path / "run")
    for other in ("params", "opt"):
        shutil.rmtree(run / "checkpoints" / "3" / other)
    wanted = averaging.averages(program.abstract_state.opt_state)
    found = read_averages(run / "checkpoints" / "3", {"f25": wanted["f25"]})
    assert found.keys() == {"f25"}
    assert same_bits(found["f25"], averaging.averages(state.opt_state)["f25"])


def test_a_new_average_starts_from_the_live_weights_and_an_old_one_is_dropped(trained, saved):
    state, _ = trained
    config = small_run.config("unused", averages=(25.0, 100.0, "uniform"))
    wanted = small_run.program(config, small_run.mesh(8, **WIDE)).abstract_state
    checkpoints = CheckpointManager(saved, latest(2))
    restored = checkpoints.restore(3, wanted)
    checkpoints.close()
    assert set(restored.added_averages) == {"f100", "uniform"}
    assert restored.dropped_averages == ("f6.25",)
    found = averaging.averages(restored.state.opt_state)
    assert found.keys() == {"f25", "f100", "uniform"}
    assert same_bits(found["f25"], averaging.averages(state.opt_state)["f25"])
    assert same_bits(found["f100"], state.params)
    assert same_bits(found["uniform"], state.params)
    # Fit for a train step that donates: placed as it expects, no two leaves in one buffer.
    assert jax.tree.structure(restored.state) == jax.tree.structure(wanted)
    leaves = jax.tree.leaves(restored.state)
    for leaf, place in zip(leaves, jax.tree.leaves(wanted), strict=True):
        assert leaf.sharding.is_equivalent_to(place.sharding, leaf.ndim)
        assert leaf.dtype == place.dtype
    owners = {}
    for i, leaf in enumerate(leaves):
        for shard in leaf.addressable_shards:
            assert owners.setdefault(shard.data.unsafe_buffer_pointer(), i) == i


def test_a_copy_of_the_weights_keeps_the_sign_of_zero(tmp_path):
    params = {"w": jnp.asarray([-0.0, 0.0, 1.0], jnp.float32)}
    old, new = (averaging.average_params(rules).init(params) for rules in ([50.0], [25.0]))
    checkpoints = CheckpointManager(tmp_path, latest(1))
    checkpoints.save(TrainState(jnp.asarray(1, jnp.int32), params, (old,)), {})
    wanted = abstract(TrainState(jnp.asarray(1, jnp.int32), params, (new,)))
    restored = checkpoints.restore(1, wanted)
    checkpoints.close()
    assert restored.added_averages == ("f25",)
    assert same_bits(averaging.averages(restored.state.opt_state)["f25"], params)


def test_a_run_may_keep_no_average(tmp_path):
    params = {"w": jnp.ones(3)}
    none, one = (averaging.average_params(rules).init(params) for rules in ([], [25.0]))
    checkpoints = CheckpointManager(tmp_path, latest(1))
    state = TrainState(jnp.asarray(1, jnp.int32), params, (none,))
    checkpoints.save(state, {})
    restored = checkpoints.restore(1, abstract(state))
    assert same_bits(restored.state, state)
    later = checkpoints.restore(1, abstract(state._replace(opt_state=(one,))))
    checkpoints.close()
    assert later.added_averages == ("f25",)


# What is kept


def test_the_latest_and_the_chosen_are_kept(tmp_path):
    checkpoints = CheckpointManager(tmp_path, RetentionPolicy(Clock(1, 1, 2), every=3, rolling=2))
    for step in range(1, 8):
        checkpoints.save(small_state(step), {})
    checkpoints.close()
    assert saved_steps(tmp_path) == [2, 3, 4, 6, 7]  # 1x, every third, 2x, and the last two


def test_directories_that_are_no_checkpoint_are_passed_over(tmp_path):
    checkpoints = CheckpointManager(tmp_path, latest(2))
    checkpoints.save(small_state(4), {})
    checkpoints.close()
    folder = tmp_path / "checkpoints"
    shutil.copytree(folder / "4", folder / "9.orbax-checkpoint-tmp-1")
    (folder / "notes").mkdir()
    assert saved_steps(tmp_path) == [4]


def test_an_empty_directory_is_no_checkpoint(tmp_path):
    checkpoints = CheckpointManager(tmp_path, latest(2))
    checkpoints.save(small_state(4), {})
    checkpoints.close()
    (tmp_path / "checkpoints" / "9").mkdir()
    assert saved_steps(tmp_path) == [4]


def test_an_empty_directory_is_not_in_the_way(tmp_path):
    """Set aside where that is allowed; then its step can be saved."""
    (tmp_path / "checkpoints" / "9").mkdir(parents=True)
    said = []
    checkpoints = CheckpointManager(tmp_path, latest(2), said.append)
    with pytest.raises(RunError, match=r"checkpoints/9 is empty\. There is no good one"):
        checkpoints.restore_latest(abstract(small_state(9)), fall_back=False)
    assert checkpoints.restore_latest(abstract(small_state(9)), fall_back=True) is None
    for step in (5, 9):
        checkpoints.save(small_state(step), {})
    assert same_bits(checkpoints.restore(9, abstract(small_state(9))).state, small_state(9))
    checkpoints.close()
    assert saved_steps(tmp_path) == [5, 9]
    (aside,) = said
    assert aside.startswith("set aside as 9.damaged")


# A full disk


def test_a_full_disk_is_said_with_the_bytes_that_are_missing(tmp_path, monkeypatch):
    checkpoints = CheckpointManager(tmp_path, latest(2))
    checkpoints.save(small_state(4), {})
    checkpoints.wait()
    monkeypatch.setattr(manager, "free_bytes", lambda directory: 1000)
    arrays = sum(x.nbytes for x in jax.tree.leaves(small_state(4)[1:]))
    needed = arrays + arrays // 50 + 2**18
    message = f"it needs {needed:,} bytes, 1,000 are free, {needed - 1000:,} are missing; .* step 4"
    with pytest.raises(RunError, match=message):
        checkpoints.save(small_state(5), {})
    monkeypatch.undo()
    checkpoints.save(small_state(6), {})
    checkpoints.close()
    assert saved_steps(tmp_path) == [4, 6]


def test_a_disk_that_fills_up_while_a_save_is_written_is_said(tmp_path, monkeypatch):
    checkpoints = CheckpointManager(tmp_path, latest(2))
    checkpoints.save(small_state(4), {})
    checkpoints.wait()

    def fail(*args, **keywords):
        raise ValueError("RESOURCE_EXHAUSTED: Failed to write: No space left on device [...]")

    monkeypatch.setattr(checkpoints._manager, "save", fail)
    with pytest.raises(RunError, match=r"the disk is full: .* filled it meanwhile; .* of step 4"):
        checkpoints.save(small_state(5), {})
    checkpoints.close()


ON_A_SMALL_DISK = """
mount -t tmpfs -o size=900k small "$1" || exit 77
"$2" -m anytime_jax.main --config="$3" 2> "$4"
status=$?
cp -r "$1/run" "$5"
exit $status
"""


@pytest.mark.slow
def test_a_disk_that_is_really_full_stops_the_run_with_its_last_checkpoint_intact(
    dataset, tmp_path
):
    (tmp_path / "disk").mkdir()
    file = write_config(tmp_path / "config.py", tmp_path / "disk" / "run", dataset.path, stop="4x")
    places = (tmp_path / "disk", sys.executable, file, tmp_path / "errors", tmp_path / "left")
    try:
        ended = subprocess.run(
            ["unshare", "-rm", "sh", "-c", ON_A_SMALL_DISK, "sh", *map(str, places)],
            env=environment(tmp_path), cwd=tmp_path, timeout=120, stdout=subprocess.DEVNULL,
        )  # fmt: skip
    except FileNotFoundError:
        pytest.skip("this machine has no unshare")
    if ended.returncode == 77:
        pytest.skip("this machine allows no mount in a namespace")
    (line,) = (tmp_path / "errors").read_text().splitlines()
    assert ended.returncode == 1
    assert re.match(r"error: a checkpoint .* [\d,]+ are missing; the last good one is .* 4$", line)
    verify_checkpoint(tmp_path / "left" / "checkpoints" / "4")


# Damage


def damages(content: bytes):
    """Ways in which a file can go bad."""
    middle = len(content) // 2
    if content:
        yield "cut", content[:middle]
        flipped = bytearray(content)
        flipped[middle] ^= 1
        yield "flipped", bytes(flipped)
        yield "zeroed", bytes(len(content))
    yield "gone", None


@pytest.mark.slow
def test_damage_to_any_file_is_named_or_harmless(tmp_path):
    """Whatever happens to a file: the state is right to the bit, or a RunError says where."""
    state = small_state(4)
    checkpoints = CheckpointManager(tmp_path / "good", latest(1))
    checkpoints.save(state, {})
    checkpoints.close()
    files = [p for p in sorted((tmp_path / "good" / "checkpoints" / "4").rglob("*")) if p.is_file()]
    # Averages and optimizer are read as the weights are.
    files = [p for p in files if p.parent.name == "4" or {"params", "meta"} & set(p.parts)]
    assert len(files) > 8
    wrong, caught, longest = [], set(), 0
    for file in files:
        relative, content = file.relative_to(tmp_path / "good"), file.read_bytes()
        for kind, damaged in damages(content):
            run = tmp_path / f"{'-'.join(relative.parts)}-{kind}"
            shutil.copytree(tmp_path / "good", run)
            if damaged is None:
                (run / relative).unlink()
            else:
                (run / relative).write_bytes(damaged)
            reader = CheckpointManager(run, latest(1))
            try:
                restored = reader.restore(4, abstract(state))
                if not same_bits(restored.state, state):
                    wrong.append((str(relative), kind, "restored something else"))
            except RunError as error:
                caught.add(relative.parts[2])
                message = str(error)
                longest = max(longest, len(message))
                if str(run / "checkpoints" / "4") not in message:
                    wrong.append((str(relative), kind, message[:200]))
            except Exception as error:
                wrong.append((str(relative), kind, repr(error)[:200]))
            reader.close()
    for _ in range(5):  # what Orbax's threads left unfinished is complained about here
        time.sleep(0.1)
        gc.collect()
    assert {"params", "meta"} <= caught
    assert not wrong
    assert longest < 700


@pytest.mark.slow
def test_single_flipped_bits_are_named_or_harmless(tmp_path, capsys):
    """Bits anywhere in a checkpoint: `verify_checkpoint` names it, or no number differs."""
    checkpoints = CheckpointManager(tmp_path, latest(1))
    checkpoints.save(small_state(4), {"samples": 32})
    checkpoints.close()
    path = tmp_path / "checkpoints" / "4"
    meta = verify_checkpoint(path)
    names = {item: dict.fromkeys(meta["checksums"][item]) for item in ARRAY_ITEMS}
    wanted = {item: read_arrays(path, item, names[item]) for item in ARRAY_ITEMS}
    files = [p for p in sorted(path.rglob("*")) if p.is_file() and p.stat().st_size]
    draw, found = random.Random(0), collections.Counter()
    for _ in range(300):
        # Half of them in files chosen alike, half in bits chosen alike: most are in arrays.
        weights = [p.stat().st_size for p in files] if draw.random() < 0.5 else None
        (file,) = draw.choices(files, weights)
        content = file.read_bytes()
        position, bit = draw.randrange(len(content)), draw.randrange(8)
        flipped = bytearray(content)
        flipped[position] ^= 1 << bit
        file.write_bytes(flipped)
        try:
            assert verify_checkpoint(path) == meta, (file, position, bit)
            for item in ARRAY_ITEMS:
                arrays = read_arrays(path, item, names[item])
                assert same_bits(arrays, wanted[item]), (file, position, bit)
            found["harmless"] += 1
        except RunError as error:
            found["named" if str(path) in str(error) else "unclear"] += 1
        file.write_bytes(content)
    with capsys.disabled():
        print(f"\n{found.total()} flipped bits: {dict(found)}")
    assert found["named"] > 100
    assert not found["unclear"]


def test_numbers_exchanged_on_disk_are_found(tmp_path):
    """A file that is whole, of other numbers: only the checksum can tell."""
    for name, seed in (("run", 0), ("other", 1)):
        checkpoints = CheckpointManager(tmp_path / name, latest(1))
        checkpoints.save(small_state(4, seed), {})
        checkpoints.close()
    item = pathlib.Path("checkpoints", "4", "params")
    shutil.rmtree(tmp_path / "run" / item)
    shutil.copytree(tmp_path / "other" / item, tmp_path / "run" / item)
    reader = CheckpointManager(tmp_path / "run", latest(1))
    with pytest.raises(RunError, match=r"checkpoints/4: params/w is damaged"):
        reader.restore(4, abstract(small_state(4)))
    reader.close()


# Checksums


def numpy_checksum(x) -> int:
    """Written anew, in Python's whole numbers."""
    x = np.asarray(x)
    words = x.ravel().view({2: np.uint16, 4: np.uint32}[x.dtype.itemsize]).tolist()
    total = 0
    for i, word in enumerate(words):
        h = (i ^ (i >> 15)) * 0x2C1B3C6D % 2**32
        h = (h ^ (h >> 12)) * 0x297A2D39 % 2**32
        total += (2 * h + 1) * word
    return total % 2**32


def checksum(x) -> int:
    kind, total = checksums({"x": x})["x"].split()
    assert kind == f"{np.asarray(x).dtype}[{','.join(map(str, np.shape(x)))}]"
    return int(total)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (5, 3), (2, 3, 4), (0,), (40, 1000)], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.int32, np.uint16])
def test_a_checksum_is_the_formula(shape, dtype):
    rng = np.random.RandomState(0)
    x = (1000 * rng.standard_normal(shape)).astype(np.float32)
    x = np.abs(x).astype(dtype) if dtype == np.uint16 else x.astype(dtype)
    assert checksum(jnp.asarray(x)) == numpy_checksum(x)


def test_a_checksum_does_not_depend_on_the_layout():
    x = np.random.RandomState(0).standard_normal((8, 16, 6)).astype(np.float32)
    wanted = numpy_checksum(x)
    mesh = small_run.mesh(8, **WIDE)
    for spec in [
        (),
        ("data",),
        (("data", "fsdp", "tensor"),),
        ("tensor", "fsdp"),
        ("fsdp", "data"),
    ]:
        place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
        assert checksum(jax.device_put(x, place)) == wanted


X = np.random.RandomState(1).standard_normal((9, 23)).astype(np.float32)


@hypothesis.given(st.integers(0, X.size - 1), st.integers(0, 31))
def test_any_flipped_bit_shows(element, bit):
    words = X.view(np.uint32).copy()
    words.ravel()[element] ^= np.uint32(1) << np.uint32(bit)
    assert checksum(words.view(np.float32)) != checksum(X)


@hypothesis.given(st.integers(0, X.size - 1), st.integers(0, X.size - 1))
def test_exchanged_elements_show(one, other):
    hypothesis.assume(one != other)
    y = X.copy()
    y.ravel()[[one, other]] = y.ravel()[[other, one]]
    assert checksum(y) != checksum(X)


def test_checksums_are_json(trained):
    sums = checksums(trained[0].params)
    assert json.loads(json.dumps(sums)) == sums
    assert checksums({}) == {}
