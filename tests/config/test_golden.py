"""Shipped runs have the settings and the parameters of their golden files."""

import difflib

import golden
import pytest


@pytest.mark.parametrize("name", golden.names())
def test_shipped_run_is_as_its_golden_file_says(name):
    file = golden.file_of(name)
    was = file.read_text("utf-8") if file.exists() else ""
    lines = difflib.unified_diff(
        was.splitlines(), golden.render(name).splitlines(), file.name, "now", lineterm="", n=1
    )
    changes = "\n".join(lines)
    assert not changes, f"if that is meant, run `make golden` and commit the files:\n{changes}"


def test_every_golden_file_has_a_run_and_every_other_configuration_a_reason():
    assert {golden.file_of(x) for x in golden.names()} == {*golden.FOLDER.glob("*")}
    configurations = {x.stem for x in (golden.REPOSITORY / "configs").glob("[!_]*.py")}
    assert set(golden.WITHOUT) < configurations
