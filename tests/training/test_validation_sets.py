"""Runs with several validation sets, against losses and means that are computed apart."""

import dataclasses
import random

import grain
import numpy as np
import pytest
import small_run
import training_runs
from float64_losses import token_losses
from training_runs import records, saved, start

from anytime_jax import averaging
from anytime_jax.commands import evaluate
from anytime_jax.corpus.file_source import FileSource
from anytime_jax.corpus.preparation import prepare
from anytime_jax.data.token_arrays import TokenReader
from anytime_jax.errors import InputError

WEIGHTS = {"own": 3, "py-v1.2": 1}
SHARES = {"own": 0.75, "py-v1.2": 0.25}


def write_set(folder, vocabulary, documents, seed=1):
    words = random.Random(seed)
    text = ["".join(words.choices("ab kl mn", k=60)) for _ in range(documents)]
    (folder / "text").mkdir(parents=True)
    for i, document in enumerate(text):
        (folder / "text" / f"{i:03d}.txt").write_text(document)
    source = FileSource(str(folder / "text"), validation_fraction=0.4)
    return prepare(source, folder / "data", vocabulary=vocabulary, workers=1)


@pytest.fixture(scope="module", name="other")
def other_fixture(dataset, tmp_path_factory):
    """Another text with the vocabulary of the run's."""
    return write_set(tmp_path_factory.mktemp("set"), dataset.vocabulary_path, 40)


@pytest.fixture(scope="module", name="run")
def run_fixture(dataset, other, tmp_path_factory):
    """10 updates on the first set, evaluated on both; no test changes this run."""
    run = tmp_path_factory.mktemp("sets") / "run"
    sets = {"own": str(dataset.path), "py-v1.2": str(other.path)}
    outcome, _ = start(run, dataset, eval__sets=sets, eval__weights=WEIGHTS)
    assert (outcome.step, outcome.reason) == (10, "stop")
    return run


def window_losses(model, params, dataset, count):
    """Mean losses of the first windows in the fixed order, the softmax in NumPy float64."""
    length, reader = model.length, TokenReader([dataset], "validation")
    available = (dataset.splits["validation"].tokens - 1) // length
    order = grain.MapDataset.range(available).shuffle(0)
    starts = [int(order[i]) * length for i in range(count)]
    tokens = np.concatenate([reader.read([x], length + 1) for x in starts])
    return token_losses(model, params, tokens).mean(axis=1)


def test_records_have_the_losses_of_each_set_and_their_mean(run, dataset, other):
    state, model = saved(run, 10).state, small_run.config(run).model
    (values,) = [values for step, _, values in records(run) if step == 10]
    for label, tree in {"last": state.params, **averaging.averages(state.opt_state)}.items():
        own, text = (window_losses(model, tree, x, 10).mean() for x in (dataset, other))
        assert values[f"eval/own/{label}/loss"] == pytest.approx(own, rel=1e-5)
        assert values[f"eval/py-v1.2/{label}/loss"] == pytest.approx(text, rel=1e-5)
        assert values[f"eval/{label}/loss"] == pytest.approx(0.75 * own + 0.25 * text, rel=1e-5)
        assert abs(own - text) > 0.01  # a mean with other weights would be another one


# Commands


def test_evaluate_has_a_column_for_each_set_and_their_mean(run, other, command):
    (values,) = [values for step, _, values in records(run) if step == 10]
    losses = {x: f"{values[f'eval/{x}last/loss']:.4f}" for x in ("", "own/", "py-v1.2/")}
    status, out, _ = command(evaluate, f"--run={run}", "--weights=last")
    assert status == 0
    assert set(losses.values()) <= set(out.split())
    one = command(evaluate, f"--run={run}", "--weights=last", f"--data={other.path}")[1]
    assert losses["py-v1.2/"] in one.split()
    assert losses["own/"] not in one.split()


def test_difference_has_the_error_of_a_weighted_mean(run, dataset, other, command):
    out = command(evaluate, f"--run={run}", "--weights", "f25", "last")[1]
    state, model = saved(run, 10).state, small_run.config(run).model
    gap, variance = 0.0, 0.0
    for name, x in (("own", dataset), ("py-v1.2", other)):
        first, second = (
            window_losses(model, tree, x, 10)
            for tree in (averaging.averages(state.opt_state)["f25"], state.params)
        )
        difference = second - first
        gap += SHARES[name] * difference.mean()
        variance += SHARES[name] ** 2 * difference.var(ddof=1) / 10
    assert f"{gap:+.4f} ± {variance**0.5:.4f}" in out


def test_sets_are_found_from_another_directory(dataset, other, tmp_path, monkeypatch, command):
    monkeypatch.chdir(other.path.parent)
    start(tmp_path / "run", dataset, stop="1 steps", eval__sets={"near": "data"})
    monkeypatch.chdir(tmp_path)
    assert command(evaluate, f"--run={tmp_path / 'run'}", "--weights=last")[0] == 0


# Sets that do not fit


def test_unfit_set_is_named(dataset, other, tmp_path, monkeypatch):
    strange = write_set(tmp_path / "strange", 290, 40)
    for path in (str(strange.path), str(tmp_path / "gone")):
        with pytest.raises(InputError, match=path):
            start(tmp_path / "run", dataset, eval__sets={"far": path})
    for change in ({"eos_id": dataset.eos_id + 1}, {"bos_id": dataset.eos_id}):
        otherwise = dataclasses.replace(other, **change)
        monkeypatch.setattr(training_runs, "load", lambda path, hint, x=otherwise: x)
        with pytest.raises(InputError, match=r"config\.eval\.sets: .*--bos"):
            start(tmp_path / "run", dataset, eval__sets={"far": "other"})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["f25", "a/b"])
def test_name_of_a_set_that_means_something_else_is_refused(name):
    with pytest.raises(InputError, match=rf"config\.eval\.sets.*{name}"):
        small_run.config("unused", eval__sets={name: "a", "b": "b"})


def test_weights_are_those_of_the_last_stage_or_equal():
    def shares(sets, stages):
        first = {"a": ("a", 1.0)}
        config = small_run.config("run", eval__sets=sets, data__mixture=first, stages=stages)
        return config.set_weights

    last = {"a": ("a", 0.25), "b": ("b", 0.75), "c": ("c", 0.0)}
    stages = {"1x": {"mixture": last}}
    assert shares({}, stages) == pytest.approx({"a": 0.25, "b": 0.75, "c": 0.0})
    assert shares({"b": "b", "d": "d"}, stages) == {"b": 1.0, "d": 0.0}
    assert shares({"d": "d", "e": "e"}, stages) == {"d": 0.5, "e": 0.5}
    assert shares({"c": "c", "e": "e"}, stages) == {"c": 0.5, "e": 0.5}


# Stages


@pytest.mark.slow
def test_step_at_which_the_model_changes_is_evaluated_with_the_model_so_far(dataset, tmp_path):
    """The rotation of the next update would be one that the weights have not had."""
    changes = {"stages": {"1x": {"rope_theta": 20.0}}, "stop": "11 steps"}
    start(tmp_path, dataset, **changes)
    model = small_run.config(tmp_path).model
    rows = {step: values for step, _, values in records(tmp_path) if "eval/last/loss" in values}
    for step, theta in ((10, 10_000.0), (11, 20.0)):
        of_step = dataclasses.replace(model, rope_theta=theta)
        losses = window_losses(of_step, saved(tmp_path, step).state.params, dataset, 10)
        assert rows[step]["eval/last/loss"] == pytest.approx(losses.mean(), rel=1e-5)


def test_a_small_set_among_several_is_evaluated_whole():
    """A set with fewer tokens than `eval.tokens` has all of its windows evaluated."""
    assert small_run.config("run", eval__tokens="all").eval_windows(100, 8) == 100
    config = small_run.config("run", eval__tokens=80, eval__sets={"a": "data/a", "b": "data/b"})
    assert [config.eval_windows(x, small_run.LENGTH) for x in (4, 100)] == [
        4,
        80 // small_run.LENGTH,
    ]
