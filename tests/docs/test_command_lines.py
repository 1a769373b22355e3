"""Command lines of the configurations, and examples of the documentation."""

import page_checks
import pytest
from doc_blocks import PAGES
from paths import REPOSITORY

from anytime_jax import builtin_plugin

CONFIGS = sorted(builtin_plugin.CONFIGURATIONS.glob("*.py"))
EXAMPLE = REPOSITORY / "docs/examples/lm_eval"


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.name)
def test_command_lines_of_configurations(file, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    page_checks.check_command_lines(file)


def test_every_command_has_an_example_in_the_documentation():
    found = {name for page in PAGES for name, _ in page_checks.read_commands(page)}
    assert found >= {*builtin_plugin.PLUGIN.commands}


def test_lm_eval_task_reads_the_documents_beside_it():
    yaml = pytest.importorskip("yaml")
    page = (REPOSITORY / "docs/export.md").read_text("utf-8")
    task = yaml.safe_load((EXAMPLE / "anytime_python.yaml").read_text("utf-8"))
    assert f"--tasks {task['task']}" in page
    file = REPOSITORY / task["dataset_kwargs"]["data_files"][task["test_split"]]
    assert file == EXAMPLE / "functions.jsonl"
