"""Draw the figures and tables of a study, or the curves of one run or several.

Everything is computed from records. The report of a study goes into STUDY/report, or --output:
every figure as PNG, every table as CSV, and `index.html` with all of them. The report names
unfinished runs and is made from the others. Packed records (sweep --pack) are enough: --study=DIR.

The report of a run is printed, and written as the page `report.html` with two figures into its
directory, or --output: its losses and their forecast; the command `forecast` says more about the
latter. With --watch, the report is written again as records come, until Ctrl-C, and the page
reloads itself.

Of several runs, --run A B prints the last losses, and the differences to the first run after
equally many tokens; the page and a figure are written with --output only.
"""

import argparse
import json
import shlex
import time
from collections.abc import Callable
from html import escape
from pathlib import Path

from rich.console import Console

from anytime_jax.commands import argument_parser, config_file, layer_figure, loss_figure
from anytime_jax.commands.rich_console import open_console
from anytime_jax.config.kinds import Trust
from anytime_jax.config.run_config import Config
from anytime_jax.errors import InputError
from anytime_jax.formatting import format_count
from anytime_jax.storage.atomic import atomic_write
from anytime_jax.storage.files import make_writable_directory
from anytime_jax.storage.paths import storage_path
from anytime_jax.tables import Table
from anytime_jax.training.signals import until_interrupted
from anytime_lab import html_page, run_comparison
from anytime_lab.forecast import forecast_figure, forecast_report, forecast_subject
from anytime_lab.monitor import run_snapshot, time_shares
from anytime_lab.monitor.follow import follow
from anytime_lab.monitor.run_snapshot import Snapshot
from anytime_lab.paper import paper_items, report_page
from anytime_lab.study import study_files
from anytime_lab.study.plan import Study
from anytime_lab.study.results import COSINE, Results
from anytime_lab.table_text import to_html

EXAMPLES = (
    "--study=laptop",
    "--run=runs/quickstart",
    "--run=runs/quickstart --watch",
    "--run runs/quickstart runs/mine --output=compared",
)

RUN_PAGE = "report.html"
_REST = 30  # pause, in durations of a report: the training may need the processor
_RELOAD_SECONDS = 10

Part = str | Table | Path  # a line, a table or a figure


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--study", metavar="PATH", help="study, by file, name, directory or archive"
    )
    source.add_argument(
        "--run",
        nargs="+",
        action="extend",
        metavar="DIR",
        help="run, in progress or not, or several to compare",
    )
    config_file.add_trust(parser)
    add = parser.add_argument
    add(
        "--output",
        type=argument_parser.path,
        help="directory of files (default: STUDY/report, or RUN; none for several runs)",
    )
    add("--average", default="f25", help="read-out of horizon-free runs (default: f25)")
    add("--pdf", action="store_true", help="write every figure as PDF too")
    add("--watch", action="store_true", help="repeat it as --run trains, until Ctrl-C")


def run(arguments: argparse.Namespace) -> int:
    """Reports a study or a run; returns the exit status."""
    console = open_console()
    if arguments.study is None:
        argument_parser.refuse(arguments, ("--average", "--pdf"), "with --run")
    else:
        argument_parser.refuse(arguments, ["--watch"], "with --study")
        with study_files.open_study(arguments.study, trust=arguments.trust) as study:
            _report_study(study, arguments, console)
        return 0
    if len(arguments.run) > 1:
        argument_parser.refuse(arguments, ["--watch"], "with several runs")
        _compare_runs(arguments, console)
        return 0
    return _report_run(arguments, console)


def _make_output(arguments: argparse.Namespace) -> None:
    if arguments.output is not None:
        make_writable_directory(arguments.output, f"--output={arguments.output}")


def _compare_runs(arguments: argparse.Namespace, console: Console) -> None:
    runs = [run_snapshot.take(run, trust=arguments.trust) for run in arguments.run]
    parts: list[Part] = list(run_comparison.describe(runs))
    _make_output(arguments)
    if arguments.output is not None:
        parts.append(run_comparison.draw(arguments.output, runs))
        body = "".join(_to_html(part, 0) for part in parts)
        page = html_page.make_page(f"{len(runs)} runs compared", body, None)
        parts += _write(arguments.output, page)
    for part in parts:
        console.print(f"  figure: {part}" if isinstance(part, Path) else part)
    if arguments.output is not None:
        console.print(f"  page: {arguments.output / RUN_PAGE}")


def _report_run(arguments: argparse.Namespace, console: Console) -> int:
    (run_dir,), trust = arguments.run, arguments.trust
    snapshot = run_snapshot.take(run_dir, trust=trust)
    _make_output(arguments)
    directory = arguments.output or snapshot.run_dir
    parts, is_written = _write_run(snapshot, directory, arguments.watch, trust)
    for part in parts:
        console.print(f"  figure: {part}" if isinstance(part, Path) else part)
    if is_written:
        until = ", until Ctrl-C" if arguments.watch else ""
        console.print(f"  page: {directory / RUN_PAGE}{until}")
    if arguments.watch:
        with until_interrupted():
            _watch_run(snapshot, run_dir, directory, trust)
    return 0 if is_written else 1


def _watch_run(before: Snapshot, run_dir: str, directory: Path, trust: Trust) -> None:
    """Writes the report of a run whenever it has changed, and rests in between."""
    rested = 0.0
    for snapshot in follow(run_dir, _RELOAD_SECONDS, trust):
        if time.monotonic() >= rested and snapshot.is_news_after(before):
            start = time.monotonic()
            _write_run(snapshot, directory, True, trust)
            rested, before = start + _REST * (time.monotonic() - start), snapshot


def _write_run(
    snapshot: Snapshot, directory: Path, watch: bool, trust: Trust
) -> tuple[list[Part], bool]:
    """Writes figures and page of a run; returns what they show, and whether the page is written.

    A failure of the forecast, the figures or the disk becomes a line; the losses are shown anyway.
    """
    parts: list[Part] = list(run_snapshot.describe(snapshot))
    parts += _attempt("no shares of time", lambda: [*time_shares.describe(snapshot.run_dir)])
    failure = f"the layers could not be drawn in {directory} (give another as --output)"
    parts += _attempt(failure, lambda: _draw(layer_figure.draw, snapshot, directory))
    if snapshot.evaluated:
        failure = f"the curves could not be drawn in {directory} (give another as --output)"
        parts += _attempt(failure, lambda: _draw(loss_figure.draw, snapshot, directory))
        parts += _attempt("no forecast", lambda: _forecast(snapshot.run_dir, directory, trust))
    version = snapshot.rows[-1].step if snapshot.rows else 0
    body = "".join(_to_html(part, version) for part in parts) + _settings_html(snapshot.config)
    page = html_page.make_page(snapshot.name, body, _RELOAD_SECONDS if watch else None)
    failure = f"the page could not be written to {directory} (give another as --output)"
    failed = _attempt(failure, lambda: _write(directory, page))
    return [*parts, *failed], not failed


def _attempt(failure: str, make: Callable[[], list[Part]]) -> list[Part]:
    try:
        return make()
    except InputError as error:
        return [f"  {failure}: {error}"]
    except OSError as error:
        return [f"  {failure}: {error.strerror or error}"]
    except Exception as error:
        return [f"  {failure}: {type(error).__name__}: {error}"]


def _draw(draw: Callable[..., Path | None], snapshot: Snapshot, directory: Path) -> list[Part]:
    figure = draw(directory, snapshot.config, snapshot.rows, snapshot.trunk)
    return [] if figure is None else [figure]


def _forecast(run_dir: Path, directory: Path, trust: Trust) -> list[Part]:
    subject = forecast_subject.open_run(run_dir, trust=trust)
    forecast = forecast_subject.forecast(subject)
    parts: list[Part] = list(forecast_report.summarize(subject, forecast))
    failure = f"the forecast could not be drawn in {directory} (give another as --output)"
    return [
        *parts,
        *_attempt(failure, lambda: [forecast_figure.draw(directory, subject, forecast)]),
    ]


def _to_html(part: Part, version: int) -> str:
    if isinstance(part, Table):
        title = f'<p class="about">{escape(part.title)}</p>\n'
        return f'{title}<div class="table">{to_html(part)}</div>\n'
    if isinstance(part, str):
        return f'<p class="state">{escape(part)}</p>\n'
    return f'<img src="{part.name}?{version}" alt="{escape(part.stem)}">\n'


def _settings_html(config: Config) -> str:
    """The settings that matter most, and all of them to be unfolded."""
    settings, clock = config.to_dict(), config.clock
    kinds = {name: settings[name]["kind"] for name in ("model", "optimizer", "schedule")}
    table = Table("", ["setting", "value"])
    size = f"{config.model.layers} layers of width {config.model.width}"
    table.add_row("model", f"{kinds['model']}, {size}")
    budget = format_count(clock.tokens(clock.chinchilla_steps))
    table.add_row("1x, a Chinchilla budget", f"{budget} tokens")
    batch = f"{format_count(clock.tokens_per_step)} tokens in windows of {clock.length}"
    table.add_row("batch", batch)
    table.add_row("optimizer", kinds["optimizer"])
    table.add_row("rate", f"{kinds['schedule']}, at most {config.learning_rate.peak:g}")
    table.add_row("data", ", ".join(config.sources.values()))
    content = escape(json.dumps(settings, indent=1, default=str))
    return (
        f'<h2>Settings</h2>\n<div class="table">{to_html(table)}</div>\n'
        f"<details><summary>all, of the last start</summary><pre>{content}</pre></details>\n"
    )


def _write(directory: Path, page: str) -> list[Part]:
    with atomic_write(storage_path(directory) / RUN_PAGE) as part:
        part.write_text(page, encoding="utf-8")
    return []


def _report_study(study: Study, arguments: argparse.Namespace, console: Console) -> None:
    root = Path(study.root)
    if not root.is_dir():
        raise InputError(
            f"--study={arguments.study}: no run has started ({study.root} does not exist): train "
            f"it with anytime sweep {shlex.quote(f'--study={arguments.study}')} --run"
        )
    warnings: list[str] = []
    results = Results(study, arguments.average, warnings.append)
    out = arguments.output or root / "report"
    make_writable_directory(out, f"--output={out}")
    items, skipped = paper_items.make_items(results)
    summary = [study.title, _summary(results), *warnings]
    title = f"{study.name}: pretraining without a horizon"
    files = report_page.write(out, title, summary, items, skipped, arguments.pdf)
    lines = [
        *warnings,
        *(f"skipped  {name}: no such runs, or none evaluated yet" for name in skipped),
    ]
    if skipped and not any(run.kind == COSINE for run in results.runs):
        lines.append("note     most of these compare with runs of a cosine: the study has none")
    lines += dict.fromkeys(f"note     {note}" for item in items.values() for note in item.notes)
    lines.append(f"{len(results.runs)} runs; {len(files)} files in {out}; the page: {files[0]}")
    for line in lines:
        console.print(line)


def _summary(results: Results) -> str:
    finished, clock = sum(x.state == "finished" for x in results.runs), results.clock
    return (
        f"{finished} of {len(results.runs)} runs are finished. 1x is "
        f"{format_count(clock.tokens(clock.chinchilla_steps))} tokens: {clock.chinchilla_steps:,} "
        f"updates of {format_count(clock.tokens_per_step)} tokens. Horizon-free runs are read out "
        f"through {results.average}, cosine and WSD by their live weights."
    )
