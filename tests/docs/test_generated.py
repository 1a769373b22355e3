"""Generated parts of the documentation, against the code."""

import ast
import re
import runpy

import pytest
from paths import REPOSITORY

PACKAGE = REPOSITORY / "anytime_jax"
ALLOWED = {"f25", "run"}  # a label; run.json
GENERATE = runpy.run_path(str(REPOSITORY / "docs" / "generate.py"))


@pytest.mark.parametrize(("page", "name"), GENERATE["BLOCKS"])
def test_generated_block_is_current(page, name):
    text = (REPOSITORY / page).read_text("utf-8")
    block = GENERATE["BLOCKS"][page, name]()
    assert GENERATE["with_block"](text, name, block) == text, "run `python docs/generate.py`"


def test_with_block_requires_the_markers_once():
    block = "<!-- a -->\n1\n<!-- end -->\n"
    assert GENERATE["with_block"](block, "a", "2") == block.replace("1", "2")
    for page in ("text", block * 2, "<!-- a -->\n1"):
        with pytest.raises(ValueError, match="blocks from <!-- a -->"):
            GENERATE["with_block"](page, "a", "")


@pytest.mark.parametrize("package", sorted(PACKAGE.glob("*/__init__.py")))
def test_package_docstring_names_its_modules(package):
    """Every `module`, `module.py` or `module.symbol` that it mentions is in the package."""
    docstring = ast.get_docstring(ast.parse(package.read_text("utf-8"))) or ""
    assert len(docstring.splitlines()) >= 4
    modules = {path.stem for path in package.parent.iterdir()}
    words = {word.partition(".")[0] for word in re.findall(r"`(\w+(?:\.py|\.\w+)?)/?`", docstring)}
    named = {word for word in words if word.islower() and word not in ALLOWED}
    assert named <= modules, named - modules
