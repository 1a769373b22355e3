"""The theory bench from the outside: proven rates, sweeps, comparisons, figures, its command."""

import csv
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from anytime_jax import schedules
from anytime_jax.averaging import Uniform
from anytime_jax.commands import theory_commands
from anytime_jax.config.fields import read
from anytime_jax.theory import parallel, rates, synthetic_figures
from anytime_jax.theory.comparison import AVERAGES, ENVELOPE, GRID, advise, compare
from anytime_jax.theory.risk import excess_risk
from anytime_jax.theory.spectrum import Problem
from configs import theory_figure

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


def quiet(done):
    del done


# What is proven


def test_gamma_star():
    assert rates.gamma_star(1.5, 3.0) == 0.5
    assert rates.gamma_star(1.5, 2.0) == 0.25
    assert rates.gamma_star(1.5, 1.2) == 0  # b <= a
    assert rates.gamma_star(1.5, 9.0) == 0.5  # b > 2a
    with pytest.raises(ValueError, match="a = 1"):
        rates.gamma_star(1.0, 2.0)


@pytest.mark.parametrize(("a", "b"), [(1.1, 1.4), (1.5, 2.5), (1.9, 3.8), (3.0, 3.1)])
def test_gamma_star_is_the_best_exponent_and_gives_the_minimax_rate(a, b):
    star = rates.gamma_star(a, b)
    best = rates.power_law_exponent(a, b, star)
    assert best == pytest.approx(1 - 1 / b)
    grid = np.linspace(0, 0.99, 100)
    assert max(rates.power_law_exponent(a, b, gamma) for gamma in grid) <= best + 1e-12
    for rate in rates.RATES[1:]:
        assert rate.holds(a, b)
        assert rate.exponent(a, b) == pytest.approx(1 - 1 / b)


def test_the_terms_of_the_bound():
    problem, eta, gamma, steps, noise = Problem(1.5, 2.5, 4000), 0.3, 0.4, 20_000, 0.2
    bound = rates.theorem_1(problem, eta, gamma, steps, noise)
    index = np.arange(1, 4001.0)
    lambdas, target = index**-1.5, index**-1.0
    k = int((lambdas >= math.log(steps) / (eta * steps ** (1 - gamma))).sum())
    assert bound.k_star == k
    assert k > 3
    head, tail = lambdas[:k], lambdas[k:]
    terms = [
        (head * target[:k]).sum() / steps,
        (tail * target[k:]).sum(),
        k * noise / steps,
        noise * (eta**2 * tail**2 * steps ** (1 - 2 * gamma)).sum(),
        noise * (eta * tail * steps**-gamma).sum(),
    ]
    found = [
        bound.bias_head, bound.bias_tail, bound.variance_head,
        bound.variance_square, bound.variance_linear,
    ]  # fmt: skip
    np.testing.assert_allclose(found, terms, rtol=1e-12)
    assert bound.total == pytest.approx(sum(terms))


def test_a_bound_with_no_coordinate_learned():
    assert rates.theorem_1(Problem(1.5, 2.5), 0.01, 0.5, 10, 0.1).k_star == 0


def test_a_fitted_exponent():
    steps = np.array([10, 100, 1000])
    assert rates.fitted_exponent(steps, 3.0 * steps**-0.7) == pytest.approx(0.7)
    assert math.isnan(rates.fitted_exponent(steps, np.array([1.0, np.inf, np.inf])))


# Sweeps


@pytest.mark.parametrize(
    ("steps", "through"),
    [(150_000, 5_000), (150_000, 149_999), (150_000, 110_000), (100, 100), (10, 1), (7, 6)],
)
def test_lengths_rise_and_pass_where_they_should(steps, through):
    found = parallel.lengths(steps, through)
    assert found == sorted(set(found))
    assert found[0] >= 1
    assert found[-1] == steps
    assert through in found
    assert len(found) < 40


def test_the_last_half_needs_two_columns_at_the_figure_lengths():
    lengths = parallel.lengths(150_000, 5_000)
    assert min(y / x for x, y in zip(lengths[6:], lengths[8:], strict=False)) >= 2


def test_the_best_of_a_sweep():
    problem = Problem(1.5, 2.0, 60)
    given = [schedules.Power(c / problem.trace, 0.0) for c in (0.01, 0.3, 9.0)]
    risks = excess_risk(problem, given, [], [10, 5000])
    assert parallel.best(risks, 0.0, "last", 10) == 1
    assert parallel.best(risks, 0.1, "last", 5000) in (0, 1)
    lost = excess_risk(problem, given[2:], [], [5000])
    with pytest.raises(ValueError, match="every run of the sweep has diverged by update 5000"):
        parallel.best(lost, 0.1, "last", 5000)


def test_tasks_in_parallel_report_and_fail_together():
    told = []
    tasks = [lambda report, k=k: (report(1.0), k)[1] for k in range(3)]
    assert parallel.in_parallel(tasks, [1.0, 2.0, 3.0], told.append) == [0, 1, 2]
    assert told[-1] == 1

    def forever(report):
        while True:
            time.sleep(0.01)
            report(0.5)

    def fail(report):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        parallel.in_parallel([forever, fail], [1.0, 1.0], quiet)


# Cosine against anytime runs


@pytest.fixture(scope="module")
def comparison():
    # So many coordinates are few nodes: four times as fast as infinitely many.
    return compare(Problem(1.5, 2.5, 500), steps=800, doublings=2, report=quiet)


def test_a_comparison_holds_every_run(comparison):
    assert comparison.lengths == (200, 400, 800)
    assert {family.gamma for family in comparison.families} == {0.0, 0.5, 0.4}
    runs = comparison.runs(0.1)
    assert len({(run.family, run.multiplier, run.average) for run in runs}) == len(runs)
    assert len(runs) <= len(comparison.families) * len(GRID) * (len(AVERAGES) + 1)
    assert comparison.error < 1e-8


def test_gaps_are_relative_to_the_cosine_tuned_at_each_length(comparison):
    run = comparison.best(0.1)
    problem = comparison.problem
    for at, length in list(enumerate(comparison.lengths))[::2]:
        cosines = [schedules.FixedHorizon(c / problem.trace, length, floor=0.1) for c in GRID]
        envelope = excess_risk(problem, cosines, [], [length]).excess(0.1, "last").min()
        assert comparison.tuned(ENVELOPE, 0.1)[0][at] == pytest.approx(envelope, rel=1e-9)
        schedule = run.family.schedule(run.multiplier / problem.trace)
        risks = excess_risk(problem, [schedule], AVERAGES, [length])
        found = risks.excess(0.1, run.average)[0, 0]
        assert run.gaps[at] == pytest.approx(found / envelope - 1, rel=1e-7)


def key(run):
    return run.family, run.multiplier, run.average


def test_the_best_run_has_the_smallest_mean_gap(comparison):
    means = [np.log1p(run.gaps).mean() for run in comparison.runs(0.1)]
    assert np.log1p(comparison.best(0.1).gaps).mean() == min(means)


def test_advice_is_the_best_run_and_an_early_length(comparison):
    advice = advise(comparison, 0.1)
    assert key(advice.run) == key(comparison.best(0.1))
    assert advice.tune_at in comparison.lengths
    at = comparison.lengths.index(advice.tune_at)
    later = [
        run.gaps[at:].max()
        for run in comparison.runs(0.1)
        if (run.family, run.average) == (advice.run.family, advice.run.average)
    ]
    assert advice.tuned.gaps[at:].max() <= min(later) + 0.02
    assert advice.tuned.gaps[at] == min(
        run.gaps[at]
        for run in comparison.runs(0.1)
        if (run.family, run.average) == (advice.run.family, advice.run.average)
    )


# The figures


def figure_config(folder, **changes):
    given = theory_figure.get_config()
    given.update({"out_dir": str(folder), "steps": 400, "select_at": 100, **changes})
    return read(synthetic_figures.FigureConfig, given.to_dict())


def test_the_figures_are_the_exact_risk(tmp_path):
    few = {"capacity": (1.5,), "dimension": 300, "multipliers": (0.02, 0.1, 0.5, 10.0)}
    config = figure_config(tmp_path / "out", **few)
    files, _ = synthetic_figures.make(config, quiet)
    assert sorted(file.name for file in files) == sorted(
        ["curves.csv", "figure.json"]
        + [f"synthetic_{noise}{what}.png" for noise in (0.1, 0.01) for what in ("", "_averages")]
    )
    assert all(file.stat().st_size > 1000 for file in files)
    with (tmp_path / "out" / "curves.csv").open() as file:
        rows = list(csv.DictReader(file))
    told = json.loads((tmp_path / "out" / "figure.json").read_text())
    assert told["largest_relative_error"] < 1e-8
    assert len(told["selected"]) == 2 * 2 * 2 * 8  # noise, panels, schedules, averages
    picked = next(
        x
        for x in told["selected"]
        if (x["noise"], x["a"], x["b"], x["schedule"], x["average"])
        == (0.01, 1.5, 3.0, "inverse_sqrt", "uniform")
    )
    problem = Problem(1.5, 3.0, 300)
    given = [schedules.Power(c / problem.trace, 0.5) for c in (0.02, 0.1, 0.5, 10.0)]
    risks = excess_risk(problem, given, [Uniform()], [100, 400]).excess(0.01, "uniform")
    best = int(np.argmin(risks[:, 0]))
    assert picked["multiplier"] == (0.02, 0.1, 0.5, 10.0)[best]
    assert picked["final_excess_risk"] == pytest.approx(risks[best, 1], rel=1e-9)
    last = [
        float(row["excess_risk"])
        for row in rows
        if (row["noise"], row["a"], row["b"], row["schedule"], row["average"], row["steps"])
        == ("0.01", "1.5", "3", "inverse_sqrt", "uniform", "400")
    ]
    assert last == [picked["final_excess_risk"]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"capacity": (1.0,)}, r"a = 1\.0"),
        ({"source_ratio": (0.5,)}, r"b = 0\.55"),
        ({"noise": (-0.1,)}, r"noise = -0\.1"),
        ({"noise": ()}, "one value or more"),
        ({"select_at": 500}, "select_at = 500 .* at most steps = 400"),
        ({"multipliers": (0.0,)}, r"multipliers = 0\.0"),
        ({"schedules": ("cosine",)}, "schedules = 'cosine' .* one of constant, inverse_sqrt"),
        ({"last_fraction": 2.0}, r"fraction = 2\.0"),
        ({"out_dir": "~/x"}, "out_dir"),
        ({"capacity": ("x",)}, "capacity = 'x'"),
        ({"capacity": (1.5, 1.5)}, "values that differ"),
        ({"windows": ("x",)}, "averaging rule = 'x'"),
    ],
    ids=str,
)
def test_a_bad_setting_is_named(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        figure_config(changes.pop("out_dir", tmp_path), **changes)


# The command


def bench(*arguments, **options):
    command = [sys.executable, "-m", "anytime_jax", "theory", *arguments]
    env = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False, **options)


def run(capsys, *arguments):
    """Runs a command in this process; its exit status and what it printed."""
    from rich.console import Console

    console = Console(width=200, highlight=False, soft_wrap=True)

    class Progress:
        def __init__(self, *unused):
            pass

        def __enter__(self):
            return quiet

        def __exit__(self, *unused):
            pass

    status = theory_commands.run(arguments, console, Progress)
    return status, capsys.readouterr().out


def test_every_command_answers(capsys, tmp_path, monkeypatch):
    problem = ("--a=1.5", "--b=2.5", "--noise=0.1")
    short = ("--steps=400", "--doublings=1", "--dimension=100", f"--output={tmp_path}")
    status, out = run(capsys, "advise", *problem, *short)
    assert status == 0
    for words in ("gamma = ", "tune the peak at", "one run: constant", "WSD to 0", "Limits: "):
        assert words in out
    told = json.loads((tmp_path / "compare.json").read_text())
    assert told["lengths"] == [200, 400]
    assert (tmp_path / "compare.png").stat().st_size > 1000
    status, out = run(capsys, "bound", *problem, "--steps=1000")
    assert status == 0
    assert "bound/exact" in out
    monkeypatch.setattr(theory_commands, "_GRID", theory_commands._GRID[2:4])  # of seven
    status, out = run(capsys, "rates", "--steps=1600")
    assert status == 0
    assert "1/t^gamma*" in out


def test_bad_input_is_one_line_and_status_2(tmp_path):
    for arguments, words in (
        (["compare", "--a=1", "--b=2"], "a = 1.0 is not allowed"),
        (["--config=configs/theory_figure.py", "--config.stepz=1"], "did you mean steps?"),
    ):
        done = bench(*arguments, cwd=REPOSITORY)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("error: ")
        assert len(done.stderr.splitlines()) == 1
        assert words in done.stderr


@pytest.mark.slow
def test_ctrl_c_ends_it_and_leaves_nothing(tmp_path):
    command = [sys.executable, "-m", "anytime_jax", "theory", "--config=configs/theory_figure.py"]
    env = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    process = subprocess.Popen(
        [*command, f"--config.out_dir={tmp_path / 'out'}"],
        cwd=REPOSITORY,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(10)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "interrupted: no file is left half-written" in out
    assert "Traceback" not in err
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "--a=1.5", "--b=2", "--steps=500"], "starts at 15 updates"),
        (["compare", "--a=1.5", "--b=2", "--doublings=1e6"], "starts at 0 updates"),
        (["compare", "--a=1.5", "--b=2", "--noise=1,-2"], "noise = -2.0"),
        (["advise", "--a=nan", "--b=2"], "a = nan"),
        (["advise", "--a=1.5", "--b=2", "--output=/proc/x"], "cannot be written to"),
        (["bound", "--a=1.5", "--b=3", "--gamma=0.7"], "from 0 to 1/2"),
        (["bound", "--a=1.5", "--b=3", "--steps=2e9"], "steps = 2000000000"),
        (["rates", "--steps=10"], "steps = 10"),
    ],
    ids=" ".join,
)
def test_bad_options_are_named(capsys, arguments, message):
    with pytest.raises(ValueError, match=message):
        run(capsys, *arguments)


def test_a_risk_of_nothing_is_no_envelope(capsys):
    with pytest.raises(ValueError, match="gaps relative to them mean nothing"):
        run(
            capsys, "advise", "--a=1.5", "--b=3", "--noise=0", "--dimension=1",
            "--steps=3200", "--doublings=2",
        )  # fmt: skip
