"""Make training and validation sets of the text of pinned packages, without near-duplicates.

Python sources come out of wheels, English documentation out of sdists, which pip downloads once
into DIR/archives. DIR/python and DIR/english are datasets to train on, and each package that is
kept for validation is a dataset without training text, in DIR/selection/LANGUAGE/PACKAGE or
DIR/report/LANGUAGE/PACKAGE, for eval.sets. DIR/summary.json has the counts and what was measured.

After a kill the same command resumes; for a complete DIR it only prints the counts.
"""

import argparse
import functools
import sys
from pathlib import Path

from anytime_jax.tables import Table, numbers
from anytime_lab.package_text.datasets import make_datasets
from anytime_lab.package_text.download import LIST_PATH, read_list
from anytime_lab.table_text import to_markdown

EXAMPLES = ("--output=runs/data/packages",)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.add_argument("--output", type=Path, metavar="DIR", required=True, help="directory")
    parser.add_argument(
        "--packages",
        type=Path,
        metavar="FILE",
        default=LIST_PATH,
        help="list of packages: a CSV file with the columns name, version, language (python or "
        "english), role (train, selection or report) and licence (default: the published list)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Makes the datasets; returns the exit status."""
    report = functools.partial(print, file=sys.stderr, flush=True)
    packages = read_list(arguments.packages)
    summary = make_datasets(packages, arguments.output, report=report)
    columns = ["text", *numbers("packages", "MB", "Mtokens", "removed", "overlap", format=".3g")]
    table = Table("", columns)
    for name, counts in summary["text"].items():
        table.add_row(
            name,
            counts["packages"],
            counts["kept_bytes"] / 1e6,
            counts["tokens"] / 1e6,
            counts["removed_share"],
            counts["repeated_share"],
        )
    print(to_markdown(table))
    return 0
