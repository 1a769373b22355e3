"""Draw the figures and tables of a study, or the curves of one run.

Everything is computed from records. The report of a study goes into STUDY/report, or --output:
every figure as PNG, every table as CSV, and `index.html` with all of them. Unfinished runs are
named, and the report is made from the others. --pack adds `records.tar.xz`, the plan and the
records of all runs, from which the report can be made elsewhere: --study=DIR. The report of a run
has its losses and their forecast; the command `forecast` has more of that.

--serve shows --run in a browser, as it trains, until Ctrl-C. It listens on this machine alone; from
another one, forward the port: ssh -L 8000:localhost:8000 HOST, beside --port=8000 on HOST, and open
http://localhost:8000. In a terminal: python -m anytime_jax watch --run=DIR.
"""

import argparse
import contextlib
import shlex
from pathlib import Path

from rich.console import Console

from anytime_jax.atomic import make_writable_directory
from anytime_jax.commands import command_line, page_server
from anytime_jax.commands.console import open_console
from anytime_jax.errors import InputError
from anytime_jax.formatting import format_count
from anytime_jax.study import paper_items, report_page, run_page, run_report, study_files
from anytime_jax.study.plan import Study
from anytime_jax.study.results import Results

EXAMPLES = (
    "--study=laptop",
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
    add("--serve", action="store_true", help="show --run in a browser, and write no files")
    add("--port", type=_port, metavar="N", help="port of --serve (default: 0, any free one)")


def run(arguments: argparse.Namespace) -> int:
    """Reports a study or a run; returns the exit status."""
    console = open_console()
    if arguments.serve:
        _serve(arguments, console)
        return 0
    if arguments.port is not None:
        raise InputError(f"--port={arguments.port} is for --serve: give both, or leave it out")
    if arguments.run is not None:
        if arguments.output is not None:
            make_writable_directory(arguments.output, f"--output={arguments.output}")
        run_report.show(arguments.run, console, arguments.output)
        return 0
    with study_files.open_study(arguments.study) as study:
        _report(study, arguments, console)
    return 0


def _port(text: str) -> int:
    if not (text.isdecimal() and int(text) < 2**16):
        raise argparse.ArgumentTypeError(f"{text} is not a port, a number from 0 to 65535")
    return int(text)


def _serve(arguments: argparse.Namespace, console: Console) -> None:
    if arguments.run is None or arguments.output is not None:
        raise InputError("--serve shows a run and writes nothing: give --run, and no --output")
    page = run_page.RunPage(arguments.run)
    headers = {"Content-Security-Policy": run_page.CONTENT_SECURITY_POLICY}
    with (
        contextlib.suppress(KeyboardInterrupt),
        page_server.PageServer(arguments.port or 0, page.read, headers) as server,
    ):
        console.print(f"{arguments.run} at {server.url} until Ctrl-C")
        server.serve_forever()


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
