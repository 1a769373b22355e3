"""The models that a made-up study tunes, each at its best peak."""

import numpy as np
import pytest
import synthetic_study
from ml_collections import ConfigDict
from run_command import run_command
from scipy import stats

from anytime_lab import fine_tunes
from anytime_lab.study.plan import Study, chain, grid, runs, seeds, values

PEAKS = (1e-3, 2e-3, 4e-3)
# By start, for each peak: the losses that select, on the new text and on the old one. The best
# peak of wsd is the smaller one of two, and not the best one on the new text.
LOSSES = {
    "wsd": ((3.0, 2.8005, 2.8), (3.1, 2.9, 2.8), (2.0, 2.2, 2.6)),
    "live": ((3.1, 3.0, 2.9), (3.2, 3.1, 3.0), (2.1, 2.4, 2.9)),
}
BEFORE = {"wsd": (3.5, 3.6, 1.9), "live": (3.6, 3.9, 2.0)}
NOISE = {1: 0.003, 2: -0.001, 3: 0.002}  # by seed, of the live weights on the old text


def losses_of(run, multiple, seed):
    start, peak = run.name.partition("-")[0], PEAKS.index(run.settings["schedule"]["peak"])
    found = [x[peak] for x in LOSSES[start]] if multiple else [*BEFORE[start]]
    found[2] += NOISE[seed] * (start == "live")
    return found


def set_losses(run, multiple, label, seed):
    select, new, old = losses_of(run, multiple, seed)
    return {"select": select, "new-a": new - 0.1, "new-b": new + 0.1, "old": old}


@pytest.fixture(name="arguments")
def arguments_fixture(tmp_path, monkeypatch):
    monkeypatch.setattr(synthetic_study, "loss", lambda run, m, x, s=1: losses_of(run, m, s)[0])
    monkeypatch.setattr(synthetic_study, "set_losses", set_losses)
    monkeypatch.setattr(synthetic_study, "MULTIPLES", [0.0, 1.0])
    config = synthetic_study._config(kind="cosine")
    config.initial_weights, config.stop = "exports", "horizon"
    config.eval.sets = ConfigDict(dict.fromkeys(("select", "new-a", "new-b", "old"), "data"))
    config.eval.weights = ConfigDict({"select": 1.0})
    horizon, peaks = values("schedule.horizon", "1x"), values("schedule.peak", *PEAKS)
    space = grid(horizon, peaks, seeds(*NOISE))
    study = Study("tuned", "root", chain(*(runs(x, config, space, "root") for x in LOSSES)))
    root = tmp_path / "study"
    synthetic_study.write_study(root, study=study)
    return [f"--study={root}", f"--page={tmp_path / 'page.md'}", "--sets", "new", "old"]


def test_starts_are_compared_at_their_best_peaks(arguments, tmp_path):
    assert run_command(fine_tunes, [*arguments, "--base=wsd"]) == 0
    lines = (tmp_path / "page.md").read_text("utf-8").splitlines()
    rows = [[y.strip() for y in x.strip("|").split("|")] for x in lines if x.startswith("| ")]
    noise = np.array([*NOISE.values()])
    half = stats.t.ppf(0.975, 2) * stats.sem(noise)
    before, after = (f"{x + noise.mean():+.4f} ± {half:.4f}, worse" for x in (0.1, 0.7))
    assert [row[:-1] for row in rows[2:]] == [
        ["0x", "wsd", "-", "3.5000", "0", "0"],
        ["0x", "live", "-", "3.6000", "+0.3000 ± 0.0000, worse", before],
        ["1x", "wsd", "0.002", "2.8005", "0", "0"],
        ["1x", "live", "0.004‡", "2.9000", "+0.1000 ± 0.0000, worse", after],
    ]


@pytest.mark.parametrize("wrong", [["--base=cosine"], ["--base=wsd", "--sets", "other"]])
def test_a_start_or_a_set_that_is_not_there_is_refused(arguments, wrong):
    assert run_command(fine_tunes, [*arguments, *wrong]) == 2
