"""Weights of a saved run by name, against averages that a run really kept at that f."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from small_run import dataset_fixture  # noqa: F401
from training_runs import shared_programs_fixture, start  # noqa: F401

from anytime_jax.checkpoints import checkpoint_reader
from anytime_jax.errors import InputError, RunError
from anytime_jax.weights import saved_weights
from anytime_jax.weights.post_hoc import Mix
from anytime_jax.weights.saved_weights import Limits

STORED = (6.25, 12.5, 25.0, 50.0, 100.0)
OTHERS = (25.0, 35.0, "uniform20", "uniform28")
ANY = Limits(error=1.0)


@pytest.fixture(scope="module", name="folder")
def folder_fixture(tmp_path_factory):
    return tmp_path_factory.mktemp("weights")


@pytest.fixture(name="run")
def run_fixture(folder, dataset):
    """40 updates with five averages, saved at every fifth."""
    return _trained(folder / "run", dataset, STORED, every="5 steps")


@pytest.fixture(name="other")
def other_fixture(folder, dataset):
    """The same updates with other averages."""
    return _trained(folder / "other", dataset, OTHERS, every="40 steps")


def _trained(path, dataset, rules, every):
    if not path.exists():
        changes = {"checkpoint__every": every, "checkpoint__keep_every": every}
        start(path, dataset, averages=rules, stop="4x", **changes)
    return path


def load(path, spec, limits=ANY, step="latest"):
    saved = saved_weights.open_saved(path, step)
    return saved_weights.read(saved, saved_weights.find(saved, spec, limits))


def distance(left, right):
    """Norm of the difference of two trees."""
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return np.sqrt(sum(np.square(np.float64(x) - np.float64(y)).sum() for x, y in pairs))


def test_a_label_is_what_was_saved(run):
    saved = saved_weights.open_saved(run)
    assert (saved.step, list(saved.here)) == (40, ["last", "f6.25", "f12.5", "f25", "f50", "f100"])
    path = run / "checkpoints" / "40"
    for label, item, name in (
        ("last", "params", "blocks/qkv"),
        ("f25", "averages", "f25/blocks/qkv"),
    ):
        array = checkpoint_reader.read_arrays(path, item, {name: None})[name]
        np.testing.assert_array_equal(load(run, label)["blocks"]["qkv"], array)


def test_f_of_a_label_is_that_average(run):
    np.testing.assert_array_equal(load(run, "f=25")["head"], load(run, "f25")["head"])


@pytest.mark.parametrize(
    ("spec", "tracked", "near"),
    [("f=35", "f35", 0.12), ("tail:0.5", "uniform20", 0.1), ("tail:0.3", "uniform28", 0.12)],
)
def test_a_mix_is_near_the_average_that_was_kept(run, other, spec, tracked, near):
    """As a part of the distance between that average and the nearest stored one."""
    exact = load(other, tracked)
    nearest = min(distance(load(run, f"f{f:g}"), exact) for f in STORED)
    assert distance(load(run, spec, Limits(error=1.0, checkpoints=8)), exact) < near * nearest


def test_a_mix_is_the_sum_it_says(run):
    mixed = load(run, 'mix:{"f25": 0.75, "last@20": 0.25}')
    parts = load(run, "f25")["head"], load(run, "last", step="20")["head"]
    np.testing.assert_allclose(mixed["head"], 0.75 * parts[0] + 0.25 * parts[1], atol=1e-7)


def test_merges_are_of_live_weights(run):
    live = [load(run, "last", step=str(s))["head"] for s in (20, 30, 35, 36, 40)]
    np.testing.assert_allclose(load(run, "merge:3")["head"], np.mean(live[2:], axis=0), atol=1e-7)
    saved = saved_weights.open_saved(run)
    mix = saved_weights.find(saved, "merge:1-sqrt:0.5", ANY)
    assert [part.label for part in mix.parts] == ["last"] * len(mix.parts)
    assert sum(mix.coefficients) == pytest.approx(1)
    assert mix.coefficients[0] > mix.coefficients[-1] > 0


def test_a_tree_named_twice_counts_twice(run):
    mix = saved_weights.find(
        saved_weights.open_saved(run), 'mix:{"f25": 0.75, "f25@40": 0.25}', ANY
    )
    assert ([x.name for x in mix.parts], mix.coefficients) == (["f25@40"], (1.0,))


def test_a_small_bound_reads_more_checkpoints(run):
    saved = saved_weights.open_saved(run)
    loose = saved_weights.find(saved, "f=35", Limits(error=0.05, checkpoints=1)).error
    found = saved_weights.find(saved, "f=35", Limits(error=loose / 2, checkpoints=4))
    assert found.error <= loose / 2
    assert len({x.step for x in found.parts}) > 1


def test_a_run_of_one_checkpoint_has_nothing_to_merge(run, folder):
    lone = shutil.copytree(run, folder / "lone")
    for path in (lone / "checkpoints").iterdir():
        if path.name != "40":
            shutil.rmtree(path)
    with pytest.raises(InputError, match="keeps one checkpoint up to there: merging takes two"):
        saved_weights.find(saved_weights.open_saved(lone), "merge:2", ANY)
    saved = saved_weights.open_saved(lone)
    shutil.rmtree(lone)
    with pytest.raises(RunError, match="deleted the checkpoint of step 40 meanwhile"):
        saved_weights.read(saved, Mix((saved.here["f25"],), (1.0,)))


def test_points_and_steps_name_checkpoints(run):
    assert (
        saved_weights.open_saved(run, "2x").step == saved_weights.open_saved(run, "20").step == 20
    )


def test_an_average_added_late_is_known_to_be(run, dataset, folder):
    copied = shutil.copytree(run, folder / "late")
    start(copied, dataset, averages=OTHERS, stop="42 steps")
    late = {x.label: x.since for x in saved_weights.open_saved(copied).kept if x.step == 42}
    assert late == {"last": 0, "f25": 0, "f35": 40, "uniform20": 40, "uniform28": 40}
    shutil.rmtree(copied)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("f30", r"weights 'f30' are not kept at step 40 .* there are last, f6.25, .*; also f=35"),
        ("f=", "are not kept"),
        ("f=x", "'x' is no number"),
        ("f=0", "f = 0.0 is not allowed"),
        ("f=nan", "is not allowed"),
        ("f=1", r"kernel error of [0-9.]+%, more than 5.00%: choose f from .* to .*--max-error"),
        (
            "tail:0.3",
            r"kernel error of .* from the averages of 1 checkpoint: it takes one near step 28,",
        ),
        ("tail:1.5", "fraction = 1.5 is not allowed"),
        ("mix:{", "give JSON"),
        ("mix:[1]", "give JSON"),
        ('mix:{"f25": 0.5}', "the weights sum to 0.5; they must sum to 1"),
        ('mix:{"f25": NaN}', "the weights sum to nan"),
        ('mix:{"f25": 1e5, "last": -99999}', "a weight of 100000 leaves no digits"),
        (f'mix:{{"f25": {10**400}}}', "give JSON"),
        ("mix:" + "[" * 100_000, "give JSON"),
        ("tail:1e-9", "that is a single iterate, which is last"),
        ('mix:{"f26": 1}', r"'f26' is not kept; there are last, .* with @STEP for one of .*40"),
        ('mix:{"f25@7": 1}', "'f25@7' is not kept"),
        ("merge:1", "give from 2 to"),
        ("merge:99", "give from 2 to"),
        ("merge:steep:0.1", "give a number of checkpoints, or a decay"),
        ("merge:linear:0.01", "that decay began at step 40, and 1 checkpoint was saved since"),
    ],
)
def test_bad_names_are_told(run, spec, message):
    with pytest.raises(InputError, match=message):
        saved_weights.find(saved_weights.open_saved(run), spec, Limits(checkpoints=1))


def test_between_those_kept_the_nearer_are_better(run):
    with pytest.raises(InputError, match=r"choose one nearer to those kept \(6.25, 12.5, 25, 50"):
        saved_weights.find(saved_weights.open_saved(run), "f=35", Limits(error=0.0, checkpoints=1))


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("41", r"no checkpoint of step 41; it has those of steps .*36, 40"),
        ("soon", 'give "latest", a number, or a point'),
        ("-1", "give"),
    ],
)
def test_bad_steps_are_told(run, step, message):
    with pytest.raises(InputError, match=message):
        saved_weights.open_saved(run, step)


def test_what_is_no_run_is_told(tmp_path):
    with pytest.raises(InputError, match="is no run"):
        saved_weights.open_saved(tmp_path)


def test_a_run_without_checkpoints_is_told(run, tmp_path):
    shutil.copy(run / "run.json", tmp_path)
    with pytest.raises(InputError, match="no checkpoint yet"):
        saved_weights.open_saved(tmp_path)


def test_damage_is_named(run, folder):
    copied = shutil.copytree(run, folder / "damaged")
    meta = copied / "checkpoints" / "20" / "meta" / "metadata"
    meta.write_text(meta.read_text("utf-8").replace('"tokens": 1280', '"tokens": 1281'))
    assert 20 not in {x.step for x in saved_weights.open_saved(copied).kept}
    with pytest.raises(RunError, match=r"checkpoint .*20: meta cannot be used"):
        saved_weights.open_saved(copied, "20")
    saved = saved_weights.open_saved(copied)
    lie = dataclasses.replace(saved.here["f25"], label="f50")
    meta = copied / "checkpoints" / "40" / "meta" / "metadata"
    about = json.loads(meta.read_text("utf-8"))
    about["checksums"]["averages"]["f50/head"] = "float32[16,304] 1"
    from anytime_jax.checkpoints.checksums import json_digest

    about["digest"] = json_digest({k: v for k, v in about.items() if k != "digest"})
    meta.write_text(json.dumps(about), encoding="utf-8")
    with pytest.raises(RunError, match="averages/f50/head is damaged"):
        saved_weights.read(saved, Mix((lie,), (1.0,)))
    shutil.rmtree(copied)


def test_what_a_mix_is_made_of_is_said(run):
    saved = saved_weights.open_saved(run)
    said = saved_weights.describe(
        saved_weights.find(saved, 'mix:{"f25": 0.75, "last@20": 0.25}', ANY)
    )
    assert said == "+0.75 f25@40 +0.25 last@20"
    assert saved_weights.describe(saved_weights.find(saved, "f25", ANY)) == "f25@40"
    assert isinstance(Path(saved.checkpoint(40)), Path)
