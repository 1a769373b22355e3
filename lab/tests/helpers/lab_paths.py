"""Folders of the laboratory."""

from paths import REPOSITORY

LABORATORY = REPOSITORY / "lab"
EVIDENCE = LABORATORY / "evidence"
FIXTURES = LABORATORY / "tests" / "fixtures"
HELPERS = LABORATORY / "tests" / "helpers"
