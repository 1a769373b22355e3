"""The synthetic figures: lengths, selection, files and settings."""

import json

import numpy as np
import pytest

from anytime_jax import schedules
from anytime_jax.averaging import Uniform
from anytime_jax.config.settings_reader import read
from anytime_lab.configs import theory_figure
from anytime_lab.theory.problem import Problem
from anytime_lab.theory.risk import excess_risk
from anytime_lab.theory.synthetic_figures import (
    FigureConfig,
    checkpoints_through,
    lowest,
    make_figures,
)


@pytest.mark.parametrize(
    ("steps", "through"),
    [(150_000, 5_000), (150_000, 149_999), (100, 100), (10, 1)],
)
def test_checkpoints_rise_through_the_selection_to_the_end(steps, through):
    checkpoints = checkpoints_through(through, steps)
    assert checkpoints == sorted(set(checkpoints))
    assert checkpoints[0] >= 1
    assert checkpoints[-1] == steps
    assert through in checkpoints
    assert len(checkpoints) < 40


def test_last_half_needs_two_running_means_at_the_figures_checkpoints():
    checkpoints = checkpoints_through(5_000, 150_000)
    assert min(y / x for x, y in zip(checkpoints[6:], checkpoints[8:], strict=False)) >= 2


def test_lowest_risk_skips_diverged_runs():
    problem = Problem(1.5, 2.0, 60)
    runs = [schedules.Power(c / problem.trace, 0.0) for c in (0.01, 0.3, 9.0)]
    risks = excess_risk(problem, runs, [], [10, 5000])
    assert lowest(risks.excess(0.0, "last"), risks.checkpoints, 10) == 1
    assert lowest(risks.excess(0.1, "last"), risks.checkpoints, 5000) in (0, 1)
    with pytest.raises(ValueError, match="diverged by update 5000"):
        lowest(risks.excess(0.1, "last")[2:], risks.checkpoints, 5000)


def figure_config(folder, **changes):
    settings = theory_figure.get_config()
    settings.update({"out_dir": str(folder), "steps": 400, "select_at": 100, **changes})
    return read(FigureConfig, settings.to_dict())


def test_figures_show_the_exact_risk(tmp_path):
    multipliers = (0.02, 0.1, 0.5, 10.0)
    config = figure_config(
        tmp_path / "out", capacity=(1.5,), dimension=300, multipliers=multipliers
    )
    files, table = make_figures(config, lambda fraction: None)
    assert len(table.rows) == 2 * 2 * 2  # noise, panels, schedules
    pictures = [f"synthetic_{noise}{x}.png" for noise in (0.1, 0.01) for x in ("", "_averages")]
    assert [file.name for file in files] == ["curves.csv", "figure.json", *pictures]
    assert all(file.stat().st_size > 1000 for file in files)
    figure = json.loads((tmp_path / "out" / "figure.json").read_text())
    assert figure["largest_relative_error"] < 1e-8
    assert len(figure["selected"]) == 2 * 2 * 2 * 8  # noise, panels, schedules, averages
    (selected,) = (
        row
        for row in figure["selected"]
        if (row["noise"], row["b"], row["schedule"]) == (0.01, 3.0, "inverse_sqrt")
        and row["average"] == "uniform"
    )
    problem = Problem(1.5, 3.0, 300)
    runs = [schedules.Power(c / problem.trace, 0.5) for c in multipliers]
    risks = excess_risk(problem, runs, [Uniform()], [100, 400]).excess(0.01, "uniform")
    best = int(np.argmin(risks[:, 0]))
    assert selected["multiplier"] == multipliers[best]
    assert selected["final_excess_risk"] == pytest.approx(risks[best, 1], rel=1e-9)
    lines = (tmp_path / "out" / "curves.csv").read_text().splitlines()
    start = f"0.01,1.5,3,inverse_sqrt,uniform,{multipliers[best]},400,"
    (line,) = (line for line in lines if line.startswith(start))
    assert line == f"{start}{selected['final_excess_risk']!r}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source_ratio": (0.5,)}, "b = 0.55"),
        ({"select_at": 500}, "select_at = 500"),
        ({"multipliers": (0.0,)}, "multipliers = 0.0"),
        ({"schedules": ("cosine",)}, "schedules = 'cosine'"),
        ({"capacity": (1.5, 1.5)}, "capacity = "),
    ],
    ids=str,
)
def test_invalid_settings_raise(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        figure_config(tmp_path, **changes)
