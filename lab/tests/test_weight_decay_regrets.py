"""Regrets of weight decays: of the worst budget, by the best peak, and paired with fresh seeds."""

import dataclasses
import math

import pytest
import synthetic_study
from paths import REPOSITORY
from run_command import run_command

from anytime_jax.checkpoints.metric_records import Row
from anytime_lab import weight_decay_regrets
from anytime_lab.study.plan import Study, chain, grid, runs, seeds, values
from anytime_lab.study.results import Results

PEAKS = (1e-2, 2e-2)
DECAYS = (0.0, 0.1, "g2")
# By decay: how much the loss of the best peak rises from one doubling to the next.
RISES = {0.0: 0.03, 0.1: 0.01, "g2": -0.01}


def make_study(**optimizer):
    config = synthetic_study._config(kind="constant")
    config.optimizer.update(decay_mask="matrices", **optimizer)
    space = grid(values("schedule.peak", *PEAKS), values("optimizer.weight_decay", *DECAYS))
    first = runs("constant", config, space, "synthetic")
    again = [x for x in first if x.config.schedule.peak == PEAKS[0]]
    fresh = (runs(x.name, x.config, seeds(1, 2), "synthetic") for x in again)
    return Study("decays", synthetic_study.ROOT, chain(first, *fresh), "two peaks.")


def loss(run, multiple, label, seed=0):
    """The second peak is 0.1 above the first; a seed's noise grows with the budget."""
    settings = run.settings
    decay, peak = settings["optimizer"].get("weight_decay", 0.0), settings["schedule"]["peak"]
    noise = 0.001 * seed * math.log2(multiple) * (decay == "g2")
    return 2 + RISES[decay] * math.log2(multiple) + 0.1 * (peak > PEAKS[0]) + noise


@pytest.fixture(name="study")
def study_fixture(tmp_path, monkeypatch):
    monkeypatch.setattr(synthetic_study, "loss", loss)
    return synthetic_study.write_study(tmp_path / "study", study=make_study())


def test_command_writes_regrets_and_differences(study, tmp_path, capsys):
    page = tmp_path / "page.md"
    assert run_command(weight_decay_regrets, [f"--study={study.root}", f"--page={page}"]) == 0
    rows = [[x.strip() for x in line.split("|")[1:-1]] for line in page.read_text().splitlines()]
    found = {tuple(x[:6]): x[6:] for x in rows if len(x) == 10 and x[0] == "adamw"}
    of_decay = {x[2]: x[3:] for x in rows if len(x) == 12 and x[0] == "adamw"}
    assert [*of_decay] == ["g2", "0.1", "0.0"]  # by the worst regret
    for decay, rise in (("g2", 0.0), ("0.1", 0.02), ("0.0", 0.04)):
        expected = [f"{rise * doublings:.4f}" for doublings in (0, 1, 2, 3, 3)]
        assert of_decay[decay] == ["0.01", "2", *expected, "", ""]
    pair = "adamw", "constant", "0.01"
    expected = [f"{x:+.4f} ± 0.0000" for x in (0, 0.02, 0.04, 0.06)]
    assert found[(*pair, "0.0", "0.1", "3")] == expected
    # Seeds 0, 1 and 2: their mean noise is 0.001, and 4.30 standard errors of 0.001 / sqrt(3).
    expected = ["+0.0000 ± 0.0000", "-0.0190 ± 0.0025", "-0.0380 ± 0.0050", "-0.0570 ± 0.0075"]
    assert found[(*pair, "g2", "0.1", "3")] == expected
    assert "3 weight decays" in capsys.readouterr().out


def test_relative_updates_of_matrices(study, monkeypatch):
    """They fall as the root of time, before each budget; scales of norms do not count."""

    def read_records(run_dir):
        names = "train/relative_update/blocks/qkv", "train/relative_update/blocks/qkv_bias"
        steps = range(60, 3841, 60)
        return [Row(n, n, {names[0]: n**-0.5, names[1]: 5.0, "train/loss": 1.0}) for n in steps]

    monkeypatch.setattr(weight_decay_regrets, "read_records", read_records)
    results = Results(study)
    found = weight_decay_regrets.relative_updates(results, results.all_curves[0])
    assert [*found] == [1, 2, 4, 8]
    assert found[8] == pytest.approx(3840**-0.5, rel=0.03)
    later = {m: x for m, x in found.items() if m > 1}
    assert weight_decay_regrets.power_of_time(later) == pytest.approx(-0.5, abs=0.02)


def test_study_without_long_runs_is_refused(study, tmp_path, capsys):
    cosine = synthetic_study._config(kind="cosine", horizon="8x", peak=1e-2)
    cosine.stop = "horizon"
    only = dataclasses.replace(study, runs=runs("cosine", cosine, [{}], "synthetic"))
    only = synthetic_study.write_study(tmp_path / "other", study=only)
    page = tmp_path / "page.md"
    assert run_command(weight_decay_regrets, [f"--study={only.root}", f"--page={page}"]) == 2
    assert "no run without a horizon" in capsys.readouterr().err
    assert not page.exists()


def test_the_page_has_what_the_packed_records_say(tmp_path):
    page = tmp_path / "decay.md"
    before = (REPOSITORY / "lab/evidence/decay.md").read_text("utf-8")
    page.write_text(before, "utf-8")
    study = REPOSITORY / "lab/evidence/decays"
    assert run_command(weight_decay_regrets, [f"--study={study}", f"--page={page}"]) == 0
    assert page.read_text("utf-8") == before
