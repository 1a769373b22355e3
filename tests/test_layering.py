"""The order of packages, as pyproject.toml states it, against the imports and the documentation.

`python tests/test_layering.py` draws the picture in docs/architecture.md anew.
"""

import ast
import pathlib
import re
import tomllib

from importlinter import cli

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = REPOSITORY / "anytime_jax"
PAGE = REPOSITORY / "docs" / "architecture.md"
PICTURE = re.compile(r"(?<=<!-- layers -->\n)```\n.*?```\n", re.DOTALL)


def layers() -> list[list[str]]:
    """Returns the packages and modules of each layer, the highest first."""
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    contract = settings["tool"]["importlinter"]["contracts"][0]
    return [layer.split(" | ") for layer in contract["layers"]]


def picture() -> str:
    """Returns the layers with the modules of each package, as the documentation shows them."""
    lines = []
    for layer in layers():
        for name in layer:
            folder = PACKAGE / name
            if folder.is_dir():
                modules = sorted(p.stem for p in folder.glob("*.py") if p.stem != "__init__")
                folders = sorted(
                    f"{p.name}/" for p in folder.iterdir() if (p / "__init__.py").exists()
                )
                words, head = [*modules, *folders], f"{name}/"
            else:
                words, head = [], f"{name}.py"
            line = f"{head:14}"
            for word in words:
                if len(line) + len(word) > 96:
                    lines.append(line.rstrip())
                    line = " " * 14
                line += f" {word}"
            lines.append(line.rstrip())
        lines.append("")
    return "\n".join(["```", *lines[:-1], "```", ""])


def test_packages_import_only_from_packages_below_them():
    assert cli.lint_imports(config_filename=str(REPOSITORY / "pyproject.toml")) == 0


def test_the_documentation_shows_the_layers():
    match = PICTURE.search(PAGE.read_text("utf-8"))
    assert match is not None
    assert match[0] == picture(), "run `python tests/test_layering.py`"


def test_nothing_is_imported_by_a_computed_name():
    """An import that the contracts cannot see."""
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                assert not name.endswith(("import_module", "__import__")), f"{file}: {name}"


if __name__ == "__main__":
    PAGE.write_text(PICTURE.sub(lambda _: picture(), PAGE.read_text("utf-8")), "utf-8")
