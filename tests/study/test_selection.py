"""Selection against the formula of the synthetic losses."""

import math
import statistics

import pytest
import synthetic_study
from synthetic_study import MULTIPLES, PEAKS, expected_loss, write_study

from anytime_jax.study.results import Results
from anytime_jax.study.selection import (
    at_grid_edge,
    best_at,
    closest,
    common_multiples,
    differences,
    envelope,
    gaps,
)


def test_envelope_is_the_minimum_over_cosines_at_each_horizon(results):
    cosines = envelope(results)
    assert list(cosines) == MULTIPLES == results.multiples
    for m, curve in cosines.items():
        each = [expected_loss(f"cosine-peak={p:g}-horizon={m:g}x", m, "last") for p in PEAKS]
        assert curve.of("last")[m] == min(each)
        assert curve.settings["floor"] == 0.1  # cosines to 0 take no part
        assert curve.seed == (0, 0)


def test_closest_has_the_least_mean_difference(results):
    cosines = envelope(results)
    curve = closest(results.curves("constant"), "f25", cosines)
    mean = {}
    for peak in PEAKS:
        each = [expected_loss(f"constant-peak={peak:g}", m, "f25") for m in MULTIPLES]
        mean[peak] = statistics.fmean(
            x - cosines[m].of("last")[m] for m, x in zip(MULTIPLES, each, strict=True)
        )
    assert curve.settings["peak"] == min(mean, key=mean.get)
    mean_difference = statistics.fmean(differences(curve, "f25", cosines).values())
    assert mean_difference == pytest.approx(min(mean.values()), abs=1e-12)


def test_closest_compares_unfinished_runs_at_common_multiples(tmp_path):
    study = write_study(tmp_path, leave_out=("constant-peak=0.01",))
    run = study.run("constant-peak=0.01")
    synthetic_study.write_run(run, run.run_dir, until=2)
    results = Results(study)
    curves, cosines = results.curves("constant"), envelope(results)
    assert common_multiples(curves, "f25", cosines) == [1.0, 2.0]
    mean = {
        p: sum(expected_loss(f"constant-peak={p:g}", m, "f25") for m in (1.0, 2.0)) for p in PEAKS
    }
    assert closest(curves, "f25", cosines).settings["peak"] == min(mean, key=mean.get)


def test_closest_leaves_out_runs_with_an_early_stop(tmp_path):
    study = synthetic_study.make_study()
    study.run("constant-peak=0.01").config.stop = "2x"
    results = Results(write_study(tmp_path, study=study))
    curves, cosines = results.curves("constant"), envelope(results)
    assert common_multiples(curves, "f25", cosines) == MULTIPLES
    assert closest(curves, "f25", cosines).settings["peak"] != 0.01


def test_best_at_has_the_lowest_loss(results):
    for m in MULTIPLES:
        each = {p: expected_loss(f"constant-peak={p:g}", m, "f25") for p in PEAKS}
        curve = best_at(results.curves("constant"), m, "f25")
        assert curve.settings["peak"] == min(each, key=each.get)
    assert best_at(results.curves("constant"), 16.0, "f25") is None


def test_gaps_have_the_standard_error_over_seeds(results):
    cosines = envelope(results)
    curve = next(x for x in results.curves("constant") if x.settings["peak"] == 0.01)
    by_multiple = gaps(results, curve, "f25", cosines)
    for m in MULTIPLES:
        peak = cosines[m].settings["peak"]
        first = expected_loss("constant-peak=0.01", m, "f25") - cosines[m].of("last")[m]
        if peak != 0.01:  # that cosine has one seed
            assert (by_multiple[m].seeds, by_multiple[m].mean) == (1, first)
            assert math.isnan(by_multiple[m].stderr)
            continue
        cosine = expected_loss(f"cosine-peak=0.01-horizon={m:g}x-seed=1", m, "last", seed=1)
        second = expected_loss("constant-peak=0.01-seed=1", m, "f25", seed=1) - cosine
        assert by_multiple[m].first == pytest.approx(first, abs=1e-12)
        assert by_multiple[m].mean == pytest.approx((first + second) / 2, abs=1e-12)
        assert by_multiple[m].others == pytest.approx(second, abs=1e-12)
        assert by_multiple[m].stderr == pytest.approx(abs(first - second) / 2, abs=1e-12)
    assert {gap.seeds for gap in by_multiple.values()} >= {2}


def test_at_grid_edge_names_the_settings(results):
    curves = {x.settings["peak"]: x for x in results.curves("constant")}
    edges = {peak: at_grid_edge(results, x, "f25", MULTIPLES) for peak, x in curves.items()}
    assert edges == {3e-3: ["peak"], 1e-2: [], 3e-2: ["peak"]}
    roots = {(x.settings["peak"], x.settings["alpha"]): x for x in results.curves("inverse_sqrt")}
    assert at_grid_edge(results, roots[1e-2, 1920.0], "f25", [1.0]) == ["alpha"]
    # One alpha was tried with that peak.
    assert at_grid_edge(results, roots[3e-3, 1920.0], "f25", [1.0]) == ["peak"]


def test_at_grid_edge_counts_runs_evaluated_at_the_multiples(tmp_path):
    missing = ("cosine-peak=0.03-horizon=2x", "cosine-peak=0.03-horizon=8x")
    results = Results(write_study(tmp_path, leave_out=missing))
    curve = next(x for x in results.curves("cosine") if x.settings["peak"] == 0.01)
    edges = {m: at_grid_edge(results, curve, "last", [m]) for m in MULTIPLES}
    assert edges == {1.0: [], 2.0: ["peak"], 4.0: [], 8.0: ["peak"]}
    assert at_grid_edge(results, curve, "last", [4.0, 8.0]) == ["peak"]
