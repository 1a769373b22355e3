"""Compare optimizers, schedules and read-outs of a study with the tuned cosine.

The tables go between <!-- leaderboard --> and <!-- end --> of the page, whose other text stays. A
CSV in the same directory has every setting that was tried. Times of updates come from --times, a
record of python -m lab.benchmarks.optimizers.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path

from anytime_jax.commands import argument_parser
from anytime_jax.commands.rich_console import open_console
from anytime_jax.errors import InputError
from anytime_jax.storage.json_files import load_json
from anytime_lab import page_block, study_page
from anytime_lab.leaderboard import leaderboard, leaderboard_markdown
from anytime_lab.study import study_files
from anytime_lab.study.results import Results

EXAMPLES = ("--study=lab/evidence/laptop --page=leaderboard.md",)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    study_page.add_options(parser)
    add = parser.add_argument
    add("--average", default="f25", help="read-out of horizon-free runs (default: f25)")
    add("--times", type=argument_parser.path, metavar="FILE", help="times of updates")


def run(arguments: argparse.Namespace) -> int:
    """Writes the leaderboard; returns the exit status."""
    page, console = arguments.page, open_console()
    page_block.check(page)
    with study_files.open_study(arguments.study, trust=arguments.trust) as study:
        warnings: list[str] = []
        results = Results(study, arguments.average, warnings.append)
        board = leaderboard.make(results, _read_times(arguments.times))
        files = leaderboard_markdown.write(page, results, board)
    for line in (*warnings, f"{len(board.primary)} entries: {' and '.join(map(str, files))}"):
        console.print(line)
    return 0


def _read_times(file: Path | None) -> Mapping[str, float]:
    if file is None:
        return {}
    try:
        return {row["optimizer"]: float(row["times_adamw"]) for row in load_json(file)["rows"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"--times={file} is not a record of lab.benchmarks.optimizers: write one with "
            "python -m lab.benchmarks.optimizers --output=FILE"
        ) from error
