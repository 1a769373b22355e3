"""Imports between packages, against the order that pyproject.toml states."""

import ast

from importlinter import cli
from paths import REPOSITORY

PACKAGE = REPOSITORY / "anytime_jax"


def test_import_contracts_hold():
    assert cli.lint_imports(config_filename=str(REPOSITORY / "pyproject.toml")) == 0


def test_no_import_by_computed_name():
    """The contracts cannot see such an import, but for commands and for classes of the user's."""
    exempt = {PACKAGE / "commands" / "dispatch.py", PACKAGE / "config" / "kinds.py"}
    for file in {*PACKAGE.rglob("*.py")} - exempt:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                assert not name.endswith(("import_module", "__import__")), f"{file}: {name}"
