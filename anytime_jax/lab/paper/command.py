"""Draw the figures and tables of a study, or the curves of one run.

Everything is computed from records. The report of a study goes into STUDY/report, or --output:
every figure as PNG, every table as CSV, and `index.html` with all of them. Unfinished runs are
named, and the report is made from the others. --pack adds `records.tar.xz`, the plan and the
records of all runs, from which the report can be made elsewhere: --study=DIR. The report of a run
has its losses and their forecast; the command `forecast` has more of that.

--leaderboard writes the leaderboard of a study instead: every optimizer, schedule and read-out
against the tuned cosine. The tables go between <!-- leaderboard --> and <!-- end --> of the page,
whose other text stays, and every setting that was tried into a CSV beside it. Times of updates come
from --times, a record of python -m benchmarks.optimizers.

--serve shows --run in a browser, as it trains, until Ctrl-C. It listens on this machine alone; from
another one, forward the port: ssh -L 8000:localhost:8000 HOST, beside --port=8000 on HOST, and open
http://localhost:8000. In a terminal: python -m anytime_jax watch --run=DIR.
"""

import argparse
import contextlib
import shlex
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console, RenderableType

from anytime_jax.atomic import make_writable_directory
from anytime_jax.commands import command_line
from anytime_jax.commands.console import open_console
from anytime_jax.errors import InputError
from anytime_jax.formatting import format_count
from anytime_jax.json_files import load_json
from anytime_jax.lab.forecast.page_forecast import PageForecast
from anytime_jax.lab.leaderboard import leaderboard, leaderboard_page
from anytime_jax.lab.monitor import page_server, run_page, run_report, run_snapshot
from anytime_jax.lab.monitor.run_snapshot import Snapshot
from anytime_jax.lab.paper import paper_items, report_page
from anytime_jax.lab.study import study_files
from anytime_jax.lab.study.plan import Study
from anytime_jax.lab.study.results import Results

EXAMPLES = (
    "--study=laptop",
    "--study=docs/evidence/laptop --leaderboard=leaderboard.md",
    "--run=runs/quickstart",
    "--run=runs/quickstart --serve --port=8000",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--study", metavar="PATH", help="study, by file, name, directory or archive"
    )
    source.add_argument("--run", metavar="DIR", help="one run, in progress or not")
    add = parser.add_argument
    add(
        "--output",
        type=command_line.path,
        help="directory of files (default: STUDY/report, or RUN)",
    )
    add("--average", default="f25", help="read-out of horizon-free runs (default: f25)")
    add("--pdf", action="store_true", help="write every figure as PDF too")
    add("--pack", action="store_true", help="write the records of all runs to --output as well")
    add("--leaderboard", type=command_line.path, metavar="PAGE", help="write this page, no report")
    add("--times", type=command_line.path, metavar="FILE", help="times of updates, for the page")
    add("--serve", action="store_true", help="show --run in a browser, and write no files")
    add("--port", type=_port, metavar="N", help="port of --serve (default: 0, any free one)")


def run(arguments: argparse.Namespace) -> int:
    """Reports a study or a run; returns the exit status."""
    console = open_console()
    _check_options(arguments)
    if arguments.serve:
        _serve(arguments, console)
        return 0
    if arguments.port is not None:
        raise InputError(f"--port={arguments.port} is for --serve: give both, or leave it out")
    if arguments.run is not None:
        if arguments.output is not None:
            make_writable_directory(arguments.output, f"--output={arguments.output}")
        _report_run(arguments.run, console, arguments.output)
        return 0
    with study_files.open_study(arguments.study) as study:
        if arguments.leaderboard is not None:
            _write_leaderboard(study, arguments, console)
        else:
            _report(study, arguments, console)
    return 0


def _check_options(arguments: argparse.Namespace) -> None:
    page, times = arguments.leaderboard, arguments.times
    of_study = {"--leaderboard": page, "--times": times}
    of_study |= {"--pack": arguments.pack, "--pdf": arguments.pdf}
    given = [name for name, value in of_study.items() if value]
    if given and arguments.study is None:
        raise InputError(f"{given[0]} is for --study: give a study, or leave it out")
    if page is None and times is not None:
        raise InputError(f"--times={times} is for --leaderboard: give both, or leave it out")
    if page is None:
        return
    if page.suffix != ".md":
        raise InputError(f"--leaderboard={page} is not a Markdown page: give a name in .md")
    if arguments.output is not None or arguments.pack or arguments.pdf:
        raise InputError("--leaderboard writes a page and no report: no --output, --pack or --pdf")


def _write_leaderboard(study: Study, arguments: argparse.Namespace, console: Console) -> None:
    warnings: list[str] = []
    results = Results(study, arguments.average, warnings.append)
    board = leaderboard.make(results, _read_times(arguments.times))
    page = arguments.leaderboard
    make_writable_directory(page.parent, f"--leaderboard={page}")
    files = leaderboard_page.write(page, results, board)
    for line in (*warnings, f"{len(board.best)} entries: {' and '.join(map(str, files))}"):
        console.print(line)


def _read_times(file: Path | None) -> Mapping[str, float]:
    if file is None:
        return {}
    try:
        return {row["optimizer"]: float(row["times_adamw"]) for row in load_json(file)["rows"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"--times={file} is not a record of benchmarks.optimizers ({error!r}): write one with "
            "python -m benchmarks.optimizers --output=FILE"
        ) from error


def _port(text: str) -> int:
    if not (text.isdecimal() and int(text) < 2**16):
        raise argparse.ArgumentTypeError(f"{text} is not a port, a number from 0 to 65535")
    return int(text)


def _serve(arguments: argparse.Namespace, console: Console) -> None:
    if arguments.run is None or arguments.output is not None:
        raise InputError("--serve shows a run and writes nothing: give --run, and no --output")
    page = run_page.RunPage(arguments.run, PageForecast())
    headers = {"Content-Security-Policy": run_page.CONTENT_SECURITY_POLICY}
    with (
        contextlib.suppress(KeyboardInterrupt),
        page_server.PageServer(arguments.port or 0, page.read, headers) as server,
    ):
        console.print(f"{arguments.run} at {server.url} until Ctrl-C")
        server.serve_forever()


def _report_run(run_dir: str | Path, console: Console, output: Path | None) -> None:
    """Prints the state of a run and draws its curves into the run directory, or into `output`."""
    snapshot = run_snapshot.take(run_dir)
    for line in run_report.describe(snapshot):
        console.print(line)
    if snapshot.evaluated:
        for part in _forecast_run(snapshot.run_dir):
            console.print(part)
        console.print(f"  {_draw_curves(output or run_dir, snapshot)}")


def _forecast_run(run_dir: Path) -> list[RenderableType]:
    from anytime_jax.lab.forecast import forecast_report, forecast_subject  # `watch` needs no SciPy

    try:
        subject = forecast_subject.open_run(run_dir)
        return list(forecast_report.summarize(subject, forecast_subject.forecast(subject)))
    except InputError as error:
        return [f"  no forecast: {error}"]
    except Exception as error:  # the losses are printed already
        return [f"  no forecast: {type(error).__name__}: {error}"]


def _draw_curves(directory: str | Path, snapshot: Snapshot) -> str:
    from anytime_jax.checkpoints import curves  # Matplotlib takes half a second: `watch` needs none

    try:
        return f"curves: {curves.draw(directory, snapshot.name, snapshot.rows)}"
    except Exception as error:  # of Matplotlib or of the disk: the losses are printed already
        return f"the curves could not be drawn in {directory}: {type(error).__name__}: {error}"


def _report(study: Study, arguments: argparse.Namespace, console: Console) -> None:
    root = Path(study.root)
    if not root.is_dir():
        raise InputError(
            f"--study={arguments.study}: no run has started ({study.root} does not exist): train "
            f"it with python -m anytime_jax sweep {shlex.quote(f'--study={arguments.study}')} --run"
        )
    warnings: list[str] = []
    results = Results(study, arguments.average, warnings.append)
    out = arguments.output or root / "report"
    make_writable_directory(out, f"--output={out}")
    items, skipped = paper_items.make_items(results)
    summary = [study.title, _summary(results), *warnings]
    title = f"{study.name}: pretraining without a horizon"
    files = report_page.write(out, title, summary, items, skipped, arguments.pdf)
    if arguments.pack:
        files.append(study_files.pack(study, out / study_files.ARCHIVE))
    lines = [*warnings, *(f"skipped  {name}: runs not evaluated yet" for name in skipped)]
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
