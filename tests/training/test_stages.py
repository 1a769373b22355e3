"""Runs whose sources, mixtures, lengths of windows and rotation change on the way."""

import dataclasses

import jax
import numpy as np
import pytest
import small_run
from token_datasets import write_dataset
from training_runs import after, bits, records, start, updates

from anytime_jax.checkpoints.checkpoint_reader import read_meta
from anytime_jax.checkpoints.run_json import read_run_file
from anytime_jax.data.windows import Windows, order_seed
from anytime_jax.distributed import sharding
from anytime_jax.errors import InputError, RunError
from anytime_jax.training import preflight, run_data
from anytime_jax.training.loop import Outcome
from anytime_jax.weights.saved_run import open_saved_run

NAMES = ("web", "code", "math")
STAGES = {
    "0.7x": {"mixture": {"web": ("web", 0.5), "math": ("math", 0.5), "code": ("code", 0.0)}},
    "1x": {"length": 16, "rope_theta": 50_000.0},
    "1.5x": {"mixture": {"code": ("code", 1.0)}},
}
RUN = {
    "data__mixture": {"web": ("web", 0.75), "code": ("code", 0.25)},
    "model__length": 8,
    "model__rope_theta": 10_000.0,
    "stages": STAGES,
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
    """An unbroken run to 2x: the directory and the batches of its updates."""
    run, first = tmp_path_factory.mktemp("whole"), len(updates)
    outcome, output = train(run, stop="2x")
    assert outcome == Outcome(20, "stop")
    assert output.count("compiled in") == 2  # once for each length
    return run, [np.asarray(x) for x in updates[first:]]


def expected_batches(sources, stop, skip=()):
    """Tokens of every update, drawn one window after another, without those of `skip`."""
    config = small_run.config("unused", **{**RUN, "stop": "2x"})
    counters: dict[str, int] = {}
    length, sample, begins = 8, 0, {}
    for step in range(stop):
        stage = config.stage_at(step)
        begins.setdefault(stage.step, sample)
        if stage.model.length != length:
            counters, length = {}, stage.model.length
        rows = []
        while len(rows) < 64 // length:
            names = [name for name, _ in stage.weights]
            since = sample - begins[stage.step]
            order = config.mixture.stages[config.run_stages.index(stage)].order
            name = names[order[since % len(order)]]
            seed = order_seed(small_run.DATA_SEED, sources[name], int(length == 16))
            windows = Windows.from_dataset(
                sources[name], "train", length=length, seed=seed, repeat=True
            )
            if sample not in skip:
                rows.append(windows.batch(counters.get(name, 0), 1)[0])
            counters[name] = counters.get(name, 0) + 1
            sample += 1
        yield np.array(rows)


def test_updates_read_the_sources_in_turn(sources, whole):
    run, made = whole
    assert [x.shape for x in made] == [(8, 9)] * 10 + [(4, 17)] * 10
    for ours, slow in zip(made, expected_batches(sources, 20), strict=True):
        np.testing.assert_array_equal(ours, slow)
    assert [row[1] for row in records(run)][-1] == 20 * 64  # an update keeps its tokens


def test_a_resumed_run_is_bitwise_the_unbroken_one(train, tmp_path, whole):
    """Stopped where a mixture changes, and where the length does."""
    for step, count in ((7, 7), (10, 3)):
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
    later = {**STAGES, "1.5x": {"mixture": {"math": ("math", 1.0)}}}
    train(tmp_path, stop="9 steps", stages=later)
    run_file = read_run_file(tmp_path)
    assert run_file.stages[-1].mixture == "math 1"
    assert [x.step for x in run_file.stage_changes] == [8]
    assert run_file.stage_changes[0].was[-1].mixture == "code 1"
    for past in (
        {"data__mixture": {"web": ("web", 0.5), "code": ("code", 0.5)}},
        {"stages": {"0.5x": {"length": 16}, **later}},
    ):
        with pytest.raises(InputError):
            train(tmp_path, stop="2x", **past)
    assert read_run_file(tmp_path) == run_file
    # The mean of the validation sets stays the one of the first start.
    assert {x: y[1] for x, y in run_file.evaluated.sets.items()} == {"code": 1.0}
    weights = open_saved_run(tmp_path).set_weights
    assert {name: weight for name, weight in weights.items() if weight} == {"code": 1.0}
    train(tmp_path, stop="2x", stages=later)


# Within a batch, more than two batches, and where each later stage begins.
SKIP = ((3, 5), (40, 56), (76, 80), (105, 110), (131, 131))


def test_samples_are_left_out_and_the_others_keep_their_order(sources, train, tmp_path):
    """The ranges are given when the run is about to reach them, and a run is killed in between."""
    first = len(updates)
    train(tmp_path, stop="3 steps", data__skip=SKIP[:1])
    assert train(tmp_path, after(2), stop="2x", data__skip=SKIP)[0].step == 5
    train(tmp_path, stop="2x", data__skip=SKIP)
    skip = {x for a, b in SKIP for x in range(a, b + 1)}
    made = [np.asarray(x) for x in updates[first:]]
    for ours, slow in zip(made, expected_batches(sources, 20, skip), strict=True):
        np.testing.assert_array_equal(ours, slow)
    assert read_run_file(tmp_path).config["data"]["skip"] == [[*x] for x in SKIP]
    train(tmp_path / "whole", stop="2x", data__skip=SKIP)
    assert bits(tmp_path, 20) == bits(tmp_path / "whole", 20)


def test_samples_that_were_read_cannot_be_left_out(train, tmp_path):
    """Nor put back, also not by a branch; after 3 updates, samples 0 to 26 without 3 to 5."""
    train(tmp_path / "run", stop="3 steps", data__skip=SKIP[:1])
    branch = {"branch__from_run": str(tmp_path / "run"), "branch__at": "3 steps"}
    for skip in ((), ((3, 5), (26, 40)), ((2, 5),)):
        for run, changes in (("run", {}), ("branch", branch)):
            with pytest.raises(InputError, match=r"config\.data\.skip.*up to 26"):
                train(tmp_path / run, stop="4 steps", data__skip=skip, **changes)
    later = ((3, 5), (27, 40))
    for run, changes in (("branch", branch), ("run", {})):
        assert train(tmp_path / run, stop="4 steps", data__skip=later, **changes)[0].step == 4


def test_a_later_length_fits_the_devices_or_is_refused_at_the_start():
    def make_mesh(**changes):
        stages = {"10 steps": {"length": 16}}
        config = small_run.config("run", model__length=8, stages=stages, **changes)
        mesh = sharding.make_mesh(config.mesh, jax.devices()[:8])
        preflight.check_mesh(config, mesh)
        return mesh

    assert make_mesh(batch_size=16).size == 8
    for changes in ({"batch_size": 8}, {"batch_size": 16, "microbatches": 2}):
        with pytest.raises(InputError, match="4 windows"):
            make_mesh(**changes)


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
    past = {"web": ("web", 1.0)}
    with pytest.raises(InputError, match=r"config\.data"):
        train(tmp_path / "bad", stop="10 steps", data__mixture=past, **branch)
    meta = read_meta(tmp_path / "other" / "checkpoints" / "10")
    assert [x.step for x in meta.stages] == [0, 7, 9, 10]


@pytest.mark.slow
def test_a_window_of_too_many_documents_is_merged_or_refused(train, tmp_path):
    """In training and in evaluations."""
    settings = {"data__documents": "mask", "data__most_documents": 2, "stop": "2 steps"}
    settings |= {
        "model__length": 64,
        "batch_size": 4,
        "microbatches": 1,
        "data__mixture": (),
        "stages": (),
    }
    short = {"data__path": "short"}
    assert train(tmp_path / "merged", **settings, **short)[0].step == 2
    with pytest.raises(RunError, match=r"batch at sample 0 has .* documents"):
        train(tmp_path / "refused", **settings, **short, data__surplus="refuse")
    settings |= {"eval__every": "1 steps", "eval__tokens": "all", "eval__batch_size": 4}
    sets = {"eval__sets": {"short": "short"}, "data__path": "web", "data__most_documents": 9}
    with pytest.raises(RunError, match=r"evaluation of .*short has .* documents"):
        train(tmp_path / "sets", **settings | sets, data__surplus="refuse")
