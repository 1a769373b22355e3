"""Branches with larger batches against their trunks, on a made-up study."""

import math

import numpy as np
import pytest
import synthetic_study
from run_command import run_command
from scipy import stats

from anytime_jax.errors import InputError
from anytime_lab import larger_batches
from anytime_lab.study.plan import Study, branches, chain, decays, grid, runs, seeds, values
from anytime_lab.study.results import Results

PEAK, BATCH = 0.01, 32
COSTS = {2: 0.002, 4: 0.006, 8: 0.03}  # of a multiple of the batch, at 2x
NOISE = {0: 0.001, 1: -0.002, 2: 0.004}  # by seed, of branches


def make_study():
    config = synthetic_study._config(kind="constant")
    trunks = runs("constant", config, grid(values("schedule.peak", PEAK), seeds(*NOISE)), "root")
    sizes = [{"1x": BATCH * k} for k in COSTS]
    root = values("schedule.peak", PEAK * math.sqrt(4))
    space = chain(values("batch_growth", *sizes), grid(values("batch_growth", sizes[1]), root))
    later = values("batch_growth", {"1x": 2 * BATCH, "1.5x": 4 * BATCH})
    larger = branches("larger", trunks, "1x", chain(space, later), "2x")
    return Study("larger", synthetic_study.ROOT, chain(trunks, larger))


def loss(run, multiple, label, seed=0):
    settings = run.settings
    trunk = 3 + 0.1 * seed - 0.5 * math.log2(multiple) - 0.2 * (label == "f25")
    growth = settings.get("batch_growth")
    if not growth:
        return trunk
    cost = COSTS[growth["1x"] // BATCH] + 0.1 * (settings["schedule"]["peak"] > PEAK)
    return trunk + cost + NOISE[seed]


@pytest.fixture(name="root")
def root_fixture(tmp_path, monkeypatch):
    monkeypatch.setattr(synthetic_study, "loss", loss)
    synthetic_study.write_study(tmp_path / "study", study=make_study())
    return tmp_path / "study"


@pytest.fixture(name="results")
def results_fixture(root):
    return read(root)


def read(root):
    with larger_batches.study_files.open_study(root) as study:
        return Results(study)


def test_costs_are_paired_differences_to_the_trunk(results):
    """At equal tokens, and at equal updates: there on a line in the log of the tokens."""
    comparisons = larger_batches.compare(results)
    assert [x.growth.sizes for x in comparisons] == [
        ((1.0, 2),), ((1.0, 2), (1.5, 4)), ((1.0, 4),), ((1.0, 8),), ((1.0, 4),),
    ]  # fmt: skip
    assert [x.growth.rate for x in comparisons] == [0, 0, 0, 0, 0.5]
    noise = np.array([*NOISE.values()])
    first = comparisons[0]
    assert first.growth.updates == 480 + 240
    assert first.at_tokens.mean == pytest.approx(COSTS[2] + noise.mean())
    test = stats.ttest_1samp(COSTS[2] + noise, 0).confidence_interval()
    assert first.at_tokens.half_width == pytest.approx((test.high - test.low) / 2)
    ahead = 0.5 * math.log2(2 / 1.5)  # of the trunk at 720 updates, which is 1.5x
    assert first.at_updates.mean == pytest.approx(COSTS[2] + noise.mean() - ahead)
    assert comparisons[4].at_tokens.mean == pytest.approx(COSTS[4] + 0.1 + noise.mean())


def test_largest_free_multiple_is_where_the_line_of_costs_crosses_the_margin(results):
    kept = [x for x in larger_batches.compare(results) if not x.growth.rate]
    at_once = [x for x in kept if x.growth.is_at_once]
    low, high = (COSTS[k] + np.mean([*NOISE.values()]) for k in (4, 8))
    expected = 4 * 2 ** ((larger_batches.MARGIN - low) / (high - low))
    assert larger_batches.largest_free(at_once) == pytest.approx(expected)
    assert larger_batches.largest_free(at_once[:2]) == math.inf


def test_command_writes_both_tables(root, tmp_path):
    page = tmp_path / "page.md"
    assert run_command(larger_batches, [f"--study={root}", f"--page={page}"]) == 0
    text = page.read_text()
    assert "| 1x | 2x | 2 times from 1x, 4 times from 1.5x | kept | 0.01 | 660 | 960 | 3 |" in text
    assert "| 1x | 2x | times the root | 0.01 |" in text


def test_a_batch_that_grows_as_the_trunk_s_is_not_larger(tmp_path):
    config = synthetic_study._config(kind="constant")
    config.batch_growth = {"1x": 2 * BATCH}
    trunks = runs("constant", config, values("schedule.peak", PEAK), "root")
    found = chain(trunks, decays("wsd", trunks, [4]))
    study = Study("grown", synthetic_study.ROOT, found)
    synthetic_study.write_study(tmp_path / "study", study=study)
    with pytest.raises(InputError, match="larger batch"):
        larger_batches.compare(read(tmp_path / "study"))


def test_study_without_larger_batches_is_refused(tmp_path):
    synthetic_study.write_study(tmp_path / "study")
    with pytest.raises(InputError, match="larger batch"):
        larger_batches.compare(read(tmp_path / "study"))
