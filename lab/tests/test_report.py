"""The report command: a study's page and files, its archive, one run, bad input."""

import dataclasses
import html.parser
import re
import shutil

import pytest
import synthetic_study
from run_command import run_command
from synthetic_run import RecordedRun
from synthetic_study import CLOCK

from anytime_jax.checkpoints import run_json
from anytime_jax.checkpoints.metric_records import RecordWriter
from anytime_jax.checkpoints.run_json import Evaluation, EvaluationChange
from anytime_jax.commands import loss_figure
from anytime_jax.formatting import format_count
from anytime_jax.tables import Table
from anytime_lab import report, run_comparison
from anytime_lab.forecast import forecast_subject
from anytime_lab.monitor import run_snapshot
from anytime_lab.studies import laptop
from anytime_lab.study import study_files
from anytime_lab.table_text import to_html


@pytest.fixture(scope="module", name="reported")
def reported_fixture(tmp_path_factory):
    """A study without one of its runs, and its packed report."""
    root = tmp_path_factory.mktemp("reported")
    study = synthetic_study.write_study(root / "study", leave_out=("constant-peak=0.03",))
    arguments = [f"--study={root / 'study'}", f"--output={root / 'out'}"]
    assert run_command(report, arguments) == 0
    study_files.pack(study, root / "out" / study_files.ARCHIVE)
    return root


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


def test_page_is_well_formed_and_its_links_exist(reported):
    out = reported / "out"
    text = (out / "index.html").read_text()
    page = Page()
    page.feed(text)
    assert page.open == []
    files = {link for link in page.links if not link.startswith("#")}
    assert len(files) > 15
    assert all((out / file).stat().st_size > 0 for file in files)
    anchors = {link[1:] for link in page.links if link.startswith("#")}
    assert anchors == set(re.findall(r'id="(\w+)"', text))
    assert "constant-peak=0.03 (missing)" in text
    assert "http" not in text  # loads nothing from elsewhere


@pytest.mark.slow
def test_packed_report_reproduces_itself(reported, tmp_path):
    arguments = [f"--study={reported / 'out'}", f"--output={tmp_path}", "--pdf"]
    assert run_command(report, arguments) == 0
    with study_files.open_study(reported / "out") as study:
        study_files.pack(study, tmp_path / study_files.ARCHIVE)
    for file in (reported / "out").iterdir():
        if file.name != "index.html":  # links to the PDF files
            assert (tmp_path / file.name).read_bytes() == file.read_bytes(), file.name
    pdfs = list(tmp_path.glob("*.pdf"))
    assert len(pdfs) == 7
    assert all(file.read_bytes().startswith(b"%PDF") for file in pdfs)


def test_report_replaces_the_files_of_an_earlier_one(reported, tmp_path):
    shutil.copytree(reported / "out", tmp_path / "out")
    (tmp_path / "out" / "records.tar.xz").unlink()
    (tmp_path / "out" / "mine.csv").touch()
    study = synthetic_study.make_study()
    few = [run for run in study.runs if run.name.startswith("constant")]
    synthetic_study.write_study(tmp_path / "few", study=dataclasses.replace(study, runs=few))
    arguments = [f"--study={tmp_path / 'few'}", f"--output={tmp_path / 'out'}"]
    assert run_command(report, arguments) == 0
    names = sorted(file.name for file in (tmp_path / "out").iterdir())
    assert names == ["index.html", "mine.csv", "runs.csv"]


def test_bad_input_is_named(reported, tmp_path, rejected, monkeypatch):
    study = f"--study={reported / 'study'}"
    (tmp_path / "file").touch()
    run = f"--run={reported / 'study' / 'constant-peak=0.01'}"
    for arguments in (
        (study, "--average=f7"),
        (study, f"--output={tmp_path / 'file'}"),
        (run, f"--output={tmp_path / 'file'}"),
    ):
        assert arguments[-1] in rejected(report, *arguments)
    (tmp_path / "run.json").write_text("{}")
    assert "run.json" in rejected(report, f"--run={tmp_path}")
    monkeypatch.chdir(tmp_path)
    assert "runs/studies/laptop" in rejected(report, f"--study={laptop.__file__}")


def test_report_of_a_run_has_the_shares_of_its_time(tmp_path, command):
    RecordedRun(tmp_path).add(60)
    about = {"started": "2026-01-01T00:00:00+00:00"}
    spent = {"updates": 3.0, "saving": 1.0}
    writer = RecordWriter(tmp_path, 60, about, seconds=lambda: spent)
    writer.write(120, CLOCK.tokens(120), {"lr": 1.0})
    writer.close()
    status, out, _ = command(report, f"--run={tmp_path}")
    assert status == 0
    assert "updates 75.0%, saving 25.0%, lost work 0.0%" in " ".join(out.split())


@pytest.mark.parametrize(
    ("module", "name"), [(loss_figure, "draw"), (forecast_subject, "open_run")]
)
def test_part_that_fails_is_a_line(module, name, tmp_path, command, monkeypatch):
    def fail(*arguments, **options):
        raise RuntimeError("defect")

    monkeypatch.setattr(module, name, fail)
    RecordedRun(tmp_path).add(60)
    status, out, _ = command(report, f"--run={tmp_path}")
    assert status == 0
    assert "RuntimeError: defect" in out
    assert "best weights" in out


def test_page_and_figures_of_a_run_go_into_the_output(reported, tmp_path, command):
    run = shutil.copytree(reported / "study" / "constant-peak=0.01", tmp_path / "run")
    before = sorted(file.name for file in run.iterdir())
    out = tmp_path / "new" / "out"
    assert command(report, f"--run={run}", f"--output={out}")[0] == 0
    assert {file.name for file in out.iterdir()} == {"curves.png", "report.html"}
    assert sorted(file.name for file in run.iterdir()) == before


@pytest.mark.usefixtures("quick_fits")
def test_page_of_a_run_is_well_formed_and_shows_what_is_printed(tmp_path, command):
    run = RecordedRun(tmp_path, name="<b>&").add(*range(60, 500, 30))
    with (run.run_dir / "records" / "0000.jsonl").open("a") as file:
        file.write("damage\n")
    assert command(report, f"--run={tmp_path}")[0] == 0
    text = (tmp_path / "report.html").read_text()
    page = Page()
    page.feed(text)
    assert page.open == []
    assert [link.partition("?")[0] for link in page.links] == ["curves.png", "forecast.png"]
    assert "http" not in text.replace("http-equiv", "")  # loads nothing from elsewhere
    assert "&lt;b&gt;&amp;" in text
    assert "480 steps (1x, 1.97M tokens)" in text
    assert "best weights: f100" in text
    assert "<td>480</td>" in text
    assert "±" in text
    assert "0000.jsonl" in text
    assert "refresh" not in text
    assert "<td>inverse_sqrt, at most " in text or "<td>constant, at most " in text
    assert "&quot;microbatches&quot;" in text  # with all settings, and with when it was made
    assert re.search(r"Written at \d{4}-\d\d-\d\d \d\d:\d\d UTC", text)
    assert "half of its weight in the last 1/25" in text


def test_page_is_written_again_until_ctrl_c(tmp_path, meanwhile, command):
    """At news, but not while it rests; the page reloads itself."""
    run, pages = RecordedRun(tmp_path).add(60), []

    def look(*steps):
        pages.append((tmp_path / "report.html").read_text())
        run.add(*steps)

    meanwhile(lambda: look(), lambda: look(120), lambda: look(), lambda: look())
    assert command(report, f"--run={tmp_path}", "--watch")[0] == 0
    assert 'http-equiv="refresh"' in pages[0]
    assert pages[0] == pages[1] != pages[2] == pages[3]
    assert "at 120 steps" in pages[2]


def test_tables_of_a_long_run_keep_its_doublings(tmp_path):
    first, other = (RecordedRun(tmp_path / x).add(*range(240, 9601, 240)) for x in "ab")
    runs = [run_snapshot.take(x.run_dir) for x in (first, other)]
    last_twelve = [*range(9600 - 11 * 240, 9601, 240)]
    steps = [480, 960, 1920, 3840, *last_twelve]
    (of_run,) = (x for x in run_snapshot.describe(runs[0]) if isinstance(x, Table))
    assert [row[1] for row in of_run.text()[1:]] == [f"{x:,}" for x in steps]
    _, live, _ = run_comparison.describe(runs)
    tokens = [format_count(CLOCK.tokens(step)) for step in steps]
    assert [row[0] for row in live.text()[1:]] == tokens


def test_several_runs_are_compared_after_equally_many_tokens(tmp_path, command):
    first = RecordedRun(tmp_path / "a", name="a").add(60, 120, 240)
    other = RecordedRun(tmp_path / "b", name="b").add(120, 180, 240, labels=("last", "f25"))
    runs = ["--run", first.run_dir, other.run_dir]
    status, out, err = command(report, *runs, f"--output={tmp_path / 'out'}")
    assert (status, err) == (0, "")
    assert {x.name for x in (tmp_path / "out").iterdir()} == {"compared.png", "report.html"}
    last, live, best = run_comparison.describe([run_snapshot.take(x) for x in runs[1:]])
    assert [row[0] for row in last.text()] == ["run", "a", "b"]
    assert last.text()[0][-5:] == ["f6.25", "f12.5", "f25", "f50", "f100"]
    assert last.text()[2][-5:] == ["", "", "-0.0200", "", ""]
    tokens = [format_count(CLOCK.tokens(step)) for step in (120, 240)]
    assert [row[0] for row in live.text()] == ["tokens", *tokens]
    assert live.text()[0][1:] == ["a", "b", "b minus a"]
    assert [row[3] for row in live.text()[1:]] == ["+0.0000"] * 2
    assert [row[3] for row in best.text()[1:]] == ["+0.0800"] * 2
    assert "other validation sets" not in out
    writer = RecordWriter(other.run_dir, None, {})
    writer.amend(240, CLOCK.tokens(240), {"eval/f25/kernel_error": 0.25})
    writer.close()
    assert "b: at its last evaluation, f25 (kernel error 25.00%)" in command(report, *runs)[1]
    best_line = run_snapshot.take(other.run_dir).describe_best()
    assert "best weights: f25 (kernel error 25.00%)" in best_line
    content = run_json.read_run_file(other.run_dir)
    first, now = (Evaluation(tokens, {"web": ("a", 1.0)}) for tokens in (128, 64))
    changes = (EvaluationChange(240, now),)
    content = dataclasses.replace(content, evaluated=first, evaluation_changes=changes)
    run_json.write_run_file(other.run_dir, content)
    assert "b: its losses are of other validation sets" in command(report, *runs)[1]
    page = (tmp_path / "out" / "report.html").read_text()
    assert all(to_html(table) in page for table in (last, live, best))
    assert "b minus a" in out


def test_runs_that_cannot_be_compared_are_refused(tmp_path, rejected, command):
    run, empty = RecordedRun(tmp_path / "a").add(60), RecordedRun(tmp_path / "b", name="b")
    assert "given twice" in rejected(report, "--run", run.run_dir, run.run_dir)
    assert "no evaluation yet" in rejected(report, "--run", run.run_dir, empty.run_dir)
    later = RecordedRun(tmp_path / "c").add(70)  # of the same name
    status, out, _ = command(report, "--run", run.run_dir, later.run_dir)
    assert status == 0
    assert "no run was evaluated after the same number of tokens" in " ".join(out.split())


def test_run_without_records_or_evaluations_or_a_forecast_has_a_page(tmp_path, command):
    run = RecordedRun(tmp_path)
    for step, words in ((60, "no record"), (120, "no evaluation"), (180, "too few")):
        status, out, _ = command(report, f"--run={tmp_path}")
        assert (status, words in out) == (0, True)
        run.add(step, evaluate=step > 60)


def test_page_that_cannot_be_written_is_a_failure(tmp_path, command):
    run = RecordedRun(tmp_path / "run").add(60)
    (run.run_dir / report.RUN_PAGE).mkdir()
    assert command(report, f"--run={run.run_dir}")[0] == 1


def test_refused_report_makes_no_output(tmp_path, rejected):
    run, output = RecordedRun(tmp_path / "run").add(60), tmp_path / "out"
    missing = f"--run={tmp_path / 'no'}"
    for sources in ([missing], [f"--run={run.run_dir}", missing]):
        assert "no" in rejected(report, *sources, f"--output={output}")
        assert not output.exists()
