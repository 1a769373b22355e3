"""Folders of the repository."""

import pathlib

HELPERS = pathlib.Path(__file__).resolve().parent
REPOSITORY = HELPERS.parents[1]
FIXTURES = REPOSITORY / "tests" / "fixtures"
