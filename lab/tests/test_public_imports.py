"""Imports of the laboratory, against the contracts that lab/pyproject.toml states."""

from importlinter import cli
from lab_paths import LABORATORY


def test_import_contracts_hold():
    assert cli.lint_imports(config_filename=str(LABORATORY / "pyproject.toml")) == 0
