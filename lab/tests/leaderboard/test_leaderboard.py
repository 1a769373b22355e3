"""Leaderboard of a made-up study whose losses are in this file."""

import csv
import dataclasses
import math
import shutil

import numpy as np
import pytest
import synthetic_study
from paths import REPOSITORY
from run_command import run_command
from scipy import stats

from anytime_jax.errors import InputError
from anytime_lab.leaderboard import (
    leaderboard,
    leaderboard_command,
    leaderboard_markdown,
)
from anytime_lab.leaderboard.leaderboard import Entry, crossing
from anytime_lab.optimizers import AMUSE, GPA, EMANesterov
from anytime_lab.study import study_files
from anytime_lab.study.plan import Study, chain, grid, paired, runs, values
from anytime_lab.study.results import Results
from anytime_lab.study.selection import Gap

EVIDENCE = REPOSITORY / "lab" / "evidence"

# By name of the run: losses at each multiple, of the live weights and of f25.
LOSSES = {
    "cosine-peak=0.01-horizon=1x": {1: (3.00, 2.99)},
    "cosine-peak=0.03-horizon=1x": {1: (3.10, 2.98)},
    "cosine-peak=0.01-horizon=2x": {1: (3.20, 3.20), 1.5: (2.80, 2.80), 2: (2.62, 2.58)},
    "cosine-peak=0.03-horizon=2x": {1: (3.20, 3.20), 1.5: (2.80, 2.80), 2: (2.60, 2.61)},
    "cosine-peak=0.01-horizon=1x-seed=1": {1: (3.02, 3.00)},
    "cosine-peak=0.01-horizon=1x-seed=2": {1: (3.01, 3.00)},
    "cosine-peak=0.03-horizon=2x-seed=1": {1: (3.20, 3.20), 1.5: (2.80, 2.80), 2: (2.63, 2.60)},
    "cosine-peak=0.03-horizon=2x-seed=2": {1: (3.20, 3.20), 1.5: (2.80, 2.80), 2: (2.59, 2.60)},
    # The worst gap is least with 0.01, the mean gap with 0.03; 0.1 is better and stops early.
    "muon-peak=0.01": {1: (2.95, 3.05), 1.5: (2.70, 2.60), 2: (2.55, 2.50)},
    "muon-peak=0.03": {1: (2.85, 3.20), 1.5: (2.70, 2.60), 2: (2.59, 2.40)},
    "muon-peak=0.1": {1: (2.50, 2.50)},
    "muon-peak=0.01-seed=1": {1: (2.99, 3.06), 1.5: (2.72, 2.60), 2: (2.57, 2.50)},
    "muon-peak=0.01-seed=2": {1: (2.97, 3.07), 1.5: (2.71, 2.60), 2: (2.56, 2.50)},
    "adamw-peak=0.01": {1: (3.50, 3.02)},
}
REFERENCE, FIRST = Entry("adamw", "cosine to 0.1", "last"), Entry("muon", "constant", "last")


def make_study():
    original = synthetic_study.make_study()
    cosine, constant = (
        original.run(name).config for name in ("cosine-peak=0.01-horizon=1x", "constant-peak=0.01")
    )
    muon = constant.copy_and_resolve_references()
    muon.optimizer.kind = "muon"
    muon.stop = "2x"
    peaks, horizons = values("schedule.peak", 0.01, 0.03), values("schedule.horizon", "1x", "2x")
    seeds = paired(values("seed", 1, 2), values("data.seed", 1, 2))
    root = synthetic_study.ROOT
    long = chain(peaks, grid(peaks[:1], seeds))
    short = muon.copy_and_resolve_references()
    short.stop = constant.stop = "1x"
    return Study(
        "made-up",
        root,
        chain(
            runs("cosine", cosine, grid(peaks, horizons), root),
            runs("cosine", cosine, grid(paired(peaks, horizons), seeds), root),
            runs("muon", muon, long, root),
            runs("muon", short, values("schedule.peak", 0.1), root),
            runs("adamw", constant, peaks[:1], root),
        ),
        "made-up losses.",
    )


def made_up_loss(run, multiple, label, seed=0):
    del seed  # it is in the name
    return LOSSES[run.name][multiple][label == "f25"]


def write_study(root, study, set_losses=synthetic_study.set_losses):
    """Writes the records of a study of the made-up losses; returns its directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synthetic_study, "MULTIPLES", [1.0, 1.5, 2.0])
        patch.setattr(synthetic_study, "FACTORS", {"last": 0, "f25": 1})
        patch.setattr(synthetic_study, "loss", made_up_loss)
        patch.setattr(synthetic_study, "set_losses", set_losses)
        synthetic_study.write_study(root, study=study)
    return root


@pytest.fixture(scope="module", name="root")
def root_fixture(tmp_path_factory):
    """The directory of the study, with its records."""
    return write_study(tmp_path_factory.mktemp("leaderboard") / "study", make_study())


@pytest.fixture(scope="module", name="results")
def results_fixture(root):
    with study_files.open_study(root) as study:
        return Results(study)


@pytest.fixture(scope="module", name="board")
def board_fixture(results):
    return leaderboard.make(results, {"muon": 1.25})


def find(standings, entry):
    (standing,) = (x for x in standings if x.entry == entry)
    return standing


def muon(board):
    """The standing of Muon's live weights."""
    return find(board.rest, FIRST)


def losses_of(*names, at, label=0):
    return [LOSSES[name][at][label] for name in names]


MUON = ("muon-peak=0.01", "muon-peak=0.01-seed=1", "muon-peak=0.01-seed=2")
COSINE_1X = tuple(f"cosine-peak=0.01-horizon=1x{x}" for x in ("", "-seed=1", "-seed=2"))
COSINE_2X = tuple(f"cosine-peak=0.03-horizon=2x{x}" for x in ("", "-seed=1", "-seed=2"))


def test_reference_is_the_cosine_tuned_at_each_multiple(board):
    reference = find(board.primary, REFERENCE)
    assert board.reference == REFERENCE
    assert board.multiples == [1.0, 2.0]
    assert reference.settings == "1x: η 0.01‡; 2x: η 0.03‡"
    assert (reference.worst, reference.mean, reference.tried) == (0.0, 0.0, 2)
    assert reference.fraction == pytest.approx(1.0)


def test_trajectory_has_the_least_worst_gap_of_those_trained_to_the_end(board):
    first = muon(board)
    assert first.settings == "η 0.01‡"
    assert first.tried == 3
    others = [x.settings for x in board.not_selected if x.entry == FIRST]
    assert others == ["η 0.03", "η 0.1"]


def test_gaps_and_their_errors_are_those_of_a_paired_t_test(board):
    for multiple, cosines in ((1, COSINE_1X), (2, COSINE_2X)):
        ours, theirs = losses_of(*MUON, at=multiple), losses_of(*cosines, at=multiple)
        test, gap = stats.ttest_rel(ours, theirs), muon(board).gaps[multiple]
        interval = test.confidence_interval()
        assert gap.seeds == 3
        assert gap.mean == pytest.approx((interval.low + interval.high) / 2)
        assert gap.mean / gap.stderr == pytest.approx(test.statistic)
        assert gap.half_width == pytest.approx((interval.high - interval.low) / 2)
    means = [-0.04, -0.14 / 3]
    assert muon(board).worst == pytest.approx(max(means))
    assert muon(board).mean == pytest.approx(np.mean(means))


@pytest.mark.parametrize(
    ("mean", "decision"),
    [(-0.02, "better"), (-0.014, "open"), (0.004, "equal"), (0.006, "open"), (0.02, "worse")],
)
def test_decision_is_what_the_whole_interval_says_of_the_margin(mean, decision):
    stderr = 0.005 / stats.t.ppf(0.975, 7)
    gap = Gap(mean, stderr, mean, 8)
    assert gap.half_width == pytest.approx(0.005)
    assert gap.decision == decision


def test_power_is_the_share_of_t_tests_that_find_the_margin():
    """Of simulated ones, up to four standard deviations of that share."""
    draws = np.random.default_rng(0).normal(0.01, 0.012, size=(20_000, 8))
    found = (stats.ttest_1samp(draws, 0, axis=1).pvalue < 0.05).mean()
    gap = Gap(0.0, 0.012 / math.sqrt(8), 0.0, 8)
    assert gap.power == pytest.approx(found, abs=4 * math.sqrt(0.25 / 20_000))
    assert Gap(0.0, 1e-5, 0.0, 4).power == pytest.approx(1)
    assert math.isnan(Gap(0.0, 0.0, 0.0, 1).power)


def test_gap_of_one_seed_has_no_interval(board):
    (other,) = (x for x in board.not_selected if x.entry == FIRST and x.settings == "η 0.03")
    assert other.gaps[1.0].seeds == 1
    assert other.gaps[1.0].mean == pytest.approx(-0.15)
    assert math.isnan(other.gaps[1.0].half_width)


def test_second_reference_is_tuned_for_its_average(board):
    # Of f25, the best peaks are 0.03 at 1x and 0.01 at 2x, of which there is one seed.
    gaps = muon(board).average_gaps
    assert gaps[1.0].mean == pytest.approx(2.95 - 2.98)
    assert gaps[2.0].mean == pytest.approx(2.55 - 2.58)
    assert muon(board).worst_to_average == pytest.approx(-0.03)
    averaged = find(board.primary, board.average_reference)
    assert averaged.worst_to_average == 0.0
    assert averaged.gaps[2.0].mean == pytest.approx(2.58 - 2.60)


def test_third_reference_is_the_cosine_of_the_same_optimizer(root):
    with study_files.open_study(root) as study:
        for run in study.runs:  # Muon's instead of AdamW's, where a second cosine is needed
            if "peak=0.03" in run.name and run.name.startswith("cosine"):
                run.config["optimizer"]["kind"] = "muon"
        board = leaderboard.make(Results(study))
    first = muon(board)
    assert board.reference == REFERENCE
    assert {m: gap.mean for m, gap in first.own_gaps.items()} == pytest.approx(
        {
            1.0: 2.95 - 3.10,
            2.0: np.mean([2.55 - 2.60, 2.57 - 2.63, 2.56 - 2.59]),
        }
    )
    assert first.own_gaps[2.0].seeds == 3
    assert first.worst_to_own == pytest.approx(-0.14 / 3)
    adamw = find(board.rest, Entry("adamw", "constant", "f25"))
    # Its average is compared with the cosine's average.
    assert adamw.own_gaps[1.0].mean == pytest.approx(3.02 - 2.99)


SETS = {"chosen": 1, "b": 0, "c": 0, "d": 0, "e": 0}


@pytest.fixture(name="open_with_sets")
def open_with_sets_fixture(tmp_path):
    """Opens the study with one set that selects settings and four that are reported."""

    def open_study(set_losses):
        study = make_study()
        for run in study.runs:
            run.config.eval.sets = {name: f"data/{name}" for name in SETS}
            run.config.eval.weights = {name: float(x) for name, x in SETS.items()}
        with study_files.open_study(write_study(tmp_path / "study", study, set_losses)) as opened:
            return Results(opened)

    return open_study


@pytest.fixture(name="with_sets")
def with_sets_fixture(open_with_sets):
    return open_with_sets(made_up_set_losses)


def made_up_set_losses(run, multiple, label, seed):
    """Losses that differ by set and, of Muon, by how much it gains there."""
    del seed
    loss = made_up_loss(run, multiple, label)
    gain = {"b": 0.5, "c": 0.1, "d": 0.2, "e": 0.4} if run.name.startswith("muon") else {}
    return {name: loss + i / 7 - gain.get(name, 0) for i, name in enumerate(SETS)}


def test_gaps_are_over_reported_sets_and_over_seeds_that_did_not_select(with_sets):
    assert with_sets.reported_sets == ("b", "c", "d", "e")
    board = leaderboard.make(with_sets)
    gap = muon(board).gaps[1.0]
    of_seeds = [2.99 - 3.02 - 0.3, 2.97 - 3.01 - 0.3]
    assert gap.seeds == 2
    assert gap.mean == pytest.approx(np.mean(of_seeds))
    assert gap.stderr == pytest.approx(stats.sem(of_seeds))
    assert gap.stderr_of_sets == pytest.approx(stats.sem([0.5, 0.1, 0.2, 0.4]), rel=0.05)
    wide = stats.t.ppf(0.975, 3) * gap.stderr_of_sets
    assert gap.half_width == pytest.approx(max(wide, stats.t.ppf(0.975, 1) * gap.stderr))


def test_sets_of_equal_weights_are_all_reported_with_every_seed(tmp_path):
    study = make_study()
    for run in study.runs:
        run.config.eval.sets = {name: f"data/{name}" for name in SETS}
    root = write_study(tmp_path / "study", study, made_up_set_losses)
    with study_files.open_study(root) as opened:
        results = Results(opened)
    assert results.reported_sets == tuple(SETS)
    gap = muon(leaderboard.make(results)).gaps[1.0]
    gains = [0, 0.5, 0.1, 0.2, 0.4]
    assert gap.seeds == gap.reported_seeds == 3
    assert gap.mean == pytest.approx(-0.04 - np.mean(gains))
    assert gap.stderr_of_sets == pytest.approx(stats.sem(gains), rel=0.05)


def test_gaps_at_ranges_of_positions(tmp_path, monkeypatch):
    """Muon gains at late positions alone."""
    parts = {"1_to_8": lambda loss: 3.0, "9_to_16": lambda loss: loss}
    monkeypatch.setattr(
        synthetic_study, "position_losses", lambda loss: {x: f(loss) for x, f in parts.items()}
    )
    root = write_study(tmp_path / "study", make_study())
    with study_files.open_study(root) as opened:
        results = Results(opened)
    board, page = leaderboard.make(results), tmp_path / "page.md"
    assert results.position_metrics == ["loss_1_to_8", "loss_9_to_16"]
    early, late = muon(board).position_gaps.values()
    assert (early.mean, late.mean) == (0.0, pytest.approx(-0.14 / 3))
    leaderboard_markdown.write(page, results, board)
    assert "| optimizer | schedule | read-out | 1 to 8 | 9 to 16 |" in page.read_text()


def test_rows_of_the_seed_that_selected_come_last(with_sets):
    def is_kept(run):
        return not run.name.startswith("muon") or "seed" not in run.name

    study = with_sets.study
    few = dataclasses.replace(study, runs=[x for x in study.runs if is_kept(x)])
    best = leaderboard.make(Results(few)).primary
    names = [(x.entry.optimizer, x.seeds) for x in best]
    assert names == [("adamw", 2), ("muon", 0), ("adamw", 0)]
    assert best[1].worst < best[2].worst < best[0].worst == 0


def test_evaluation_without_a_reported_set_does_not_count(open_with_sets):
    def lacking(run, multiple, label, seed):
        losses = made_up_set_losses(run, multiple, label, seed)
        if run.name == "muon-peak=0.01" and multiple == 1:
            del losses["d"]
        return losses

    board = leaderboard.make(open_with_sets(lacking))
    assert muon(board).settings == "η 0.03‡"  # the only one with a loss at 1x and 2x


def test_runs_with_other_reported_sets_are_not_compared(tmp_path):
    study = make_study()
    for i, run in enumerate(study.runs):
        run.config.eval.sets = {"chosen": "a", f"other{i == 3}": "b"}
        run.config.eval.weights = {"chosen": 1.0}
    root = write_study(tmp_path / "study", study)
    with study_files.open_study(root) as opened, pytest.raises(InputError, match="weight 0"):
        Results(opened)


def test_tokens_to_the_last_loss_of_the_reference_are_interpolated_in_their_log(board):
    losses = [np.mean(losses_of(*MUON, at=m)) for m in (1, 1.5, 2)]
    target = np.mean(losses_of(*COSINE_2X, at=2))
    multiple = np.exp(np.interp(-target, -np.array(losses), np.log([1, 1.5, 2])))
    assert muon(board).fraction == pytest.approx(multiple / 2)
    assert crossing({1.0: 3.0, 2.0: 2.0}, 1.9) == math.inf
    assert crossing({1.0: 3.0, 2.0: 2.0}, 3.5) == 1.0


def test_entry_not_trained_to_the_end_is_among_the_rest(board):
    unfinished = find(board.rest, Entry("adamw", "constant", "f25"))
    assert not unfinished.selected
    assert unfinished.gaps.keys() == {1.0}
    assert unfinished.gaps[1.0].mean == pytest.approx(3.02 - 3.00)
    assert math.isnan(unfinished.worst)
    assert math.isnan(unfinished.fraction)


def test_schedule_is_named_with_words_that_are_not_defaults(root):
    with study_files.open_study(root) as study:
        *others, adamw = study.runs
        adamw = dataclasses.replace(adamw, note="an old run")
        adamw.config["batch_growth"] = [["1.5x", 64]]
        board = leaderboard.make(Results(dataclasses.replace(study, runs=[*others, adamw])))
    schedules = {x.entry.schedule for x in (*board.primary, *board.rest)}
    words = 'constant, batch_growth [["1.5x", 64]] (an old run)'
    assert schedules == {"cosine to 0.1", "constant", words}


def test_warmups_are_entries_of_their_own(tmp_path):
    """A study that only reports, as the leaderboard does, must not select one by its losses."""
    study = make_study()
    for run in study.runs:
        run.config.eval.sets = {name: f"data/{name}" for name in SETS}
    study.run("muon-peak=0.03").config["schedule"]["warmup"] = "48 steps"
    root = write_study(tmp_path / "study", study, made_up_set_losses)
    with study_files.open_study(root) as opened:
        board = leaderboard.make(Results(opened))
    warmups = {x.entry.schedule: x.settings for x in board.primary if x.entry.read_out == "f25"}
    assert warmups["constant, warmup 48 steps"] == "η 0.03"
    assert warmups["constant"] == "η 0.01‡"  # the reference's warmup is not named
    assert board.reference == REFERENCE


def test_optimizer_that_is_named_by_its_class():
    assert leaderboard.optimizer_name(EMANesterov(matrices="muon")) == "ema_nesterov_muon"
    assert leaderboard.optimizer_name(GPA(x_average="f25")) == "gpa, x_average f25"
    assert leaderboard.optimizer_name(AMUSE()) == "amuse"
    masked = EMANesterov(matrices="muon", decay_mask="matrices")
    assert leaderboard.optimizer_name(masked) == "ema_nesterov_muon, decay_mask matrices"
    shared = {"decay_mask": "matrices"}  # by all optimizers of the study
    assert leaderboard.optimizer_name(masked, shared) == "ema_nesterov_muon"


def test_memory_is_the_optimizer_state_and_the_average(board, results):
    adamw = find(board.primary, REFERENCE)
    assert adamw.copies == pytest.approx(2, abs=1e-3)
    assert find(board.primary, board.average_reference).copies == adamw.copies + 1
    model = results.configs["muon-peak=0.01"].model
    matrices = model.layers * (4 * model.width**2 + 3 * model.width * model.mlp_width)
    others = 2 * model.embedding_rows * model.width
    expected = (matrices + 2 * others) / (matrices + others)
    assert muon(board).copies == pytest.approx(expected, rel=1e-2)
    assert (adamw.time, muon(board).time) == (1.0, 1.25)


def test_page_and_table_have_the_gaps_with_their_errors(results, board, tmp_path):
    page = tmp_path / "page.md"
    leaderboard_markdown.write(page, results, board)
    widths = (f"{muon(board).gaps[m].half_width:.4f}" for m in (1.0, 2.0))
    gaps = "-0.0400 ± {}, better | -0.0467 ± {} |".format(*widths)
    row = f"| muon | constant | last | η 0.01‡ | 3 | {gaps}"
    assert row in page.read_text()
    with page.with_suffix(".csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(board.primary) + len(board.rest) + len(board.not_selected)
    at = len(board.primary) + board.rest.index(muon(board))
    assert rows[at]["half_width_95_1x"] == f"{muon(board).gaps[1.0].half_width:.6f}"


def test_command_writes_the_page_and_nothing_else(root, tmp_path, capsys):
    times = tmp_path / "times.json"
    times.write_text('{"rows": [{"optimizer": "muon", "times_adamw": 1.25}]}')
    page = tmp_path / "new" / "page.md"
    arguments = [f"--study={root}", f"--page={page}", f"--times={times}"]
    assert run_command(leaderboard_command, arguments) == 0
    assert sorted(x.name for x in page.parent.iterdir()) == ["page.csv", "page.md"]
    assert "| 1.25 |" in page.read_text()
    assert not (root / "report").exists()
    times.write_text("{}")
    assert run_command(leaderboard_command, arguments) == 2
    assert "--times" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "study"),
    [
        pytest.param("leaderboard", "leaderboard", marks=pytest.mark.slow),
        pytest.param("first_leaderboard", "rivals", marks=pytest.mark.slow),
        ("first_leaderboard_4x", "rivals_4x"),
    ],
)
def test_pages_and_tables_have_what_the_packed_records_say(name, study, tmp_path):
    page = tmp_path / f"{name}.md"
    page.write_text("<!-- leaderboard -->\n<!-- end -->\n")
    if name == "leaderboard":
        shutil.copy(EVIDENCE / page.name, page)
    argv = [f"--study={EVIDENCE / study}", f"--page={page}"]
    if name != "first_leaderboard_4x":
        argv.append(f"--times={EVIDENCE / 'rivals' / 'optimizers.json'}")
    assert run_command(leaderboard_command, argv) == 0
    for file in [page, page.with_suffix(".csv")][name != "leaderboard" :]:
        assert file.read_text("utf-8") == (EVIDENCE / file.name).read_text("utf-8")


def test_study_without_cosines_is_rejected(root):
    with study_files.open_study(root) as study:
        few = Study("few", study.root, [x for x in study.runs if x.name.startswith("muon")])
    with pytest.raises(InputError, match="few"):
        leaderboard.make(Results(few))


def test_report_compares_schedules_of_one_optimizer(results):
    assert {x.settings["optimizer"] for x in results.comparable_curves("constant")} == {"muon"}
    families = {x[0].settings["optimizer"]: len(x) for x in results.families("constant")}
    assert families == {"muon": 3, "adamw": 1}
