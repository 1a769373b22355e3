"""The report's door: a study's files and page, a packed copy, one run in progress, bad input."""

import csv
import dataclasses
import html.parser
import json
import re
import shutil

import pytest
import synthetic_study
from run_command import run_command

from anytime_jax.commands import report
from anytime_jax.study import html_page
from anytime_jax.study.report_item import Exhibit
from configs.studies import laptop


@pytest.fixture(scope="module", name="reported")
def reported_fixture(tmp_path_factory):
    """A study with a run missing, its report packed."""
    folder = tmp_path_factory.mktemp("reported")
    synthetic_study.write_study(folder / "study", leave_out=("constant-peak=0.03",))
    arguments = [f"--study={folder / 'study'}", f"--output={folder / 'out'}", "--pack"]
    assert run_command(report, [*arguments, "--published=150M"]) == 0
    return folder


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.links = [], []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_and_all_its_links_are_there(reported):
    out = reported / "out"
    text = (out / "index.html").read_text()
    parser = Page()
    parser.feed(text)
    assert parser.open == []
    files = {x for x in parser.links if not x.startswith("#")}
    assert len(files) > 20
    assert all((out / x).stat().st_size > 0 for x in files)
    anchors = {x[1:] for x in parser.links if x.startswith("#")}
    assert anchors == set(re.findall(r'id="(\w+)"', text))
    assert "Not finished: constant-peak=0.03 (not begun)." in text
    assert "http" not in text  # nothing is fetched


def test_a_page_clears_the_exhibits_of_the_last_one_and_nothing_else(tmp_path):
    kept, gone = (Exhibit(x, x, "", [["a"], ["1"]]) for x in ("kept", "gone"))
    html_page.write(tmp_path, "first", [], [kept, gone], [])
    (tmp_path / "mine.csv").write_text("a\n")
    html_page.write(tmp_path, "second", [], [kept], [])
    assert sorted(x.name for x in tmp_path.iterdir()) == ["index.html", "kept.csv", "mine.csv"]


def test_pictures_are_pictures_and_tables_are_tables(reported):
    out = reported / "out"
    pictures = sorted(x.stem for x in out.glob("*.png"))
    assert pictures == [
        "alpha", "averages", "best_at_each_budget", "comparison", "cosine_transfer", "decay_ends",
        "transfer",
    ]  # fmt: skip
    for stem in pictures:
        assert (out / f"{stem}.png").read_bytes().startswith(b"\x89PNG")
        assert (out / f"{stem}.pdf").read_bytes().startswith(b"%PDF")
    for file in out.glob("*.csv"):
        with file.open(newline="") as content:
            head, *rows = csv.reader(content)
        assert rows
        assert {len(row) for row in rows} == {len(head)}


@pytest.mark.slow
def test_a_packed_report_makes_itself_again(reported):
    again = reported / "again"
    arguments = [f"--study={reported / 'out'}", f"--output={again}", "--published=150M"]
    assert run_command(report, arguments) == 0
    for file in again.iterdir():
        assert file.read_bytes() == (reported / "out" / file.name).read_bytes(), file.name


def test_a_packed_report_knows_nothing_of_the_machine(reported):
    for file in (reported / "out").rglob("*"):
        if file.suffix in (".json", ".jsonl", ".csv", ".html"):
            assert str(reported) not in file.read_text(), file
    branch = json.loads((reported / "out/runs/wsd-peak=0.01-horizon=4x/run.json").read_text())
    assert branch["branch"]["from_run"] == "constant-peak=0.01"


@pytest.mark.slow
def test_a_report_is_made_anew_over_an_old_one(reported, tmp_path):
    """Neither old figures nor old records stay beside the new."""
    out = tmp_path / "out"
    arguments = [f"--study={reported / 'study'}", f"--output={out}", "--pack"]
    assert run_command(report, arguments) == 0
    old = out / "runs" / "constant-peak=0.01" / "records" / "0007.jsonl"
    old.write_text("{}")
    (out / "mine.txt").touch()
    assert run_command(report, arguments) == 0
    assert not old.exists()
    assert (out / "mine.txt").exists()
    shutil.rmtree(reported / "few", ignore_errors=True)
    few = synthetic_study.study()
    kept = [x for x in few.runs if x.name.startswith("constant")]
    synthetic_study.write_study(reported / "few", planned=dataclasses.replace(few, runs=kept))
    assert run_command(report, [f"--study={reported / 'few'}", f"--output={out}"]) == 0
    assert not list(out.glob("*.png"))
    (tmp_path / "used" / "runs").mkdir(parents=True)
    assert run_command(report, [*arguments[::2], f"--output={tmp_path / 'used'}"]) == 2


def error(capsys, *arguments):
    assert run_command(report, list(arguments)) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    return said


def test_bad_input(reported, tmp_path, capsys):
    study = f"--study={reported / 'study'}"
    assert "no run has it; they have last, f6.25" in error(capsys, study, "--average=f7")
    assert "is the study's own directory" in error(
        capsys, study, f"--output={reported / 'study'}", "--pack"
    )
    (tmp_path / "file").touch()
    assert "cannot be made" in error(capsys, study, f"--output={tmp_path / 'file'}")
    assert "written into" in error(capsys, study, "--output=/proc")
    assert "is no study (it has no study.json)" in error(capsys, f"--study={tmp_path}")
    assert "there is no such file" in error(capsys, f"--study={tmp_path / 'nothing.py'}")
    assert "is no run" in error(capsys, f"--run={tmp_path}")
    (tmp_path / "run.json").write_text("{}")
    assert "is damaged" in error(capsys, f"--run={tmp_path}")
    assert run_command(report, []) == 2


def test_a_study_that_has_not_begun(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file = laptop.__file__
    said = error(capsys, f"--study={file}")
    assert "it has not begun (there is no runs/studies/laptop): run it with python -m" in said


# One run


def test_one_run_in_progress(reported, tmp_path, capsys):
    run = reported / "study" / "constant-peak=0.01"
    assert run_command(report, [f"--run={run}"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "at 3,840 steps (8x, 15.7M tokens)" in said
    best = synthetic_study.loss(synthetic_study.study().run("constant-peak=0.01"), 8.0, "f25")
    live = synthetic_study.loss(synthetic_study.study().run("constant-peak=0.01"), 8.0, "last")
    assert f"the best average now is f25, {live - best:.4f} nats below the live weights" in said
    assert f"a stop now would give {best:.4f} nats with f25, as evaluated at 3,840 steps" in said
    assert "40K tokens/s; the next doubling in 6m 33s" in said
    assert (run / "curves.png").exists()


def test_a_run_with_nothing_to_show_yet(tmp_path, capsys):
    about = {"identity": {}, "name": "new", "config": synthetic_study.study().runs[0].settings}
    (tmp_path / "run.json").write_text(json.dumps(about))
    assert run_command(report, [f"--run={tmp_path}"]) == 0
    assert "new has written no record yet" in " ".join(capsys.readouterr().out.split())
    (tmp_path / "records").mkdir()
    rows = [{"format_version": 1, "from_step": 0}]
    rows.append({"step": 60, "tokens": 245760, "values": {"train/loss": 4.0, "lr": 1e-3}})
    (tmp_path / "records" / "0000.jsonl").write_text("".join(json.dumps(x) + "\n" for x in rows))
    assert run_command(report, [f"--run={tmp_path}"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "nothing was evaluated yet: eval.every says when" in said
    assert run_command(report, [f"--run={tmp_path}", "--watch=0"]) == 2
