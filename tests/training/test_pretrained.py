"""Runs that start from pretrained weights: their first state, later starts, and rejections."""

import contextlib
import dataclasses
import functools
import json
import shutil

import jax
import numpy as np
import pytest
import small_run
from optimizer_kinds import kind_parameters, optimizer
from training_runs import EVAL_NAMES, after, bits, records, saved, start, update_by_hand

from anytime_jax import averaging, optimizers
from anytime_jax.checkpoints.checkpoint_listing import saved_steps
from anytime_jax.config import schema
from anytime_jax.corpus.vocabulary import Vocabulary, train_vocabulary
from anytime_jax.data.windows import Windows
from anytime_jax.errors import InputError
from anytime_jax.formats import model_reader, model_writer
from anytime_jax.formats.model_format import split_layers
from anytime_jax.formats.model_reader import FORMATS, PROVENANCE, WEIGHTS
from anytime_jax.models import decoder
from anytime_jax.training import pretrained
from anytime_jax.training.evaluator import weight_trees
from anytime_jax.training.loop import Outcome
from configs import continued

MODEL = small_run.config("unused").model
MESHES = {
    "one device": {"devices": 1},
    "split": {"devices": 8, "data": 2, "fsdp": 2, "tensor": 2},
}


def weights(seed=5):
    """Weights that no initialization of these tests gives."""
    random = np.random.RandomState(seed)

    def array(x):
        return (0.1 * random.standard_normal(x.shape) + (x.ndim == 2)).astype(np.float32)

    return jax.tree.map(array, decoder.param_shapes(MODEL))


def write_model(folder, params):
    folder.mkdir(parents=True)
    layers = split_layers(params)
    model_writer.write_model(folder, FORMATS["olmo"], MODEL, layers, 1, "float32")
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("initial") / "model", weights())


@pytest.fixture
def copy(model, tmp_path):
    """A copy of the model that a test may change."""
    return shutil.copytree(model, tmp_path / "model")


def start_from(model, run, dataset, interrupted=lambda: False, **changes):
    changes = {"initial_weights": str(model), "log__every": "1 steps", **changes}
    return start(run, dataset, interrupted, **changes)


@pytest.fixture(scope="module")
def run(model, dataset, tmp_path_factory):
    """10 updates from those weights; no test changes this run."""
    run = tmp_path_factory.mktemp("initial") / "run"
    outcome, output = start_from(model, run, dataset)
    assert outcome == Outcome(10, "stop")
    assert f"weights  pretrained, from {model}\n" in output
    return run


def test_pretrained_weights_are_evaluated_before_the_first_update(run, dataset):
    rows = {step: values for step, _, values in records(run)}
    order = {"length": small_run.LENGTH, "seed": 0}
    tokens = Windows(dataset, "validation", **order).batch(0, 10)
    logits = np.asarray(decoder.apply(MODEL, weights(), tokens[:, :-1]), np.float64)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    target = np.take_along_axis(shifted, tokens[:, 1:, None], axis=-1)[..., 0]
    loss = (np.log(np.exp(shifted).sum(axis=-1)) - target).mean()
    assert rows[0] == pytest.approx(dict.fromkeys(EVAL_NAMES, loss), rel=1e-5)


def first_state(model, dataset, run, mesh=None, **changes):
    """The first state of a run, and its program."""
    config = small_run.config(run, dataset.path, initial_weights=str(model), **changes)
    program = small_run.program(config, mesh or small_run.mesh())
    source = pretrained.find_pretrained(config, resumes=False)
    return pretrained.init_from_pretrained(source, config, program), program


def is_pretrained(tree):
    return small_run.same_bits(tree, weights())


# First state and updates


@pytest.mark.parametrize("mesh", MESHES)
def test_first_state_has_pretrained_weights_and_zero_moments(mesh, model, dataset, tmp_path):
    mesh = small_run.mesh(**MESHES[mesh])
    state, program = first_state(model, dataset, tmp_path / "run", mesh)
    assert int(state.step) == 0
    assert is_pretrained(state.params)
    averages = averaging.averages(state.opt_state)
    assert sorted(averages) == sorted(small_run.AVERAGES)
    assert all(is_pretrained(tree) for tree in averages.values())
    fresh = program.init()
    without, expected = (averaging.replace_averages(x.opt_state, {}) for x in (state, fresh))
    jax.tree.map(np.testing.assert_array_equal, without, expected)
    moments = [x for x in small_run.leaves(without).values() if x.ndim]
    assert len(moments) == 2 * len(jax.tree.leaves(state.params))
    assert not any(x.any() for x in moments)
    placed = [x.sharding for x in jax.tree.leaves(state)]
    assert placed == [x.sharding for x in jax.tree.leaves(fresh)]
    shards = [x.addressable_shards[0].data for x in jax.tree.leaves(state)]
    assert len({x.unsafe_buffer_pointer() for x in shards}) == len(shards)  # none given away twice


@pytest.mark.parametrize("kind", kind_parameters())
def test_iterates_of_optimizer_start_from_pretrained_weights(kind, model, dataset, tmp_path):
    state, program = first_state(model, dataset, tmp_path / "run", **optimizer(kind))
    iterates = optimizers.iterates(state.opt_state)
    assert bool(iterates) == (kind not in ("adamw_g2", "muon"))
    assert all(is_pretrained(tree) for tree in iterates.values())
    for tree in weight_trees(state).values():
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), tree, weights())
    fresh = small_run.leaves(program.init().opt_state)
    for name, leaf in small_run.leaves(state.opt_state).items():
        if not any(part in name for part in (".averages", ".z", ".ema")):
            np.testing.assert_array_equal(leaf, fresh[name])
    pointers = {x.unsafe_buffer_pointer() for x in jax.tree.leaves(state)}
    assert len(pointers) == len(jax.tree.leaves(state))  # none given away twice


def test_first_updates_equal_those_of_state_set_by_hand(run, dataset):
    config = small_run.config(run, dataset.path)
    state = small_run.program(config, small_run.mesh()).init()
    params, *trees = (jax.device_put(weights()) for _ in ("last", *small_run.AVERAGES))
    averages = dict(zip(small_run.AVERAGES, trees, strict=True))
    opt_state = averaging.replace_averages(state.opt_state, averages)
    by_hand = state._replace(params=params, opt_state=opt_state)
    state = jax.tree.map(lambda x, y: jax.device_put(x, y.sharding), by_hand, state)
    rows = {step: values for step, _, values in records(run)}
    for after_update, metrics in update_by_hand(state, config, dataset, [8] * 3):
        for name in ("loss", "grad_norm", "update_norm"):
            assert rows[int(after_update.step)][f"train/{name}"] == float(metrics[name])


@pytest.mark.slow
def test_run_on_another_mesh(model, run, dataset, tmp_path):
    start_from(model, tmp_path / "run", dataset, mesh=small_run.mesh(**MESHES["split"]))
    for row, expected in zip(records(tmp_path / "run"), records(run), strict=True):
        assert row[:2] == expected[:2]
        assert row[2] == pytest.approx(expected[2], rel=1e-4, abs=1e-6)


def test_starts_from_exported_weights(run, model, dataset, tmp_path):
    """By the run's own weights, down to the checksums of what it saves."""
    identity = json.loads((run / "run.json").read_text())["identity"]
    assert identity["initial_weights"] == model_reader.weights_digest(model)
    params = jax.device_get(averaging.averages(saved(run, 10).state.opt_state)["f25"])
    folder = write_model(tmp_path / "model", params)
    shutil.copy(dataset.vocabulary_path, folder / "vocabulary.model")
    state, _ = first_state(folder, dataset, tmp_path / "run")
    assert small_run.same_bits(state.params, params)


# Later starts


def test_resumes_when_the_model_is_gone(run, copy, dataset, tmp_path):
    start_from(copy, tmp_path / "run", dataset, after(6))
    assert saved_steps(tmp_path / "run")[-1] == 6
    shutil.rmtree(copy)
    outcome, output = start_from(copy, tmp_path / "run", dataset)
    assert outcome == Outcome(10, "stop")
    assert "pretrained" not in output
    assert bits(tmp_path / "run", 10) == bits(run, 10)


def test_run_without_checkpoint_starts_again(run, model, dataset, tmp_path):
    with pytest.raises(ZeroDivisionError):
        start_from(model, tmp_path / "run", dataset, after(1, ZeroDivisionError()))
    assert saved_steps(tmp_path / "run") == []
    start_from(model, tmp_path / "run", dataset)
    assert bits(tmp_path / "run", 10) == bits(run, 10)


def test_rejects_another_model_on_resume(run, copy, dataset, tmp_path):
    resumed = shutil.copytree(run, tmp_path / "run")
    before = (resumed / "run.json").read_bytes()
    other = write_model(tmp_path / "other", weights(seed=6))
    with pytest.raises(InputError, match=r"with other settings .initial_weights was"):
        start_from(other, resumed, dataset, stop="2x")
    with pytest.raises(InputError, match=r"initial_weights was .*, is 'not set'"):
        start(resumed, dataset, stop="2x")
    config = small_run.config(resumed, dataset.path, initial_weights=str(copy))
    digest = json.loads(before)["identity"]["initial_weights"]
    assert pretrained.find_pretrained(config, resumes=True).digest == digest
    assert (resumed / "run.json").read_bytes() == before


def test_rejects_pretrained_weights_for_started_run(copy, dataset, tmp_path):
    start(tmp_path / "run", dataset, after(1))
    with pytest.raises(InputError, match="initial_weights was 'not set', is "):
        start_from(copy, tmp_path / "run", dataset)


def test_rejects_run_that_lost_its_checkpoints(model, dataset, tmp_path):
    config = small_run.config(tmp_path / "run", dataset.path, initial_weights=str(model))
    program = small_run.program(config, small_run.mesh())
    with pytest.raises(InputError, match=r"config\.run_dir"):
        pretrained.init_from_pretrained(pretrained.Pretrained(None, "digest"), config, program)


# Rejected before the run's directory is made


def check_rejected(model, dataset, tmp_path, message, **changes):
    with pytest.raises(InputError, match=rf"^config\.initial_weights: .*{message}") as error:
        start_from(model, tmp_path / "run", dataset, **changes)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("name", "value"), [("layers", 3), ("kind", "olmo2")])
def test_rejects_another_shape(name, value, model, dataset, tmp_path):
    message = rf"config\.model\.{name} = {value!r}"
    check_rejected(model, dataset, tmp_path, message, **{f"model__{name}": value})


def test_sequences_may_be_shorter_but_not_longer(copy, dataset, tmp_path):
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "max_sequence_length": 64}))
    state, _ = first_state(copy, dataset, tmp_path / "run")
    assert is_pretrained(state.params)
    (copy / "config.json").write_text(json.dumps({**config, "max_sequence_length": 4}))
    check_rejected(copy, dataset, tmp_path, r"config\.model\.length = 8 must be at most 4")


def test_damaged_weights_leave_no_run_behind(copy, dataset, tmp_path):
    """So that a whole copy can take their place."""
    file = copy / WEIGHTS
    file.write_bytes(file.read_bytes()[:-4])
    check_rejected(copy, dataset, tmp_path, "cannot be read")


def test_flipped_bit_and_nan_leave_no_run_behind(copy, dataset, tmp_path):
    file = copy / WEIGHTS
    good = file.read_bytes()
    model_writer.write_provenance(copy, {"vocab_size": 300})
    file.write_bytes(good[:-3] + bytes([good[-3] ^ 1]) + good[-2:])
    check_rejected(copy, dataset, tmp_path, "model.safetensors is damaged or changed")
    (copy / PROVENANCE).unlink()
    file.write_bytes(good[:-4] + np.float32(np.nan).tobytes())
    check_rejected(copy, dataset, tmp_path, "tensor .* has a NaN or an infinity")


def test_rejects_data_of_another_vocabulary(copy, dataset, tmp_path):
    shutil.copy(dataset.vocabulary_path, copy / "vocabulary.model")
    assert first_state(copy, dataset, tmp_path / "run")
    words = (f"{a}{b} {b}{a}" for a in "abcdefgh" for b in "klmnopqr")
    train_vocabulary(words, 290, copy / "vocabulary.model")
    message = "was made with another vocabulary than the model in .*--vocabulary=.*vocabulary.model"
    check_rejected(copy, dataset, tmp_path, message)


@pytest.mark.parametrize("is_meant", [False, True])
def test_text_without_the_first_token_of_the_model_is_rejected_unless_it_is_meant(
    is_meant, copy, dataset, monkeypatch
):
    bos = property(lambda vocabulary: 2)
    monkeypatch.setattr(Vocabulary, "bos_id", bos)
    settings = {**dataset.settings, "bos": "none"} if is_meant else dataset.settings
    found = pretrained.Pretrained(model_reader.describe(copy), "digest")
    shutil.copy(dataset.vocabulary_path, copy / "vocabulary.model")
    expected = contextlib.nullcontext() if is_meant else pytest.raises(InputError, match="--bos")
    with expected:
        pretrained.check_vocabulary(found, dataclasses.replace(dataset, settings=settings))


@pytest.mark.slow
def test_branch_of_run_with_pretrained_weights(run, model, dataset, tmp_path):
    """Its trunk's own, as of any other run; the directory is not asked for."""
    branch = {"branch__from_run": str(run), "branch__at": "10 steps", "log__every": "1 steps"}
    outcome, _ = start(tmp_path / "branch", dataset, stop="1.5x", **branch)
    assert outcome == Outcome(15, "stop")
    resumed = shutil.copytree(run, tmp_path / "run")
    start_from(model, resumed, dataset, stop="1.5x")
    assert bits(tmp_path / "branch", 15) == bits(resumed, 15)


# configs/continued.py


def test_continued_config_takes_shape_of_model(copy):
    (copy / PROVENANCE).write_text("{")  # not read: the model's configuration is enough
    config = schema.build(continued.get_config(str(copy)).to_dict())
    assert config.initial_weights == str(copy)
    for name in model_reader.describe(copy).shape:
        assert getattr(config.model, name) == getattr(MODEL, name)
    assert (config.model.vocab_size, config.model.embedding_rows) == (300, 304)


def test_continued_config_requires_model():
    with pytest.raises(InputError, match=r"--config=configs/continued\.py"):
        continued.get_config()
    with pytest.raises(InputError, match="nowhere"):
        continued.get_config("nowhere")
