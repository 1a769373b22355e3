"""Runs that start from pretrained weights: their first state, later starts, and rejections."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_run
from training_runs import after, bits, records, saved, start

from anytime_jax import averaging
from anytime_jax.checkpoints.checkpoint_directory import saved_steps
from anytime_jax.config import schema
from anytime_jax.data.vocabulary import train_vocabulary
from anytime_jax.data.windows import Windows
from anytime_jax.errors import InputError
from anytime_jax.formats import model_reader, model_writer
from anytime_jax.formats.model_reader import FORMATS, PROVENANCE, WEIGHTS
from anytime_jax.models import decoder
from anytime_jax.training import pretrained
from anytime_jax.training.trainer import Outcome
from configs import continued

FSDP = {"data": 1, "fsdp": 2}
SPLIT = {"data": 2, "fsdp": 2, "tensor": 2}


def weights(seed=5):
    """Weights that no initialization of these tests gives."""
    shapes = decoder.param_shapes(small_run.config("unused").model)
    random = np.random.RandomState(seed)
    return jax.tree.map(
        lambda x: (0.1 * random.standard_normal(x.shape) + (x.ndim == 2)).astype(np.float32), shapes
    )


def write_model(folder, seed=5):
    """Writes a model."""
    folder.mkdir(parents=True)
    shape, params = small_run.config("unused").model, weights(seed)
    model_writer.write_model(folder, FORMATS["olmo"], shape, params, 1, "float32")
    return folder


@pytest.fixture(scope="module", name="given")
def given_fixture(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("initial") / "model")


@pytest.fixture(scope="module", name="run")
def run_fixture(given, dataset, tmp_path_factory):
    """10 updates from those weights; no test changes this run."""
    run = tmp_path_factory.mktemp("initial") / "run"
    outcome, said = start(run, dataset, initial_weights=str(given), log__every="1 steps")
    assert outcome == Outcome(10, "stop")
    assert f"weights  pretrained, from {given}\n" in said
    return run


def first_state(given, dataset, run, mesh=None, **changes):
    """The first state of a run, and its program."""
    asked = small_run.config(run, dataset.path, initial_weights=str(given), **changes)
    program = small_run.program(asked, mesh or small_run.mesh())
    found = pretrained.find_pretrained(asked, dataset)
    return pretrained.init_from_pretrained(found, asked, program), program


def is_pretrained(tree):
    """Whether a tree is equal to the pretrained weights, bit by bit."""
    found, expected = small_run.leaves(tree), small_run.leaves(weights())
    assert found.keys() == expected.keys()
    return all(found[name].tobytes() == expected[name].tobytes() for name in found)


# First state and updates


@pytest.mark.parametrize("axes", [None, pytest.param(FSDP, marks=pytest.mark.slow), SPLIT])
def test_first_state_has_pretrained_weights_and_zero_moments(axes, given, dataset, tmp_path):
    mesh = small_run.mesh(8 if axes is SPLIT else 2, **axes) if axes else small_run.mesh()
    state, program = first_state(given, dataset, tmp_path / "run", mesh)
    assert int(state.step) == 0
    assert is_pretrained(state.params)
    averages = averaging.averages(state.opt_state)
    assert sorted(averages) == sorted(small_run.AVERAGES)
    assert all(is_pretrained(tree) for tree in averages.values())
    fresh = program.init()
    without = averaging.replace_averages(state.opt_state, {})
    expected = averaging.replace_averages(fresh.opt_state, {})
    jax.tree.map(np.testing.assert_array_equal, without, expected)
    moments = [x for name, x in small_run.leaves(without).items() if x.ndim]
    assert len(moments) == 2 * len(jax.tree.leaves(state.params))
    assert not any(x.any() for x in moments)
    placed = [x.sharding for x in jax.tree.leaves(state)]
    assert placed == [x.sharding for x in jax.tree.leaves(fresh)]
    shards = [x.addressable_shards[0].data for x in jax.tree.leaves(state)]
    assert len({x.unsafe_buffer_pointer() for x in shards}) == len(shards)  # none given away twice


@pytest.mark.slow
def test_averages_start_in_host_memory(given, dataset, tmp_path):
    state, program = first_state(given, dataset, tmp_path / "run", average_memory="host")
    averages = averaging.averages(state.opt_state)
    kinds = {x.sharding.memory_kind for x in jax.tree.leaves(averages)}
    expected = averaging.averages(program.init().opt_state)
    assert kinds == {x.sharding.memory_kind for x in jax.tree.leaves(expected)}
    assert all(is_pretrained(tree) for tree in averages.values())


def test_first_updates_equal_those_of_state_set_by_hand(run, dataset):
    asked = small_run.config(run, dataset.path)
    program = small_run.program(asked, small_run.mesh())
    state = program.init()
    params, *trees = (jax.device_put(weights()) for _ in ("last", *small_run.AVERAGES))
    averages = dict(zip(small_run.AVERAGES, trees, strict=True))
    opt_state = averaging.replace_averages(state.opt_state, averages)
    by_hand = state._replace(params=params, opt_state=opt_state)
    state = jax.tree.map(lambda x, y: jax.device_put(x, y.sharding), by_hand, state)
    windows = Windows(dataset, "train", length=small_run.LENGTH, seed=small_run.DATA_SEED)
    rows = {step: values for step, _, values in records(run)}
    for n in range(3):
        tokens = jnp.asarray(windows.batch(n * small_run.BATCH, small_run.BATCH))
        state, metrics = program.train_step(state, tokens)
        for name in ("loss", "grad_norm", "update_norm"):
            assert rows[n + 1][f"train/{name}"] == float(metrics[name])


@pytest.mark.slow
@pytest.mark.parametrize("axes", [FSDP, SPLIT])
def test_run_on_another_mesh(axes, given, run, dataset, tmp_path):
    mesh = small_run.mesh(8 if axes is SPLIT else 2, **axes)
    start(tmp_path / "run", dataset, mesh=mesh, initial_weights=str(given), log__every="1 steps")
    for ours, theirs in zip(records(tmp_path / "run"), records(run), strict=True):
        assert ours[:2] == theirs[:2]
        assert ours[2] == pytest.approx(theirs[2], rel=1e-4, abs=1e-6)


def test_starts_from_exported_weights(run, given, dataset, tmp_path):
    """By the run's own weights, down to the checksums of what it saves."""
    identity = json.loads((run / "run.json").read_text())["identity"]
    assert identity["initial_weights"] == model_reader.weights_digest(given)
    final = saved(run, 10).state
    folder = tmp_path / "model"
    folder.mkdir()
    params = jax.device_get(averaging.averages(final.opt_state)["f25"])
    model_writer.write_model(
        folder, FORMATS["olmo"], small_run.config(run).model, params, 1, "float32"
    )
    shutil.copy(dataset.vocabulary_path, folder / "vocabulary.model")
    state, _ = first_state(folder, dataset, tmp_path / "run")
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state.params), params)


# Later starts


def test_resumes_when_the_model_is_gone(run, given, dataset, tmp_path):
    copied = shutil.copytree(given, tmp_path / "model")
    changes = {"initial_weights": str(copied), "log__every": "1 steps"}
    start(tmp_path / "run", dataset, after(6), **changes)
    assert saved_steps(tmp_path / "run")[-1] == 6
    shutil.rmtree(copied)
    outcome, said = start(tmp_path / "run", dataset, **changes)
    assert outcome == Outcome(10, "stop")
    assert "pretrained" not in said
    assert bits(tmp_path / "run", 10) == bits(run, 10)


def test_run_without_checkpoint_starts_again(run, given, dataset, tmp_path):
    changes = {"initial_weights": str(given), "log__every": "1 steps"}
    with pytest.raises(ZeroDivisionError):
        start(tmp_path / "run", dataset, after(1, ZeroDivisionError()), **changes)
    assert saved_steps(tmp_path / "run") == []
    start(tmp_path / "run", dataset, **changes)
    assert bits(tmp_path / "run", 10) == bits(run, 10)


def test_rejects_another_model_on_resume(run, given, dataset, tmp_path):
    mine = shutil.copytree(run, tmp_path / "run")
    before = (mine / "run.json").read_bytes()
    other = write_model(tmp_path / "other", seed=6)
    with pytest.raises(InputError, match=r"with other settings .initial_weights was"):
        start(mine, dataset, initial_weights=str(other), stop="2x")
    with pytest.raises(InputError, match=r"initial_weights was .*, is 'not set'"):
        start(mine, dataset, stop="2x")
    moved = shutil.copytree(given, tmp_path / "moved")
    asked = small_run.config(mine, dataset.path, initial_weights=str(moved))
    same = json.loads(before)["identity"]["initial_weights"]
    assert pretrained.find_pretrained(asked, dataset).digest == same
    assert (mine / "run.json").read_bytes() == before


def test_rejects_pretrained_weights_for_started_run(given, dataset, tmp_path):
    start(tmp_path / "run", dataset, after(1))
    with pytest.raises(InputError, match="initial_weights was 'not set', is "):
        start(tmp_path / "run", dataset, initial_weights=str(given))
    with pytest.raises(InputError, match="initial_weights was 'not set', is "):
        start(tmp_path / "run", dataset, initial_weights=str(tmp_path / "gone"))


def test_rejects_run_that_lost_its_checkpoints(run, given, dataset, tmp_path):
    asked = small_run.config(tmp_path / "run", dataset.path, initial_weights=str(given))
    program = small_run.program(asked, small_run.mesh())
    with pytest.raises(InputError, match=r"config\.run_dir"):
        pretrained.init_from_pretrained(pretrained.Pretrained(None, "digest"), asked, program)


# Rejected before the run's directory is made


def check_rejected(given, dataset, tmp_path, message, **changes):
    with pytest.raises(InputError, match=message) as told:
        start(tmp_path / "run", dataset, initial_weights=str(given), **changes)
    assert str(told.value).startswith("config.initial_weights: ")
    assert "\n" not in str(told.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "value", "theirs"),
    [
        ("layers", 3, "2"),
        ("heads", 2, "4"),
        ("width", 32, "16"),
        ("mlp_width", 64, "32"),
        ("embedding_rows", 320, "304"),
        ("rope_theta", 20_000.0, "10000.0"),
        ("norm_epsilon", 1e-6, "1e-05"),
        ("architecture", "olmo2", "'olmo'"),
    ],
)
def test_rejects_another_shape(name, value, theirs, given, dataset, tmp_path):
    message = rf"config\.model\.{name} = {value!r} must be {theirs} \(configs/continued.py"
    check_rejected(given, dataset, tmp_path, message, **{f"model__{name}": value})


def test_sequences_may_be_shorter_but_not_longer(given, dataset, tmp_path):
    mine = shutil.copytree(given, tmp_path / "model")
    said = json.loads((mine / "config.json").read_text())
    (mine / "config.json").write_text(json.dumps({**said, "max_sequence_length": 64}))
    state, _ = first_state(mine, dataset, tmp_path / "run")
    assert is_pretrained(state.params)
    (mine / "config.json").write_text(json.dumps({**said, "max_sequence_length": 4}))
    check_rejected(mine, dataset, tmp_path, r"config\.model\.length = 8 must be at most 4")


def test_damaged_weights_leave_no_run_behind(given, dataset, tmp_path):
    """So that a whole copy can take their place."""
    mine = shutil.copytree(given, tmp_path / "model")
    file = mine / WEIGHTS
    whole = file.read_bytes()
    file.write_bytes(whole[:-4])
    check_rejected(mine, dataset, tmp_path, "cannot be read")
    file.write_bytes(whole.replace(b"transformer.ln_f.weight", b"transformer.ln_g.weight"))
    check_rejected(mine, dataset, tmp_path, "transformer.ln_f.weight")
    file.unlink()
    check_rejected(mine, dataset, tmp_path, f"has no {WEIGHTS}")
    check_rejected(tmp_path / "nowhere", dataset, tmp_path, "nowhere")


def test_rejects_data_of_another_vocabulary(given, dataset, tmp_path):
    mine = shutil.copytree(given, tmp_path / "model")
    shutil.copy(dataset.vocabulary_path, mine / "vocabulary.model")
    assert first_state(mine, dataset, tmp_path / "run")
    words = (f"{a}{b} {b}{a}" for a in "abcdefgh" for b in "klmnopqr")
    train_vocabulary(words, 290, mine / "vocabulary.model")
    message = "was made with another vocabulary than the model in .*--vocabulary=.*vocabulary.model"
    check_rejected(mine, dataset, tmp_path, message)


def test_rejects_branch_with_pretrained_weights(given, run):
    with pytest.raises(InputError, match=r"initial_weights = .* and branch\.from_run = .* exclude"):
        small_run.config(
            "unused", initial_weights=str(given), branch__from_run=str(run), branch__multiple=1.0
        )


def test_branch_of_run_with_pretrained_weights(run, given, dataset, tmp_path):
    """Its trunk's own, as of any other run; the directory is not asked for."""
    changes = {"branch__from_run": str(run), "branch__step": 10, "stop": "1.5x"}
    outcome, _ = start(tmp_path / "branch", dataset, log__every="1 steps", **changes)
    assert outcome == Outcome(15, "stop")
    mine = shutil.copytree(run, tmp_path / "run")
    start(mine, dataset, stop="1.5x", initial_weights=str(given), log__every="1 steps")
    assert bits(tmp_path / "branch", 15) == bits(mine, 15)


# configs/continued.py


def test_continued_config_takes_shape_of_model(given, dataset):
    made = continued.get_config(str(given))
    built = schema.build(made.to_dict())
    assert built.initial_weights == str(given)
    theirs = small_run.config("unused").model
    for name in model_reader.describe(given).shape:
        assert getattr(built.model, name) == getattr(theirs, name)


def test_continued_config_requires_model():
    with pytest.raises(InputError, match=r"--config=configs/continued\.py"):
        continued.get_config()
    with pytest.raises(InputError, match="nowhere"):
        continued.get_config("nowhere")


def test_continued_config_takes_vocabulary_smaller_than_embedding(given, tmp_path):
    mine = shutil.copytree(given, tmp_path / "model")
    said = json.loads((mine / "config.json").read_text())
    assert (said["vocab_size"], said["embedding_size"]) == (300, 304)
    (mine / PROVENANCE).write_text("{")  # not asked: its configuration says it
    assert continued.get_config(str(mine)).model.vocab_size == 300
