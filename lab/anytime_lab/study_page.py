"""Commands that write tables of a study into a page, such as `differences`."""

import argparse
from collections.abc import Callable, Sequence

from anytime_jax.commands import argument_parser, config_file
from anytime_jax.commands.rich_console import open_console
from anytime_lab import page_block
from anytime_lab.study import study_files
from anytime_lab.study.results import Results

Warn = Callable[[str], None]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the study, the page and the packages that may be imported."""
    add = parser.add_argument
    add("--study", required=True, metavar="PATH", help="study, by file, name, directory or archive")
    add(
        "--page", required=True, type=argument_parser.path, metavar="FILE", help="page, in Markdown"
    )
    config_file.add_trust(parser)


def write(
    arguments: argparse.Namespace,
    block: str,
    title: str,
    make_text: Callable[[Results, Warn], tuple[Sequence[str], str]],
    average: str = "f25",
) -> int:
    """Writes a block of the page, and returns the exit status.

    Args:
      arguments: those of `add_options`.
      block: name of the block.
      title: title of a page that does not exist yet.
      make_text: returns the block's paragraphs, which stand below the number of finished runs, and
        what it has, for the terminal: "12 groups of runs".
      average: read-out of runs without a horizon.
    """
    page_block.check(arguments.page)
    warnings: list[str] = []
    with study_files.open_study(arguments.study, trust=arguments.trust) as study:
        results = Results(study, average, warnings.append)
        (first, *rest), summary = make_text(results, warnings.append)
    finished = sum(run.state == "finished" for run in results.runs)
    facts = f"Study `{results.study.name}`: {finished} of {len(results.runs)} runs are finished."
    text = "\n\n".join([f"{facts} {first}", *rest])
    page_block.replace_block(arguments.page, block, text, title=title)
    for line in (*warnings, f"{summary}: {arguments.page}"):
        open_console().print(line)
    return 0
