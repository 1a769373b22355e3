"""Results, selections and exhibits, against losses that a formula gave (`made.py`)."""

import csv
import dataclasses
import math
import pathlib
import statistics

import pytest
import synthetic_study

from anytime_jax.errors import InputError
from anytime_jax.study import plan, published, report_items
from anytime_jax.study.results import Results
from anytime_jax.study.selection import (
    Reading,
    best_at,
    closest,
    common,
    differences,
    envelope,
    gaps,
    on_edge,
)

STUDY = synthetic_study.study()
MULTIPLES = [1.0, 2.0, 4.0, 8.0]
PEAKS = synthetic_study.PEAKS


@pytest.fixture(scope="module", name="root")
def root_fixture(tmp_path_factory):
    return tmp_path_factory.mktemp("study") / "made"


@pytest.fixture(scope="module", name="results")
def results_fixture(root):
    return Results(synthetic_study.write_study(root))


def wanted(name, multiple, label, seed=0):
    return synthetic_study.loss(STUDY.run(name), multiple, label, seed)


def test_the_envelope_is_the_least_of_all_cosines_at_each_horizon(results):
    of = envelope(results)
    assert list(of) == MULTIPLES == results.multiples
    for m, line in of.items():
        each = [wanted(f"cosine-peak={p:g}-horizon={m:g}x", m, "last") for p in PEAKS]
        assert line.at("last")[m] == min(each)
        assert line.settings["floor"] == 0.1  # the cosines to 0 are not part of it
        assert line.seed == (0, 0)


def test_the_closest_line_has_the_least_mean_difference(results):
    of = envelope(results)
    line = closest(results.main("constant"), "f25", of)
    mean = {}
    for peak in PEAKS:
        each = [wanted(f"constant-peak={peak:g}", m, "f25") for m in MULTIPLES]
        cosine = [of[m].at("last")[m] for m in MULTIPLES]
        mean[peak] = statistics.fmean(x - c for x, c in zip(each, cosine, strict=True))
    assert line.settings["peak"] == min(mean, key=mean.get)
    found = statistics.fmean(differences(line, "f25", of).values())
    assert found == pytest.approx(min(mean.values()), abs=1e-12)


def test_runs_under_way_are_compared_on_what_all_of_them_have(tmp_path):
    """And the report says that this is provisional."""
    study = synthetic_study.write_study(tmp_path / "cut", leave_out=("constant-peak=0.01",))
    run = study.run("constant-peak=0.01")
    synthetic_study.write_run(run, run.run_dir, until=2)
    cut = Results(study)
    of = envelope(cut)
    assert common(cut.main("constant"), "f25", of) == [1.0, 2.0]
    mean = {p: sum(wanted(f"constant-peak={p:g}", m, "f25") for m in (1.0, 2.0)) for p in PEAKS}
    line = closest(cut.main("constant"), "f25", of)
    assert line.settings["peak"] == min(mean, key=mean.get)
    notes = report_items.make(cut, Reading())[0][0].notes
    assert notes[-1] == ("Provisional, as runs are under way: selected constant on 1x, 2x only.")


def test_a_run_that_is_to_be_short_is_not_the_closest(tmp_path):
    study = synthetic_study.study()
    short = study.run("constant-peak=0.01")
    short.config.stop = "2x"
    results = Results(synthetic_study.write_study(tmp_path / "short", planned=study))
    of = envelope(results)
    assert common(results.main("constant"), "f25", of) == MULTIPLES
    assert closest(results.main("constant"), "f25", of).settings["peak"] != 0.01


def test_the_best_at_each_budget(results):
    for m in MULTIPLES:
        each = {p: wanted(f"constant-peak={p:g}", m, "f25") for p in PEAKS}
        line = best_at(results.main("constant"), m, "f25")
        assert line.settings["peak"] == min(each, key=each.get)
    assert best_at(results.main("constant"), 16.0, "f25") is None


def test_branches_of_a_trunk_are_one_line(results):
    line = next(x for x in results.main("wsd") if x.settings["peak"] == 0.01)
    assert line.at("last") == {
        m: wanted(f"wsd-peak=0.01-horizon={m:g}x", m, "last") for m in MULTIPLES
    }


def test_noise_is_the_standard_error_over_seeds(results):
    of = envelope(results)
    line = next(x for x in results.main("constant") if x.settings["peak"] == 0.01)
    found = gaps(results, line, "f25", of)
    for m in MULTIPLES:
        peak = of[m].settings["peak"]
        names = [f"constant-peak=0.01{x}" for x in ("", "-seed=1")]
        first = wanted(names[0], m, "f25") - of[m].at("last")[m]
        if peak != 0.01:  # no second seed of that cosine in the study
            assert (found[m].seeds, found[m].mean) == (1, first)
            assert math.isnan(found[m].noise)
            continue
        cosine = wanted(f"cosine-peak=0.01-horizon={m:g}x-seed=1", m, "last", seed=1)
        second = wanted(names[1], m, "f25", seed=1) - cosine
        assert found[m].first == pytest.approx(first, abs=1e-12)
        assert found[m].mean == pytest.approx((first + second) / 2, abs=1e-12)
        assert found[m].others == pytest.approx(second, abs=1e-12)
        assert found[m].noise == pytest.approx(abs(first - second) / 2, abs=1e-12)
    assert {gap.seeds for gap in found.values()} >= {2}


def test_an_optimum_on_the_edge_is_seen(results):
    lines = {x.settings["peak"]: x for x in results.main("constant")}
    edges = {peak: on_edge(results, x, "f25", MULTIPLES) for peak, x in lines.items()}
    assert edges == {3e-3: ["peak"], 1e-2: [], 3e-2: ["peak"]}
    inverse = {(x.settings["peak"], x.settings["alpha"]): x for x in results.main("inverse_sqrt")}
    assert on_edge(results, inverse[1e-2, 1920.0], "f25", [1.0]) == ["alpha"]
    # No other alpha was tried there.
    assert on_edge(results, inverse[3e-3, 1920.0], "f25", [1.0]) == ["peak"]


def test_a_wider_grid_counts_where_it_was_run_alone(tmp_path):
    """A higher peak to 1x says nothing of the edge at 8x."""
    cut = ("cosine-peak=0.03-horizon=2x", "cosine-peak=0.03-horizon=8x")
    results = Results(synthetic_study.write_study(tmp_path / "s", leave_out=cut))
    line = next(x for x in results.main("cosine") if x.settings["peak"] == 0.01)
    found = {m: on_edge(results, line, "last", [m]) for m in MULTIPLES}
    assert found == {1.0: [], 2.0: ["peak"], 4.0: [], 8.0: ["peak"]}
    assert on_edge(results, line, "last", [4.0, 8.0]) == ["peak"]


def test_another_end_of_the_decay_is_found(results):
    line = next(x for x in results.main("cosine") if x.settings["peak"] == 0.01)
    (other,) = results.other_decays(line)
    assert other.settings["floor"] == 0.0
    for m, loss in other.at("last").items():
        assert loss - line.at("last")[m] == pytest.approx(-0.006, abs=1e-12)


def table_of(made_exhibits, stem):
    return next(x.table for x in made_exhibits if x.stem == stem)


def test_every_exhibit_is_made(results):
    found, left_out = report_items.make(results, Reading())
    assert left_out == []
    stems = [x.stem for x in found]
    assert stems == [
        "comparison", "best_at_each_budget", "cosine_transfer", "transfer", "alpha", "averages",
        "decay_ends", "settings_of_single_trajectories", "settings_at_each_budget", "runs",
    ]  # fmt: skip
    for exhibit in found:
        widths = {len(row) for row in exhibit.table}
        assert len(widths) == 1, exhibit.stem
        assert exhibit.title
        assert exhibit.caption
        tables_alone = exhibit.stem.startswith("settings") or exhibit.stem == "runs"
        assert (exhibit.figure is None) == tables_alone
    row = dict(zip(table_of(found, "alpha")[0], table_of(found, "alpha")[1], strict=True))
    assert row["alpha"] == "480"
    assert row["4x"] == f"{wanted('inverse_sqrt-peak=0.01-alpha=480', 4.0, 'f25'):.4f}"


def test_another_average_is_read_out(results):
    found, _ = report_items.make(results, Reading("f100"))
    rows = {row[0]: row[1:] for row in table_of(found, "comparison")}
    mean = {p: sum(wanted(f"constant-peak={p:g}", m, "f100") for m in MULTIPLES) for p in PEAKS}
    best = min(mean, key=mean.get)
    cells = [f"{wanted(f'constant-peak={best:g}', m, 'f100'):.4f}" for m in MULTIPLES]
    assert rows["constant + f100: loss, first seed"][:4] == cells


def test_wsd_is_the_best_branch_of_any_trunk_at_each_budget(results):
    rows = {
        row[0]: row[1:] for row in table_of(report_items.make(results, Reading())[0], "comparison")
    }
    for m, cell in zip(MULTIPLES, rows["WSD: loss, first seed"], strict=False):
        each = [wanted(f"wsd-peak={p:g}-horizon={m:g}x", m, "last") for p in PEAKS]
        assert cell == f"{min(each):.4f}"


def test_the_transfer_table_never_looks_back(results):
    found, _ = report_items.make(results, Reading())
    for kind, at, _, *cells in table_of(found, "transfer")[1:]:
        assert kind in ("constant", "1/√t")
        empty = [m for m, cell in zip(MULTIPLES, cells, strict=True) if not cell]
        assert empty == [m for m in MULTIPLES if m < float(at.rstrip("x"))]


def test_what_is_missing_is_named_and_the_rest_is_drawn(tmp_path):
    gone = ("cosine-peak=0.01-horizon=8x", "constant-peak=0.003")
    results = Results(synthetic_study.write_study(tmp_path / "s", leave_out=gone))
    found, left_out = report_items.make(results, Reading())
    assert left_out == []
    comparison = found[0]
    assert comparison.notes[0] == (
        "Not finished: cosine-peak=0.01-horizon=8x (not begun); constant-peak=0.003 (not begun)."
    )


def test_a_study_without_its_cosines_says_so(tmp_path):
    gone = [x.name for x in STUDY.runs if x.name.startswith("cosine")]
    results = Results(synthetic_study.write_study(tmp_path / "s", leave_out=gone))
    found, left_out = report_items.make(results, Reading())
    assert "the comparison: its runs are not in the study, or have no evaluation yet" in left_out
    assert "runs" in [x.stem for x in found]


def test_a_study_without_records_is_refused(tmp_path):
    study = synthetic_study.write_study(tmp_path / "s", leave_out=[x.name for x in STUDY.runs])
    with pytest.raises(InputError, match="has an evaluation yet: run it with"):
        Results(study)


def test_another_run_in_the_directory_is_refused(tmp_path):
    study = synthetic_study.write_study(tmp_path / "s")
    run = study.run("constant-peak=0.03")
    theirs = study.run("constant-peak=0.01").run_dir / "run.json"
    (run.run_dir / "run.json").write_text(theirs.read_text())
    with pytest.raises(InputError, match=r"another run than constant-peak=0\.03 .schedule\.p"):
        Results(study)
    (run.run_dir / "run.json").write_text("{")
    with pytest.raises(InputError, match="is damaged"):
        Results(study)


def test_unlike_data_are_refused(tmp_path):
    study = synthetic_study.write_study(tmp_path / "s")
    file = study.runs[3].run_dir / "run.json"
    file.write_text(
        file.read_text().replace('"data.fingerprint": "abc"', '"data.fingerprint": "x"')
    )
    with pytest.raises(InputError, match="were trained on unlike data"):
        Results(study)


def changed(name, change):
    """The study with one run more: a copy of one, changed."""
    study = synthetic_study.study()
    run = study.run(name)
    (copy,) = plan.runs("copy", run.config, [change], "made")
    return dataclasses.replace(
        study, runs=[*study.runs, dataclasses.replace(copy, trunk=run.trunk)]
    )


def test_two_runs_of_the_same_settings_are_refused(tmp_path):
    study = synthetic_study.write_study(
        tmp_path / "s", planned=changed("cosine-peak=0.01-horizon=4x", {})
    )
    with pytest.raises(InputError, match=r"cosine-peak=0\.01-horizon=4x and copy have the sam"):
        Results(study)


def test_a_branch_on_other_data_is_a_line_of_its_own(tmp_path):
    change = {"branch.data": "elsewhere"}
    study = synthetic_study.write_study(
        tmp_path / "s", planned=changed("wsd-peak=0.01-horizon=4x", change)
    )
    results = Results(study)
    assert [x.settings["data"] for x in results.lines if "data" in x.settings] == ["elsewhere"]
    assert len(results.main("wsd")) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"eval.tokens": 1024}, "its runs are validated on unlike text"),
        ({"batch_size": 64}, "its runs have 2 clocks"),
        ({"stop": "never"}, "run copy-stop=never: config.stop = 'never'"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(change, message, tmp_path):
    planned = changed("constant-peak=0.01", change)
    last = planned.runs[-1].name
    study = synthetic_study.write_study(tmp_path / "s", leave_out=[last], planned=planned)
    with pytest.raises(InputError, match=message):
        Results(study)


def test_a_run_without_settings_is_refused(tmp_path):
    study = synthetic_study.write_study(tmp_path / "s")
    broken = dataclasses.replace(study.runs[1], config={"run_dir": "x"})
    runs = [study.runs[0], broken]
    with pytest.raises(InputError, match="has no usable settings"):
        Results(dataclasses.replace(study, runs=runs))


def test_settings_that_are_words_are_shown(tmp_path):
    change = {"schedule.warmup": "96 steps"}
    study = synthetic_study.write_study(
        tmp_path / "s", planned=changed("constant-peak=0.01", change)
    )
    found, _ = report_items.make(Results(study), Reading())
    assert "warmup" in table_of(found, "settings_of_single_trajectories")[0]


def test_other_kinds_are_compared_too(tmp_path):
    given = synthetic_study.study().run("inverse_sqrt-peak=0.01-alpha=1920").config
    given.schedule = {**given.schedule.to_dict(), "kind": "power", "gamma": 0.3}
    study = synthetic_study.study()
    runs = [*study.runs, *plan.runs("power", given, [{}], "made")]
    results = Results(
        synthetic_study.write_study(tmp_path / "s", planned=dataclasses.replace(study, runs=runs))
    )
    comparison = report_items.make(results, Reading())[0][0]
    assert "power + f25: loss, first seed" in [row[0] for row in comparison.table]


def test_torn_lines_and_other_versions_are_said(tmp_path):
    study = synthetic_study.write_study(tmp_path / "s")
    torn = study.runs[0].run_dir / "records" / "0000.jsonl"
    torn.write_text(torn.read_text() + '{"step": 48')
    other = study.runs[1].run_dir / "records" / "0000.jsonl"
    other.write_text(other.read_text().replace('"version": "0.1.0"', '"version": "9.0"'))
    remarks = []
    results = Results(study, remarks.append)
    assert len([x for x in remarks if "its last line is torn" in x]) == 1
    assert len([x for x in remarks if "written by version 9.0" in x]) == 1
    assert all(x.is_finished for x in results.results)


def test_the_published_losses_are_the_papers():
    """Two of its numbers as the text and the tables print them, and their differences."""
    losses = published.losses()
    assert {k: len(v["cosine"]) for k, v in losses.items()} == {"150M": 6, "300M": 5}
    assert losses["150M"]["constant"][1.0] == pytest.approx(3.0259, abs=5e-5)
    assert losses["300M"]["wsd"][16.0] == pytest.approx(2.6296, abs=5e-5)
    found = published.differences("150M")
    assert found["inverse_sqrt"][32.0] == pytest.approx(0.0041, abs=5e-5)
    with published.FILE.open() as file:
        assert len(list(csv.DictReader(file))) == 11


def test_the_committed_study_is_what_its_records_say():
    """The tables in the docs can be made again from the records beside them."""
    folder = pathlib.Path(__file__).resolve().parents[2] / "docs" / "studies" / "laptop"
    found, _ = report_items.make(Results(plan.load(folder)), Reading())
    assert len(found) >= 9
    for exhibit in found:
        with (folder / f"{exhibit.stem}.csv").open(newline="", encoding="utf-8") as file:
            assert list(csv.reader(file)) == [list(row) for row in exhibit.table], exhibit.stem
