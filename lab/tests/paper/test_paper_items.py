"""Report items: tables against the synthetic losses, missing runs, and the committed study."""

import dataclasses

import pytest
import synthetic_study
from paths import REPOSITORY
from synthetic_study import MULTIPLES, PEAKS, expected_loss, make_study, with_copy, write_study

from anytime_lab.paper.paper_items import ITEMS, make_items
from anytime_lab.study import plan, study_files
from anytime_lab.study.results import Results
from anytime_lab.table_text import to_csv

EVIDENCE = REPOSITORY / "lab" / "evidence"


@pytest.fixture(scope="module", name="items")
def items_fixture(results):
    items, skipped = make_items(results)
    assert skipped == []
    return items


def rows_of(table):
    return {row[0]: row[1:] for row in table.text()[1:]}


def test_every_item_is_made(items):
    assert list(items) == list(ITEMS)
    for name, item in items.items():
        assert (item.draw is None) == (name.startswith("settings") or name == "runs")
    header, first, *_ = items["alpha"].table.text()
    row = dict(zip(header, first, strict=True))
    assert row["alpha"] == "480"
    assert row["4x"] == f"{expected_loss('inverse_sqrt-peak=0.01-alpha=480', 4.0, 'f25'):.4f}"


def test_comparison_reads_out_another_average(results):
    rows = rows_of(make_items(Results(results.study, "f100"))[0]["comparison"].table)
    losses = {
        p: [expected_loss(f"constant-peak={p:g}", m, "f100") for m in MULTIPLES] for p in PEAKS
    }
    best = min(losses.values(), key=sum)
    assert rows["constant + f100: loss, first seed"][:4] == [f"{x:.4f}" for x in best]


def test_notes_name_unfinished_runs(tmp_path):
    missing = ("cosine-peak=0.01-horizon=8x", "constant-peak=0.003")
    study = write_study(tmp_path, leave_out=(*missing, "constant-peak=0.01"))
    run = study.run("constant-peak=0.01")
    synthetic_study.write_run(run, run.run_dir, until=2)
    items, skipped = make_items(Results(study))
    assert skipped == []
    first, *_, last = items["comparison"].notes
    assert all(f"{name} (missing)" in first for name in missing)
    assert "constant-peak=0.01 (at 2x)" in first
    assert "constant on 1x, 2x only" in last


def test_items_without_runs_are_skipped(tmp_path):
    cosines = [run.name for run in make_study().runs if run.name.startswith("cosine")]
    items, skipped = make_items(Results(write_study(tmp_path, leave_out=cosines)))
    assert "comparison" in skipped
    assert "runs" in items


def test_settings_may_be_words(tmp_path):
    study = with_copy("constant-peak=0.01", {"schedule.warmup": "96 steps"})
    items, _ = make_items(Results(write_study(tmp_path, study=study)))
    assert "warmup" in items["settings_of_single_trajectories"].table.text()[0]


def test_comparison_shows_other_kinds_of_schedule(tmp_path):
    study, config = make_study(), make_study().run("inverse_sqrt-peak=0.01-alpha=1920").config
    config.schedule = {**config.schedule.to_dict(), "kind": "power", "gamma": 0.3}
    study = dataclasses.replace(study, runs=[*study.runs, *plan.runs("power", config, [{}], "x")])
    items, _ = make_items(Results(write_study(tmp_path, study=study)))
    rows = rows_of(items["comparison"].table)
    assert "power + f25: loss, first seed" in rows


def test_committed_tables_follow_from_the_packed_records():
    directory = EVIDENCE / "laptop"
    with study_files.open_study(directory) as study:
        items, _ = make_items(Results(study))
    assert len(items) >= 9
    for name, item in items.items():
        committed = (directory / f"{name}.csv").read_bytes()
        assert committed == to_csv(item.table).encode("utf-8"), name
