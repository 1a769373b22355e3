"""Branches with larger batches against their trunks, on a made-up study."""

import math

import numpy as np
import pytest
import synthetic_study
from run_command import run_command
from scipy import stats

from anytime_jax.errors import InputError
from anytime_lab import larger_batches
from anytime_lab.study import study_files
from anytime_lab.study.plan import Study, branches, chain, decays, grid, runs, seeds, values
from anytime_lab.study.results import Results
from anytime_lab.study.selection import MARGIN, gap_of

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
    other = [{"schedule.peak": PEAK / 2}]  # with the trunk's batch
    decay = [{"batch_growth": sizes[0], "optimizer.weight_decay": 0.2}]
    larger = branches("larger", trunks, "1x", chain(space, later, other, decay), "2x")
    # From 2x on, four times as large a batch costs what it costs at 1x.
    late = branches(
        "larger", trunks, "2x", [{"batch_growth": {"2x": BATCH * 4 * k}} for k in COSTS], "4x"
    )
    return Study("larger", synthetic_study.ROOT, chain(trunks, larger, late))


def loss(run, multiple, label, seed=0):
    settings = run.settings
    trunk = 3 + 0.1 * seed - 0.5 * math.log2(multiple) - 0.2 * (label == "f25")
    peak = settings["schedule"]["peak"]
    if peak < PEAK:
        return trunk - 0.004
    growth = settings.get("batch_growth")
    if not growth:
        return trunk
    point = min(growth)
    multiple = growth[point] // BATCH // (4 if point == "2x" else 1)
    return trunk + COSTS[multiple] + 0.1 * (peak > PEAK) + NOISE[seed]


@pytest.fixture(name="root")
def root_fixture(tmp_path, monkeypatch):
    monkeypatch.setattr(synthetic_study, "loss", loss)
    synthetic_study.write_study(tmp_path / "study", study=make_study())
    return tmp_path / "study"


@pytest.fixture(name="results")
def results_fixture(root):
    return read(root)


def read(root):
    with study_files.open_study(root) as study:
        return Results(study)


def test_costs_are_paired_differences_to_the_trunk(results):
    """At equal tokens, and at equal updates: there on a line in the log of the tokens."""
    comparisons = [x for x in larger_batches.compare(results) if x.growth.rule.start == 1]
    found = [(x.growth.rule.rate, x.growth.rule.others, x.growth.sizes) for x in comparisons]
    kept = [((1.0, 2),), ((1.0, 2), (1.5, 4)), ((1.0, 4),), ((1.0, 8),)]
    assert found == [
        *(("kept", (), sizes) for sizes in kept),
        ("kept", ("optimizer.weight_decay",), ((1.0, 2),)),
        ("times 0.5", (), ()),
        ("times the root", (), ((1.0, 4),)),
    ]
    noise = np.array([*NOISE.values()])
    first = comparisons[0]
    assert first.growth.updates == 480 + 240
    gap = gap_of(first.at_tokens)
    assert gap.mean == pytest.approx(COSTS[2] + noise.mean())
    test = stats.ttest_1samp(COSTS[2] + noise, 0).confidence_interval()
    assert gap.half_width == pytest.approx((test.high - test.low) / 2)
    ahead = 0.5 * math.log2(2 / 1.5)  # of the trunk at 720 updates, which is 1.5x
    assert first.at_updates.mean() == pytest.approx(COSTS[2] + noise.mean() - ahead)
    assert first.share_kept == pytest.approx(1 - (COSTS[2] + noise.mean()) / ahead)
    assert comparisons[-1].at_tokens.mean() == pytest.approx(COSTS[4] + 0.1 + noise.mean())


def crossing(costs):
    """Where the line between the last two of three costs, at 4 and 8 times, is at the margin."""
    return 4 * 2 ** ((MARGIN - costs[1]) / (costs[2] - costs[1]))


def test_largest_free_multiples_are_where_the_lines_of_costs_cross_the_margin(results):
    found = larger_batches.find_largest(larger_batches.compare(results))
    at_1x, at_2x = (found[x] for x in found if x.rate == "kept" and not x.others)
    costs = np.array([*COSTS.values()])
    for each, factor in ((at_1x, 1), (at_2x, 4)):
        expected = [factor * crossing(costs + x) for x in NOISE.values()]
        assert [*each.of_seeds.values()] == pytest.approx(expected)
        assert each.of_mean == pytest.approx(factor * crossing(costs + np.mean([*NOISE.values()])))
    # The other rate is 0.004 below the trunk at 1x, and was not tried at 2x.
    low, high, _ = costs + 0.004 + np.mean([*NOISE.values()])
    assert at_1x.against_best_rate == pytest.approx(2 * 2 ** ((MARGIN - low) / (high - low)))
    assert at_2x.against_best_rate == at_2x.of_mean
    assert larger_batches.largest_free({1: 0.0, 2: 0.005, 4: 0.009}) == math.inf
    assert larger_batches.largest_free({1: 0.02, 2: 0.03}) == 1


def test_power_of_the_tokens_is_that_of_each_seed():
    text = larger_batches._power(np.array([2.0, 2.0, 4.0]), np.array([4.0, 8.0, 8.0]), 4)
    each = [0.5, 1.0, 0.5]
    test = stats.ttest_1samp(each, 0).confidence_interval()
    assert text == f"{np.mean(each):.2f} ± {(test.high - test.low) / 2:.2f}"
    assert "not known" in larger_batches._power(np.array([2.0]), np.array([math.inf]), 4)


def test_command_writes_all_tables(root, tmp_path):
    page = tmp_path / "page.md"
    assert run_command(larger_batches, [f"--study={root}", f"--page={page}"]) == 0
    text = page.read_text()
    assert "| 1x | 2x | 2 times from 1x, 4 times from 1.5x | kept | - | 0.01 | 660 | 960 |" in text
    assert "| 1x | 2x | as the trunk's | times 0.5 | - |" in text
    # Four times as large after twice the tokens.
    assert "| kept | - | 1x and 2x | 2.00 ± 0.00 | 3 |" in text


def test_powers_are_of_the_seeds_that_both_points_have(tmp_path, monkeypatch):
    monkeypatch.setattr(synthetic_study, "loss", loss)
    study, first = make_study(), next(iter(NOISE))
    missing = [x.name for x in study.runs if f"seed={first}" in x.name and "_at_2x" in x.name]
    synthetic_study.write_study(tmp_path / "study", missing, study)
    *_, powers = larger_batches.make_tables(read(tmp_path / "study"))
    assert missing
    assert powers.text()[1] == ["kept", "-", "1x and 2x", "2.00 ± 0.00", "2"]


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
