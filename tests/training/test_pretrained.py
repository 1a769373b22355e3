"""Runs that start from pretrained weights: their first state, later starts, and rejections."""

import dataclasses
import functools
import json
import shutil

import jax
import numpy as np
import pytest
import small_run
from float64_losses import token_losses
from optimizer_kinds import FAST, optimizer
from run_files import run_file
from training_runs import EVAL_NAMES, after, bits, records, start, update_by_hand

from anytime_jax import averaging, optimizers
from anytime_jax.checkpoints.checkpoint_listing import saved_steps
from anytime_jax.checkpoints.run_json import read_run_file
from anytime_jax.config import run_config
from anytime_jax.config.kinds import NOBODY
from anytime_jax.corpus.sentencepiece_vocabulary import SentencePieceVocabulary
from anytime_jax.corpus.vocabulary_training import train_vocabulary
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


def weights(seed=5):
    """Weights that no initialization of these tests gives."""
    random = np.random.RandomState(seed)

    def array(x):
        return (0.1 * random.standard_normal(x.shape) + (x.ndim == 2)).astype(np.float32)

    return jax.tree.map(array, decoder.param_shapes(MODEL))


def write_model(folder, params):
    folder.mkdir(parents=True)
    layers = split_layers(params)
    model_writer.write_model(folder, FORMATS["olmo"], MODEL, layers, {"eos_token_id": 1}, "float32")
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
    tokens = Windows.from_dataset(dataset, "validation", **order).batch(0, 10)
    loss = token_losses(MODEL, weights(), tokens).mean()
    assert rows[0] == pytest.approx(dict.fromkeys(EVAL_NAMES, loss), rel=1e-5)


def first_state(model, dataset, run, mesh=None, **changes):
    """The first state of a run, and its program."""
    config = small_run.config(run, dataset.path, initial_weights=str(model), **changes)
    program = small_run.program(config, mesh or small_run.mesh())
    source = pretrained.find_pretrained(config, None)
    return pretrained.init_from_pretrained(source, config, program), program


def is_pretrained(tree):
    return small_run.same_bits(tree, weights())


# First state and updates


def test_first_state_has_pretrained_weights_and_zero_moments(model, dataset, tmp_path):
    mesh = small_run.mesh(8, data=2, fsdp=2, tensor=2)
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


def test_iterates_of_optimizer_start_from_pretrained_weights(model, dataset, tmp_path):
    state, program = first_state(model, dataset, tmp_path / "run", **optimizer(FAST))
    iterates = optimizers.iterates(state.opt_state)
    assert iterates
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


# Later starts


def test_resumes_when_the_model_is_gone(run, copy, dataset, tmp_path):
    start_from(copy, tmp_path / "run", dataset, after(6))
    assert saved_steps(tmp_path / "run")[-1] == 6
    shutil.rmtree(copy)
    outcome, output = start_from(copy, tmp_path / "run", dataset)
    assert outcome == Outcome(10, "stop")
    assert "pretrained" not in output
    assert bits(tmp_path / "run", 10) == bits(run, 10)


def test_rejects_another_model_on_resume(run, copy, dataset, tmp_path):
    """Whatever its path: a copy of the model is the same one."""
    other = write_model(tmp_path / "other", weights(seed=6))
    with pytest.raises(InputError, match="initial_weights was"):
        start_from(other, run, dataset, stop="2x")
    config = small_run.config(run, dataset.path, initial_weights=str(copy))
    digest = read_run_file(run).identity["initial_weights"]
    assert pretrained.find_pretrained(config, run_file()).digest == digest


def test_rejects_run_that_lost_its_checkpoints(model, dataset, tmp_path):
    config = small_run.config(tmp_path / "run", dataset.path, initial_weights=str(model))
    program = small_run.program(config, small_run.mesh())
    with pytest.raises(InputError, match=r"config\.run_dir"):
        pretrained.init_from_pretrained(pretrained.Pretrained(None, "digest"), config, program)


# Rejected before the run's directory is made


def check_rejected(model, dataset, tmp_path, message, setting="initial_weights", **changes):
    with pytest.raises(InputError, match=rf"^config\.{setting}.*: .*{message}") as error:
        start_from(model, tmp_path / "run", dataset, **changes)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_rejects_another_shape(model, dataset, tmp_path):
    check_rejected(model, dataset, tmp_path, "another shape", "model.layers", model__layers=3)


def test_sequences_may_be_shorter_but_not_longer(copy, dataset, tmp_path):
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "max_sequence_length": 64}))
    state, _ = first_state(copy, dataset, tmp_path / "run")
    assert is_pretrained(state.params)
    (copy / "config.json").write_text(json.dumps({**config, "max_sequence_length": 4}))
    check_rejected(copy, dataset, tmp_path, "at most 4", "model.length")


def test_damaged_weights_leave_no_run_behind(copy, dataset, tmp_path):
    """So that a whole copy can take their place."""
    file = copy / WEIGHTS
    file.write_bytes(file.read_bytes()[:-4] + np.float32(np.nan).tobytes())
    check_rejected(copy, dataset, tmp_path, "has a NaN")


def test_rejects_data_of_another_vocabulary(copy, dataset, tmp_path):
    shutil.copy(dataset.vocabulary_path, copy / "vocabulary.model")
    assert first_state(copy, dataset, tmp_path / "run")
    words = (f"{a}{b} {b}{a}" for a in "abcdefgh" for b in "klmnopqr")
    train_vocabulary(words, 290, copy / "vocabulary.model")
    check_rejected(copy, dataset, tmp_path, "another vocabulary")


def test_text_without_the_first_token_of_the_model_is_rejected_unless_it_is_meant(
    copy, dataset, monkeypatch
):
    monkeypatch.setattr(SentencePieceVocabulary, "begin", (2,))
    shutil.copy(dataset.vocabulary_path, copy / "vocabulary.model")
    found = pretrained.Pretrained(model_reader.read_description(copy), "digest")
    with pytest.raises(InputError, match="--bos"):
        pretrained.check_vocabulary(found, dataset)
    meant = dataclasses.replace(dataset, settings={**dataset.settings, "bos": "none"})
    pretrained.check_vocabulary(found, meant)


# configs/continued.py


def test_continued_config_takes_shape_of_model(copy):
    (copy / PROVENANCE).write_text("{")  # not read: the model's configuration is enough
    config = run_config.build(continued.get_config(str(copy)).to_dict(), trust=NOBODY)
    assert config.initial_weights == str(copy)
    assert type(config.model) is type(MODEL)
    for name in model_reader.read_description(copy).shape.keys() - {"kind"}:
        assert getattr(config.model, name) == getattr(MODEL, name)
    assert (config.model.vocab_size, config.model.embedding_rows) == (300, 304)


def test_continued_config_requires_model():
    with pytest.raises(InputError, match=r"configs/continued\.py"):
        continued.get_config()
