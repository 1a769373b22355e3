"""What fine-tunes learn and keep, on a made-up study of two starts."""

import numpy as np
import pytest
import synthetic_study
from ml_collections import ConfigDict
from run_command import run_command
from scipy import stats

from anytime_lab import fine_tunes
from anytime_lab.study.plan import Study, chain, grid, runs, seeds, values

PEAKS = (1e-3, 2e-3, 4e-3)
# By start: the losses on what is learned and on what is kept, for each peak.
LOSSES = {"wsd": ((3.0, 2.8, 2.9), (2.0, 2.2, 2.6)), "live": ((3.1, 2.9, 3.0), (2.1, 2.4, 2.9))}
NOISE = {1: 0.003, 2: -0.001, 3: 0.002}  # by seed, of what the live weights keep


def losses_of(run, seed):
    start, peak = run.name.partition("-")[0], PEAKS.index(run.settings["schedule"]["peak"])
    learned, kept = (x[peak] for x in LOSSES[start])
    return learned, kept + NOISE[seed] * (start == "live")


def set_losses(run, multiple, label, seed):
    learned, kept = losses_of(run, seed)
    return {"select": learned, "learn-a": learned - 0.1, "learn-b": learned + 0.1, "keep-a": kept}


@pytest.fixture(name="arguments")
def arguments_fixture(tmp_path, monkeypatch):
    monkeypatch.setattr(synthetic_study, "loss", lambda run, m, x, seed=1: losses_of(run, seed)[0])
    monkeypatch.setattr(synthetic_study, "set_losses", set_losses)
    monkeypatch.setattr(synthetic_study, "MULTIPLES", [0.0, 1.0])
    config = synthetic_study._config(kind="cosine")
    config.initial_weights = "exports"
    config.stop = "horizon"
    config.eval.sets = ConfigDict(dict.fromkeys(("select", "learn-a", "learn-b", "keep-a"), "data"))
    config.eval.weights = ConfigDict({"select": 1.0})
    horizon, peaks = values("schedule.horizon", "1x"), values("schedule.peak", *PEAKS)
    space = grid(horizon, peaks, seeds(*NOISE))
    study = Study("tuned", "root", chain(*(runs(x, config, space, "root") for x in LOSSES)))
    synthetic_study.write_study(tmp_path / "study", study=study)
    sets = ["--learned=learn", "--kept=keep"]
    return [f"--study={tmp_path / 'study'}", f"--page={tmp_path / 'page.md'}", *sets]


def test_starts_are_compared_at_their_best_peaks_and_at_equal_learned_losses(arguments, tmp_path):
    assert run_command(fine_tunes, [*arguments, "--base=wsd"]) == 0
    lines = (tmp_path / "page.md").read_text("utf-8").splitlines()
    rows = [[y.strip() for y in x.strip("|").split("|")] for x in lines if x.startswith("| ")]
    assert [row[:3] for row in rows[2:4]] == [["none", "wsd", "-"], ["none", "live", "-"]]
    wsd, live = rows[4:]
    assert wsd == ["1x", "wsd", "0.002", "2.8000", "0", "0", "0", "-"]
    assert live[:5] == ["1x", "live", "0.002", "2.9000", "+0.1000 ± 0.0000, worse"]
    noise = np.array([*NOISE.values()])
    half = stats.t.ppf(0.975, 2) * stats.sem(noise)
    # Half way between the two smallest peaks of wsd, where it keeps 2.1.
    expected = [f"{x + noise.mean():+.4f} ± {half:.4f}, worse" for x in (0.2, 0.3)]
    assert live[5:7] == expected


@pytest.mark.parametrize("wrong", ["--base=cosine", "--kept=other"])
def test_a_start_or_a_set_that_is_not_there_is_refused(arguments, wrong):
    assert run_command(fine_tunes, [*arguments, "--base=wsd", wrong]) == 2
