"""Differences between groups of runs, on a made-up study."""

import dataclasses
import math

import numpy as np
import pytest
import synthetic_study
from run_command import run_command
from scipy import stats

from anytime_lab import differences
from anytime_lab.study import study_files
from anytime_lab.study.plan import Study, grid, runs, seeds, values
from anytime_lab.study.results import Results

NOISE = {1: 0.003, 2: -0.001, 3: 0.002}  # by seed, of the decay 0.3


def make_study():
    config = synthetic_study._config(kind="constant", peak=0.01)
    space = grid(values("optimizer.weight_decay", 0.1, 0.3), seeds(*NOISE))
    return Study("decays", synthetic_study.ROOT, runs("constant", config, space, "root"))


def loss(run, multiple, label, seed=0):
    trunk = 3 + 0.1 * seed - 0.5 * math.log2(multiple) - 0.2 * (label == "f25")
    if run.settings["optimizer"]["weight_decay"] == 0.1:
        return trunk
    return trunk + 0.02 * multiple + NOISE.get(seed, 0.0)


@pytest.fixture(name="root")
def root_fixture(tmp_path, monkeypatch):
    monkeypatch.setattr(synthetic_study, "loss", loss)
    synthetic_study.write_study(tmp_path / "study", study=make_study())
    return tmp_path / "study"


def test_differences_are_paired_by_seed(root):
    with study_files.open_study(root) as study:
        results = Results(study)
        groups = differences.group_runs(results)
        base, other = groups.values()
        assert list(groups) == [f"constant-weight_decay={x}" for x in (0.1, 0.3)]
        gaps = differences.compare(results, other, base)
        # One of the seeds is missing in the base.
        del base[2, 2]
        fewer = differences.compare(results, other, base)
    noise = np.array([*NOISE.values()])
    for multiple, gap in gaps.items():
        test = stats.ttest_1samp(0.02 * multiple + noise, 0).confidence_interval()
        assert gap.mean == pytest.approx((test.high + test.low) / 2)
        assert gap.half_width == pytest.approx((test.high - test.low) / 2)
        assert fewer[multiple].seeds == 2
        assert fewer[multiple].mean == pytest.approx(0.02 * multiple + 0.0025)


def test_all_runs_are_read_out_through_one_average(tmp_path, monkeypatch):
    """Cosines, which are read out live by default, are 0.2 lower through f25."""
    monkeypatch.setattr(synthetic_study, "loss", loss)
    study, cosine = make_study(), synthetic_study._config(kind="cosine", peak=0.01, horizon="1x")
    cosine.update(stop="horizon")
    cosine.optimizer.weight_decay = 0.1
    cosines = runs("cosine", cosine, seeds(*NOISE), "root")
    study = dataclasses.replace(study, runs=[*study.runs, *cosines])
    results = Results(synthetic_study.write_study(tmp_path / "study", study=study))
    constant, _, cosine = differences.group_runs(results).values()
    expected = {None: -0.2, "f25": 0.0, "last": 0.0}
    for average, mean in expected.items():
        gap = differences.compare(results, constant, cosine, average=average)[1]
        assert gap.mean == pytest.approx(mean, abs=1e-9)


def test_names_are_as_short_as_they_can_be():
    names = ["ramp-peak=0.1-growth=64", "late-peak=0.1", "kept-at=1x", "kept-at=1x-by=2", "kept"]
    short = ["ramp", "late", "kept-at=1x", "kept-at=1x-by=2", "kept"]
    assert [differences._shortest(x, names) for x in names] == short


def test_table_has_each_group_and_the_base_is_named(root, tmp_path):
    page = tmp_path / "page.md"
    arguments = [f"--study={root}", f"--page={page}", "--base=constant-weight_decay=0.1"]
    assert run_command(differences, arguments) == 0
    rows = [x.strip("| ").split(" | ") for x in page.read_text().splitlines() if "| f25 |" in x]
    assert [row[0] for row in rows] == [f"constant-weight_decay={x}" for x in (0.1, 0.3)]
    assert rows[1][4].startswith("+0.0213 ± ")
    assert rows[0][4:] == ["0"] * (len(rows[0]) - 5) + ["-"]
    assert run_command(differences, [*arguments[:2], "--base=constant"]) == 2
    assert run_command(differences, [*arguments, "--sets=other"]) == 2
