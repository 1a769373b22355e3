"""Runs with several validation sets, against losses and means that are computed apart."""

import dataclasses
import random
import re

import grain
import numpy as np
import pytest
import small_run
import training_runs
from tensorboardX.proto import event_pb2
from training_runs import records, saved, start

from anytime_jax import api, averaging
from anytime_jax.commands import evaluate
from anytime_jax.corpus.preparation import prepare
from anytime_jax.corpus.sources import FileSource
from anytime_jax.data.token_arrays import TokenReader
from anytime_jax.errors import InputError
from anytime_jax.models import decoder
from anytime_jax.training.evaluator import make_evaluator

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


@pytest.fixture(scope="module", name="sets")
def sets_fixture(dataset, other):
    return {"own": str(dataset.path), "py-v1.2": str(other.path)}


@pytest.fixture(scope="module", name="run")
def run_fixture(dataset, sets, tmp_path_factory):
    """10 updates on the first set, evaluated on both; no test changes this run."""
    run = tmp_path_factory.mktemp("sets") / "run"
    changes = {"eval__sets": sets, "eval__weights": WEIGHTS, "log__tensorboard": True}
    outcome, output = start(run, dataset, **changes)
    assert (outcome.step, outcome.reason) == (10, "stop")
    (run / "output").write_text(output)
    return run


def window_losses(model, params, dataset, count):
    """Mean losses of the first windows in the fixed order, the softmax in NumPy float64."""
    length, reader = model.length, TokenReader(dataset, "validation")
    available = (dataset.splits["validation"].tokens - 1) // length
    order = grain.MapDataset.range(available).shuffle(0)
    starts = [int(order[i]) * length for i in range(count)]
    tokens = np.concatenate([reader.read([x], length + 1) for x in starts])
    logits = np.asarray(decoder.apply(model, params, tokens[:, :-1]), np.float64)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    target = np.take_along_axis(shifted, tokens[:, 1:, None], axis=-1)[..., 0]
    return (np.log(np.exp(shifted).sum(axis=-1)) - target).mean(axis=1)


def by_hand(run, step, datasets, count=10):
    """The losses of each tree of a checkpoint on each set."""
    state, config = saved(run, step).state, small_run.config(run)
    trees = {"last": state.params, **averaging.averages(state.opt_state)}
    return {
        name: {
            label: float(window_losses(config.model, tree, dataset, count).mean())
            for label, tree in trees.items()
        }
        for name, dataset in datasets.items()
    }


def test_records_have_the_losses_of_each_set_and_their_mean(run, dataset, other):
    expected = by_hand(run, 10, {"own": dataset, "py-v1.2": other})
    (values,) = [values for step, _, values in records(run) if step == 10]
    for label in ("last", "f6.25", "f25"):
        for name in WEIGHTS:
            loss = values[f"eval/{name}/{label}/loss"]
            assert loss == pytest.approx(expected[name][label], rel=1e-5)
        mean = sum(SHARES[name] * expected[name][label] for name in WEIGHTS)
        assert values[f"eval/{label}/loss"] == pytest.approx(mean, rel=1e-5)
    # The sets differ, so that a mean with other weights would be another one.
    assert abs(expected["own"]["last"] - expected["py-v1.2"]["last"]) > 0.01


def test_start_tells_the_fingerprint_and_the_size_of_each_evaluation(run, dataset, other):
    output = (run / "output").read_text()
    assert f" tokens, fingerprint {dataset.fingerprint[:12]}, " in output
    for name, x, share in (("own", dataset, 0.75), ("py-v1.2", other, 0.25)):
        documents = documents_of(x, 10, small_run.LENGTH)
        line = f"{name} (weight {share}): 80 tokens in 10 windows, of at most {documents} documents"
        assert f"eval     {line}" in output


def test_tensorboard_has_a_tag_for_each_set(run):
    (file,) = (run / "tensorboard").iterdir()
    data, tags = file.read_bytes(), set()
    while data:
        size = int.from_bytes(data[:8], "little")
        event = event_pb2.Event.FromString(data[12 : 12 + size])
        tags |= {x.tag for x in event.summary.value}
        data = data[16 + size :]
    assert {"eval/f25/loss", "eval/own/f25/loss", "eval/py-v1.2/f25/loss"} <= tags


def documents_of(dataset, count, length):
    """The documents that windows touch, if each pair of neighbors shares the one between them.

    Others that one document spans count each.
    """
    tokens = TokenReader(dataset, "validation").read([0], dataset.splits["validation"].tokens)[0]
    number = np.concatenate([[0], np.cumsum(tokens == dataset.eos_id)[:-1]])
    order = grain.MapDataset.range((len(tokens) - 1) // length).shuffle(0)
    windows = sorted(int(order[i]) for i in range(count))
    runs = np.split(np.array(windows), np.flatnonzero(np.diff(windows) > 1) + 1)
    return sum(len(set(number[x[0] * length : (x[-1] + 1) * length])) for x in runs)


@pytest.mark.parametrize("count", [1, 7, 20, "all"])
def test_documents_of_windows_are_counted(dataset, count):
    config, mesh = small_run.config("unused"), small_run.mesh()
    available = dataset.splits["validation"].windows(small_run.LENGTH)
    count = available if count == "all" else count
    program = small_run.program(config, mesh)
    evaluator = make_evaluator(config, mesh, dataset, program, count=count)
    documents = evaluator.count_documents()
    assert documents == documents_of(dataset, count, small_run.LENGTH)
    if count == available:  # all windows in a row: exact, but for a last partial window
        assert abs(documents - dataset.splits["validation"].documents) <= 1


# Commands


def test_evaluate_has_a_column_for_each_set_and_their_mean(run, other, command):
    status, out, _ = command(evaluate, f"--run={run}", "--weights", "f25", "last")
    assert status == 0
    (values,) = [values for step, _, values in records(run) if step == 10]
    header, *rows = [line.split() for line in out.splitlines()[-3:]]
    assert header[:2] == ["weights", "mean"]
    assert header[-2:] == ["own", "py-v1.2"]
    for label, cells in zip(("f25", "last"), rows, strict=True):
        printed = dict(zip(("mean", *WEIGHTS), (cells[1], *cells[-2:]), strict=True))
        names = {"mean": "", "own": "own/", "py-v1.2": "py-v1.2/"}
        for name, place in names.items():
            assert float(printed[name]) == pytest.approx(values[f"eval/{place}{label}/loss"], 6e-5)
    one = command(evaluate, f"--run={run}", "--weights=last", f"--data={other.path}")[1]
    loss = values["eval/py-v1.2/last/loss"]
    assert re.search(rf"^last +{loss:.4f} ", one, re.MULTILINE)
    assert "py-v1.2" not in one.splitlines()[-2]


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


def test_api_gives_the_mean(run):
    (values,) = [values for step, _, values in records(run) if step == 10]
    losses = api.evaluate(run, ["f25"])
    assert losses == pytest.approx({"f25": values["eval/f25/loss"]}, rel=1e-5)


def test_sets_are_found_from_another_directory(dataset, other, tmp_path, monkeypatch, command):
    monkeypatch.chdir(other.path.parent)
    start(tmp_path / "run", dataset, stop="1 steps", eval__sets={"near": "data"})
    monkeypatch.chdir(tmp_path)
    assert command(evaluate, f"--run={tmp_path / 'run'}", "--weights=last")[0] == 0


# Sets that do not fit


def test_unfit_set_is_named(dataset, other, tmp_path, monkeypatch):
    few = write_set(tmp_path / "few", dataset.vocabulary_path, 4)
    strange = write_set(tmp_path / "strange", 290, 40)
    ended = {str(other.path): dataclasses.replace(other, eos_id=dataset.eos_id + 1)}
    load = training_runs.load
    monkeypatch.setattr(
        training_runs, "load", lambda path, hint: ended.get(str(path)) or load(path, hint)
    )
    for sets, message in (
        (
            {"far": str(other.path)},
            r"config\.eval\.sets: .*far at .* end with token .*--end-of-text",
        ),
        ({"far": str(strange.path)}, r"config\.eval\.sets: far at .*strange.* another vocabulary"),
        ({"far": str(few.path)}, r"validation split of .*few/data does not fit: .*eval\.tokens"),
        ({"far": str(tmp_path / "gone")}, r"config\.eval\.sets|gone"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            start(tmp_path / "run", dataset, eval__sets=sets, eval__tokens=4000)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("sets", "weights", "named"),
    [
        ({"f25": "a", "b": "b"}, {}, "f25"),
        ({"a/b": "a"}, {}, "a/b"),
        ({"4x": "a"}, {}, "4x"),
        ((("a", "x"), ("a", "y")), {}, "sets"),
        ({"a": "x"}, {"b": 1}, "weights"),
        ({"a": "x"}, {"a": 0}, "weights"),
    ],
)
def test_bad_names_and_weights_are_named(sets, weights, named):
    with pytest.raises(InputError, match=re.escape(named)) as caught:
        small_run.config("unused", eval__sets=sets, eval__weights=weights)
    assert str(caught.value).startswith("config.eval")
    assert "\n" not in str(caught.value)


def test_weights_are_those_of_the_last_stage_or_equal():
    def shares(sets, mixture):
        config = small_run.config("unused", eval__sets=sets, data__mixture=mixture)
        return config.set_weights

    stages = {"0x": {"a": ("a", 1.0)}, "1x": {"a": ("a", 0.25), "b": ("b", 0.75), "c": ("c", 0.0)}}
    assert shares({}, stages) == pytest.approx({"a": 0.25, "b": 0.75, "c": 0.0})
    assert shares({"b": "b", "d": "d"}, stages) == {"b": 1.0, "d": 0.0}
    assert shares({"d": "d", "e": "e"}, stages) == {"d": 0.5, "e": 0.5}
    assert shares({"c": "c", "e": "e"}, stages) == {"c": 0.5, "e": 0.5}


# Stages


@pytest.mark.slow
def test_step_at_which_the_model_changes_is_evaluated_with_the_model_so_far(
    dataset, tmp_path, command
):
    """The rotation of the next update would be one that the weights have not had."""
    changes = {"model__rope_theta": {"0x": 10_000.0, "1x": 20.0}, "stop": "11 steps"}
    start(tmp_path, dataset, **changes)
    model = small_run.config(tmp_path).model
    rows = {step: values for step, _, values in records(tmp_path) if "eval/last/loss" in values}
    for step, theta in ((10, 10_000.0), (11, 20.0)):
        of_step = dataclasses.replace(model, rope_theta=theta)
        losses = window_losses(of_step, saved(tmp_path, step).state.params, dataset, 10)
        assert rows[step]["eval/last/loss"] == pytest.approx(losses.mean(), rel=1e-5)
        out = command(evaluate, f"--run={tmp_path}", f"--step={step}", "--weights=last")[1]
        assert re.search(rf"^last +{losses.mean():.4f}", out, re.MULTILINE)


def test_a_small_set_among_several_is_evaluated_whole():
    """A set with fewer tokens than `eval.tokens` has all of its windows evaluated."""
    config = small_run.config("run", eval__tokens=80, eval__sets={"a": "data/a", "b": "data/b"})
    assert [config.eval_windows(x) for x in (4, 100)] == [4, 80 // small_run.LENGTH]
