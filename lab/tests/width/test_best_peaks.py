"""Best peaks: parabolas are recovered, intervals cover, and what is given away is at the base."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import synthetic_study
from paths import REPOSITORY
from run_command import run_command

from anytime_jax.averaging import LIVE
from anytime_jax.errors import InputError
from anytime_lab.studies.leaderboard import PEAKS
from anytime_lab.studies.leaderboard_peaks import METHODS
from anytime_lab.study.plan import Study, grid, paired, runs, seeds, values
from anytime_lab.study.results import Results
from anytime_lab.width import best_peaks
from anytime_lab.width.best_peaks import Curve

CURVATURE = 0.04
EVIDENCE = REPOSITORY / "lab" / "evidence"


def make_curves(best, noise=0.0, seeds=(0, 1), rng=None, steps=range(-2, 3)):
    """Returns curves of parabolas with least values at `best`, by (parametrization, width)."""
    rng = rng or np.random.default_rng(0)
    curves = []
    for (parametrization, width), at in best.items():
        middle = round(2 * at) / 2 + 0.5  # peaks are half octaves apart, and not centred
        losses = {}
        for step, seed in itertools.product(steps, seeds):
            x = middle + step / 2
            loss = 3 - 0.1 * math.log2(width) + 0.02 * seed + CURVATURE * (x - at) ** 2
            losses[x, seed] = loss + noise * rng.standard_normal()
        base_width = 64 if parametrization == "mup" else 0
        curves.append(Curve("adamw", "constant", parametrization, width, base_width, losses))
    return curves


BEST = {
    ("standard", 64): -7.1,
    ("standard", 128): -7.6,
    ("standard", 256): -8.1,
    ("mup", 256): -7.3,
}


def test_parabolas_are_recovered():
    fit = best_peaks.fit(make_curves(BEST))
    assert fit.curvature == pytest.approx(CURVATURE)
    assert fit.residual < 1e-6
    for best in fit.best:
        expected = BEST[best.curve.parametrization, best.curve.size]
        assert best.log_peak == pytest.approx(expected)
        assert fit.at_base(best).curve.size == 64
        given_away = CURVATURE * (expected - BEST["standard", 64]) ** 2
        assert fit.excess_at_base_peak(best) == pytest.approx(given_away, abs=1e-9)


def test_the_base_of_mup_is_its_base_width():
    fit = best_peaks.fit(make_curves({**BEST, ("standard", 32): -6.5}))
    for best in fit.best:
        base = 64 if best.curve.parametrization == "mup" else 32
        assert fit.at_base(best).curve.size == base


def test_powers_of_the_width():
    powers = best_peaks.powers(best_peaks.fit(make_curves(BEST)))
    assert powers["standard"][0] == pytest.approx(-0.5)
    assert powers["mup"][0] == pytest.approx(-0.1)  # from the base at 64, of both


def test_intervals_cover_the_best_peak():
    """In 95% of 300 draws, up to three standard deviations of that share."""
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(300):
        fit = best_peaks.fit(make_curves(BEST, noise=0.002, rng=rng))
        best, t = fit.best[1], 2.03
        expected = BEST[best.curve.parametrization, best.curve.size]
        covered += abs(best.log_peak - expected) < t * best.error
    assert 0.91 < covered / 300 < 0.99


def test_peaks_beyond_an_octave_are_left_out_and_edges_are_told():
    (curve,) = make_curves({("standard", 64): -7.0}, steps=range(-6, 1))
    losses = {x: y + 0.5 * (abs(x[0] + 7) > 1.1) for x, y in curve.losses.items()}
    fit = best_peaks.fit([Curve("adamw", "constant", "standard", 64, 0, losses)])
    assert fit.best[0].log_peak == pytest.approx(-7.0)
    assert fit.best[0].is_inside
    (curve,) = make_curves({("standard", 64): -7.0}, steps=range(1, 4))
    assert not best_peaks.fit([curve]).best[0].is_inside


def test_losses_without_a_least_value_are_refused():
    losses = {(x / 2, 0): y for x, y in zip(range(-2, 3), (0, 0.05, -0.01, 0.05, 0), strict=True)}
    with pytest.raises(InputError, match="no least value"):
        best_peaks.fit([Curve("adamw", "constant", "standard", 64, 0, losses)])
    few = dict(list(losses.items())[:3])
    with pytest.raises(InputError, match="too few"):
        best_peaks.fit([Curve("adamw", "constant", "standard", 64, 0, few)])


def make_study(kind="constant", **schedule):
    """Returns a study of two widths and two seeds."""
    config = synthetic_study._config(kind=kind, **schedule)
    widths = paired(values("model.width", 64, 128), values("model.heads", 4, 8))
    peaks = values("schedule.peak", 3e-3, 6e-3, 1.2e-2, 2.4e-2)
    return Study(
        "widths",
        synthetic_study.ROOT,
        runs(kind, config, grid(widths, peaks, seeds(0, 1)), "synthetic"),
        "two widths.",
    )


def loss(run, multiple, label, seed=0):
    """A parabola whose best peak is 1e-2 at width 64, and half of it at 128."""
    width, peak = run.settings["model"]["width"], run.settings["schedule"]["peak"]
    return 2 + 0.1 * seed + CURVATURE * math.log2(peak / 1e-2 * width / 64) ** 2


@pytest.fixture(name="write")
def write_fixture(tmp_path, monkeypatch):
    """Writes runs with losses of the parabola; returns their results."""
    monkeypatch.setattr(synthetic_study, "loss", loss)

    def write(study_runs):
        study = dataclasses.replace(make_study(), runs=study_runs)
        return Results(synthetic_study.write_study(tmp_path / "study", study=study))

    return write


def test_cosines_are_read_out_at_their_horizon(write):
    results = write([*make_study().runs, *make_study(kind="cosine", horizon="8x").runs])
    curves = [best_peaks.read_curves(results, x) for x in ("f25", LIVE)]
    found = [[x.schedule for x in of_one] for (of_one,) in curves]
    assert found == [["constant"] * 2, ["cosine"] * 2]


def test_each_warmup_has_its_own_parabolas(write):
    study = make_study()
    for run in study.runs[::2]:  # those of one seed
        run.config.schedule.warmup = "48 steps"
    ((slow, *_), (quick, *_)) = best_peaks.read_curves(write(study.runs), "f25")
    names = ("constant, warmup 192 steps", "constant, warmup 48 steps")
    assert (slow.schedule, quick.schedule) == names


def test_study_that_varies_something_else_is_refused(write):
    study = make_study()
    study.runs[0].config.batch_size *= 2
    study.runs[0].config.model.width = study.runs[1].config.model.width
    with pytest.raises(InputError, match="differ"):
        list(best_peaks.make_tables(write(study.runs), print))


def test_a_study_of_one_width_has_a_parabola_for_each_budget(write, monkeypatch):
    """The best peak falls as the root of the budget; one for all is at the mean of the logs."""

    def loss(run, multiple, label, seed=0):
        peak = run.settings["schedule"]["peak"]
        return 2 + 0.1 * seed + CURVATURE * math.log2(peak / 1e-2 * multiple**0.5) ** 2

    monkeypatch.setattr(synthetic_study, "loss", loss)
    cosine = synthetic_study._config(kind="cosine")
    cosine.stop = "horizon"
    horizons = values("schedule.horizon", "1x", "2x", "4x")
    peaks = values("schedule.peak", 3e-3, 6e-3, 1.2e-2, 2.4e-2)
    cosines = runs("cosine", cosine, grid(horizons, peaks, seeds(0, 1)), "synthetic")
    results = write([*(x for x in make_study().runs if "width=64" in x.name), *cosines])
    peaks, fits = best_peaks.make_tables(results, print)
    found = {(row[1], row[3], row[4]): float(row[5].strip("‡")) for row in peaks.rows}
    for m in (1, 2, 4):
        assert found["constant", f"{m}x", "f25"] == pytest.approx(1e-2 / m**0.5, rel=0.01)
        assert found["cosine", f"{m}x", LIVE] == pytest.approx(1e-2 / m**0.5, rel=0.01)
    assert found["constant", "all", "f25"] == pytest.approx(1e-2 / 2**0.5, rel=0.01)
    assert {row[6] for row in fits.rows} == {"-0.50"}


def test_method_of_too_few_runs_is_left_out(write):
    cosines = make_study(kind="cosine", horizon="8x").runs
    few = [x for x in cosines if "width=64" in x.name and x.name.endswith("seed=0")][:3]
    left_out = []
    peaks, _ = best_peaks.make_tables(write([*make_study().runs, *few]), left_out.append)
    assert {row[1] for row in peaks.rows} == {"constant"}
    assert "cosine" in left_out[0]


@pytest.mark.parametrize(
    ("name", "study"), [("width", "widths"), ("leaderboard_peaks", "leaderboard_peaks")]
)
def test_the_page_has_what_the_packed_records_say(name, study, tmp_path):
    page = tmp_path / f"{name}.md"
    before = (EVIDENCE / page.name).read_text("utf-8")
    page.write_text(before, "utf-8")
    assert run_command(best_peaks, [f"--study={EVIDENCE / study}", f"--page={page}"]) == 0
    assert page.read_text("utf-8") == before


def test_the_leaderboard_has_the_peaks_of_its_page():
    """Those of the study with fresh seeds: live at a horizon, f25 without."""
    before = (EVIDENCE / "leaderboard_peaks.md").read_text("utf-8")
    rows = [
        [x.strip() for x in line.split("|")[1:-1]] for line in before.splitlines() if "|" in line
    ]
    found = {(row[0], row[1], row[3]): row[5] for row in rows if row[4:5] in (["last"], ["f25"])}
    expected = {}
    for method in (x for x in METHODS if x.name in PEAKS):
        name = method.optimizer["kind"].rpartition(":")[2].lower()
        peaks = PEAKS[method.name]
        for at, peak in peaks.items() if isinstance(peaks, dict) else [("all", peaks)]:
            schedule = method.schedule["kind"]
            if schedule == "constant":
                schedule += f", warmup {method.schedule.get('warmup', '192 steps')}"
            key = name, schedule, at if at == "all" else f"{at}x"
            expected[key] = f"{peak:g}"
    assert {key: found[key] for key in expected} == expected
