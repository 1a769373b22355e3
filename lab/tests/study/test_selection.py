"""Selection against the formula of the synthetic losses."""

import math
import statistics

import pytest
import synthetic_study
from scipy import stats
from synthetic_study import MULTIPLES, PEAKS, expected_loss, write_study

from anytime_lab.study.results import Results
from anytime_lab.study.selection import (
    Gap,
    at_grid_edge,
    closest,
    common_multiples,
    differences,
    gap_at,
    select,
)


@pytest.fixture(scope="module", name="cosines")
def cosines_fixture(results):
    return select(results).cosines


def test_envelope_is_the_minimum_over_cosines_at_each_horizon(results, cosines):
    assert list(cosines) == MULTIPLES == results.multiples
    for m, curve in cosines.items():
        each = [expected_loss(f"cosine-peak={p:g}-horizon={m:g}x", m, "last") for p in PEAKS]
        assert curve.losses[m] == min(each)
        assert curve.settings["floor"] == 0.1  # cosines to 0 take no part
        assert curve.seed == (0, 0)


def test_closest_has_the_least_mean_difference(results, cosines):
    curve = closest(results.comparable_curves("constant"), cosines)
    mean = {}
    for peak in PEAKS:
        each = [expected_loss(f"constant-peak={peak:g}", m, "f25") for m in MULTIPLES]
        mean[peak] = statistics.fmean(
            x - cosines[m].losses[m] for m, x in zip(MULTIPLES, each, strict=True)
        )
    assert curve.settings["peak"] == min(mean, key=mean.get)
    mean_difference = statistics.fmean(differences(curve, cosines).values())
    assert mean_difference == pytest.approx(min(mean.values()), abs=1e-12)


def test_closest_compares_unfinished_runs_at_common_multiples(tmp_path):
    study = write_study(tmp_path, leave_out=("constant-peak=0.01",))
    run = study.run("constant-peak=0.01")
    synthetic_study.write_run(run, run.run_dir, until=2)
    results = Results(study)
    curves, cosines = results.comparable_curves("constant"), select(results).cosines
    assert common_multiples(curves, cosines) == [1.0, 2.0]
    mean = {
        p: sum(expected_loss(f"constant-peak={p:g}", m, "f25") for m in (1.0, 2.0)) for p in PEAKS
    }
    assert closest(curves, cosines).settings["peak"] == min(mean, key=mean.get)


def test_closest_leaves_out_runs_with_an_early_stop(tmp_path):
    study = synthetic_study.make_study()
    study.run("constant-peak=0.01").config.stop = "2x"
    results = Results(write_study(tmp_path, study=study))
    curves, cosines = results.comparable_curves("constant"), select(results).cosines
    assert common_multiples(curves, cosines) == MULTIPLES
    assert closest(curves, cosines).settings["peak"] != 0.01


def test_gap_has_the_standard_error_over_seeds(results, cosines):
    curve = next(x for x in results.comparable_curves("constant") if x.settings["peak"] == 0.01)
    gaps = {m: gap_at(results, curve, m, cosines) for m in MULTIPLES}
    for m, gap in gaps.items():
        first = expected_loss("constant-peak=0.01", m, "f25") - cosines[m].losses[m]
        if cosines[m].settings["peak"] != 0.01:  # that cosine has one seed
            assert (gap.mean, gap.stderr, gap.seeds) == (first, 0.0, 1)
            assert math.isnan(gap.others)
            continue
        cosine = expected_loss(f"cosine-peak=0.01-horizon={m:g}x-seed=1", m, "last", seed=1)
        second = expected_loss("constant-peak=0.01-seed=1", m, "f25", seed=1) - cosine
        expected = ((first + second) / 2, abs(first - second) / 2, second, 2)
        assert gap[:4] == pytest.approx(expected, abs=1e-12)
    assert {gap.seeds for gap in gaps.values()} >= {2}


@pytest.mark.parametrize(("of_seeds", "of_sets", "freedom"), [(3e-3, 1e-3, 7), (1e-3, 3e-3, 31)])
def test_power_is_that_of_the_wider_interval(of_seeds, of_sets, freedom):
    gap = Gap(0.0, of_seeds, 0.0, 8, of_sets, 32)
    edge = stats.t.ppf(0.975, freedom)
    assert gap.half_width == pytest.approx(3e-3 * edge)
    found = stats.nct(freedom, 0.01 / 3e-3)
    assert gap.power == pytest.approx(found.sf(edge) + found.cdf(-edge), rel=1e-6)


def test_at_grid_edge_names_the_settings(results):
    curves = {x.settings["peak"]: x for x in results.comparable_curves("constant")}
    edges = {peak: at_grid_edge(results, x, MULTIPLES) for peak, x in curves.items()}
    assert edges == {3e-3: ["peak"], 1e-2: [], 3e-2: ["peak"]}
    roots = {
        (x.settings["peak"], x.settings["alpha"]): x
        for x in results.comparable_curves("inverse_sqrt")
    }
    assert at_grid_edge(results, roots[1e-2, 1920.0], [1.0]) == ["alpha"]
    # One alpha was tried with that peak.
    assert at_grid_edge(results, roots[3e-3, 1920.0], [1.0]) == ["peak"]


def test_at_grid_edge_counts_runs_evaluated_at_the_multiples(tmp_path):
    missing = ("cosine-peak=0.03-horizon=2x", "cosine-peak=0.03-horizon=8x")
    results = Results(write_study(tmp_path, leave_out=missing))
    curve = next(x for x in results.comparable_curves("cosine") if x.settings["peak"] == 0.01)
    edges = {m: at_grid_edge(results, curve, [m]) for m in MULTIPLES}
    assert edges == {1.0: [], 2.0: ["peak"], 4.0: [], 8.0: ["peak"]}
    assert at_grid_edge(results, curve, [4.0, 8.0]) == ["peak"]
