"""Runs whose sources, mixtures, lengths of windows and rotation change on the way."""

import dataclasses
import json

import jax
import numpy as np
import pytest
import small_run
from token_datasets import write_dataset
from training_runs import after, bits, records, start, updates

from anytime_jax.checkpoints.checkpoint_reader import read_meta
from anytime_jax.data.mixed_windows import order_seed
from anytime_jax.data.windows import Windows
from anytime_jax.errors import InputError, RunError
from anytime_jax.training import preflight, run_data
from anytime_jax.training.loop import Outcome

NAMES = ("web", "code", "math")
STAGES = {
    "0x": {"web": ("web", 0.75), "code": ("code", 0.25)},
    "0.7x": {"web": ("web", 0.5), "math": ("math", 0.5), "code": ("code", 0.0)},
    "1.5x": {"code": ("code", 1.0)},
}
LENGTHS = {"0x": 8, "1x": 16}
THETAS = {"0x": 10_000.0, "1x": 50_000.0}
RUN = {
    "data__mixture": STAGES,
    "model__length": LENGTHS,
    "model__rope_theta": THETAS,
    "data__repeat": True,
    "eval__tokens": 64,
    "log__every": "1 steps",
    "checkpoint__every": "8 steps",
    "checkpoint__keep": 9,
}


@pytest.fixture(scope="module", name="sources")
def sources_fixture(tmp_path_factory):
    """Datasets of random tokens, by name, and no text; "short" has documents of few tokens."""
    folder = tmp_path_factory.mktemp("sources")
    rng = np.random.default_rng(0)
    sizes = (("web", 700, 300), ("code", 500, 300), ("math", 900, 300), ("short", 500, 5))
    return {
        name: write_dataset(folder / name, rng.integers(0, vocabulary, size))
        for name, size, vocabulary in sizes
    }


@pytest.fixture(scope="module", name="train")
def train_fixture(sources):
    """Starts or resumes a run on the sources, whose paths are their names."""
    known = {x: dataclasses.replace(y, vocab_size=300) for x, y in sources.items()}

    def load(path, hint=""):
        return known[str(path)]

    def train(run, interrupted=lambda: False, **changes):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(run_data, "load_dataset", load)
            patch.setattr("training_runs.load", load)
            return start(run, known["web"], interrupted, **{**RUN, **changes})

    return train


@pytest.fixture(scope="module", name="whole")
def whole_fixture(train, tmp_path_factory):
    """An unbroken run to 2x: the directory, the output and the batches of its updates."""
    run, first = tmp_path_factory.mktemp("whole"), len(updates)
    outcome, output = train(run, stop="2x")
    assert outcome == Outcome(20, "stop")
    return run, output, [np.asarray(x) for x in updates[first:]]


def expected_batches(sources, stop):
    """Tokens of every update, drawn one window after another."""
    config = small_run.config("unused", **{**RUN, "stop": "2x"})
    counters: dict[str, int] = {}
    length = 8
    for step in range(stop):
        stage = config.stage_at(step)
        if stage.model.length != length:
            counters, length = {}, stage.model.length
        rows = []
        first = config.samples(step)
        for sample in range(first, first + 64 // length):
            names = [name for name, _ in stage.weights]
            since = sample - config.samples(stage.step)
            order = config.mixture.stages[config.stages.index(stage)].order
            name = names[order[since % len(order)]]
            seed = order_seed(small_run.DATA_SEED, sources[name].fingerprint, int(length == 16))
            windows = Windows(sources[name], "train", length=length, seed=seed, repeat=True)
            rows.append(windows.batch(counters.get(name, 0), 1)[0])
            counters[name] = counters.get(name, 0) + 1
        yield np.array(rows)


def test_updates_read_the_sources_in_turn(sources, whole):
    run, output, made = whole
    assert [x.shape for x in made] == [(8, 9)] * 10 + [(4, 17)] * 10
    for ours, slow in zip(made, expected_batches(sources, 20), strict=True):
        np.testing.assert_array_equal(ours, slow)
    assert "stage    from 7 steps" in output
    assert [row[1] for row in records(run)][-1] == 20 * 64  # an update keeps its tokens


def test_a_resumed_run_is_bitwise_the_unbroken_one(train, tmp_path, whole):
    """Stopped where a mixture changes, where the length does, and between the changes."""
    for step, count in ((6, 6), (7, 1), (10, 3), (12, 2)):
        assert train(tmp_path, after(count), stop="2x")[0] == Outcome(step, "interrupted")
    train(tmp_path, stop="2x")
    assert bits(tmp_path, 20) == bits(whole[0], 20)
    ours, theirs = (
        [(step, values) for step, _, values in records(x) if "eval/last/loss" in values]
        for x in (tmp_path, whole[0])
    )
    assert ours == theirs


def test_stages_to_come_may_change_and_those_of_the_past_not(train, tmp_path):
    train(tmp_path, stop="8 steps")
    later = {**STAGES, "1.5x": {"math": ("math", 1.0)}}
    _, output = train(tmp_path, stop="9 steps", data__mixture=later)
    assert "stages   changed from 8 steps" in output
    about = json.loads((tmp_path / "run.json").read_text())
    assert about["stages"][-1]["mixture"] == "math 1"
    assert [x["step"] for x in about["stage_changes"]] == [8]
    assert about["stage_changes"][0]["was"][-1]["mixture"] == "code 1"
    for past in (
        {"data__mixture": {**later, "0x": {"web": ("web", 0.5), "code": ("code", 0.5)}}},
        {"data__mixture": {**later, "0.3x": {"web": ("web", 1.0)}}},
        {"data__mixture": {x: y for x, y in later.items() if x != "0.7x"}},
        {"data__mixture": later, "model__length": {"0x": 8, "0.5x": 16}},
    ):
        with pytest.raises(InputError):
            train(tmp_path, stop="2x", **past)
    assert json.loads((tmp_path / "run.json").read_text()) == about
    # The mean of the validation sets stays the one of the first start.
    assert {x: y[1] for x, y in about["evaluated"]["sets"].items()} == {"code": 1.0}
    assert dict(about["config"]["eval"]["weights"]) == {"code": 1.0}
    assert "the mean keeps the weights code 1" in output
    assert "other validation sets" not in output
    _, output = train(tmp_path, stop="9 steps", data__mixture=later, eval__sets={"web": "web"})
    assert "other validation sets" not in output  # there is nothing to do
    _, output = train(tmp_path, stop="10 steps", data__mixture=later, eval__sets={"web": "web"})
    assert "other validation sets" in output
    train(tmp_path, stop="2x", data__mixture=later)


def test_a_later_length_fits_the_devices_or_is_refused_at_the_start():
    def make_mesh(**changes):
        config = small_run.config("run", model__length={"0x": 8, "10 steps": 16}, **changes)
        return preflight.make_mesh(config, jax.devices()[:8])

    assert make_mesh(batch_size=16).size == 8
    for changes in ({"batch_size": 8}, {"batch_size": 16, "microbatches": 2}):
        with pytest.raises(InputError, match="4 windows"):
            make_mesh(**changes)


def test_a_later_length_that_the_attention_cannot_take_is_refused_at_the_start(monkeypatch):
    lengths = {"0x": 128, "10 steps": 64}
    splash = {"model__attention": "splash", "eval__tokens": "all"}
    config = small_run.config("run", model__length=lengths, **splash)
    need = "windows of a multiple of 128 tokens"

    def unmet_need(path, model, platform, length):
        return need if length % 128 else ""

    monkeypatch.setattr(preflight.attention, "unmet_need", unmet_need)
    with pytest.raises(InputError, match=need):
        preflight.make_mesh(config, jax.devices()[:1])


@pytest.mark.slow
def test_a_branch_continues_the_counters_on_another_mixture(sources, train, tmp_path):
    train(tmp_path / "trunk", stop="9 steps")
    first = len(updates)
    best = (("web", ("web", 0.5)), ("math", ("math", 0.5)))
    branch = {"branch__from_run": str(tmp_path / "trunk"), "branch__at": "9 steps"}
    train(tmp_path / "same", stop="10 steps", **branch)
    train(tmp_path / "other", stop="10 steps", branch__data=best, **branch)
    same, other = (np.asarray(x) for x in updates[first:])
    np.testing.assert_array_equal(same, list(expected_batches(sources, 10))[9])
    # Of each source, the windows that are next; only their order in the batch may differ.
    assert sorted(map(tuple, other.tolist())) == sorted(map(tuple, same.tolist()))
    past = STAGES | {"0x": {"web": ("web", 1.0)}}
    with pytest.raises(InputError, match="was trained on other data, lengths or mixtures"):
        train(tmp_path / "bad", stop="10 steps", data__mixture=past, **branch)
    meta = read_meta(tmp_path / "other" / "checkpoints" / "10")
    assert [x["step"] for x in meta["stages"]] == [0, 7, 9, 10]
    # On other data, the weights of the trunk are evaluated first, on the sets of the branch.
    first = {x: records(tmp_path / x)[0] for x in ("same", "other")}
    assert (first["same"][0], first["other"][0]) == (10, 9)
    assert {"eval/last/loss", "eval/math/last/loss"} <= first["other"][2].keys()


@pytest.mark.slow
def test_a_window_of_too_many_documents_is_merged_or_refused(train, tmp_path):
    """In training and in evaluations, on any device."""
    settings = {"data__documents": "mask", "data__most_documents": 2, "stop": "2 steps"}
    settings |= {"model__length": 64, "batch_size": 4, "microbatches": 1, "data__mixture": ()}
    short = {"data__path": "short"}
    outcome, output = train(tmp_path / "merged", **settings, **short)
    assert outcome.step == 2
    assert "more than 2 documents in a window are merged" in output
    with pytest.raises(RunError, match=r"batch at sample 0 has .* documents"):
        train(tmp_path / "refused", **settings, **short, data__surplus="refuse")
    sets = {"eval__sets": {"short": "short"}, "data__path": "web", "data__most_documents": 9}
    settings |= {"eval__every": "1 steps", "eval__tokens": "all", "data__repeat": True}
    settings |= {"eval__batch_size": 4, **sets}
    with pytest.raises(RunError, match=r"evaluation of .*short has .* documents"):
        train(tmp_path / "sets", **settings, data__surplus="refuse")


def test_losses_by_set_and_their_mean(train, tmp_path):
    train(tmp_path, stop="12 steps", eval__weights={"web": 3, "math": 1})
    rows = {step: values for step, _, values in records(tmp_path) if "eval/f25/loss" in values}
    assert sorted(rows) == [5, 10, 12]
    for step, values in rows.items():
        losses = {x: values[f"eval/{x}/f25/loss"] for x in NAMES}
        mean = 0.75 * losses["web"] + 0.25 * losses["math"]
        assert values["eval/f25/loss"] == pytest.approx(mean, rel=1e-12)
        # After the change, the new length is evaluated too.
        assert ("eval/web@16/f25/loss" in values) == (step > 10)


def test_a_mixture_of_one_is_the_dataset_by_itself(train, tmp_path):
    plain = {"data__mixture": (), "data__path": "web", "model__length": 8}
    train(tmp_path / "a", stop="5 steps", **plain, model__rope_theta=1e4)
    one = {"data__mixture": {"any": ("web", 1.0)}, "model__length": {"0x": 8}}
    train(tmp_path / "b", stop="5 steps", **one, model__rope_theta=1e4)
    assert bits(tmp_path / "a", 5) == bits(tmp_path / "b", 5)
