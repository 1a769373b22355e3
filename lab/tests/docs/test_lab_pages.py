"""Pages of the laboratory: their code blocks, which a test runs, links and command lines."""

import doc_blocks
import page_checks
import pytest
from page_runs import run_page, trained  # noqa: F401

from anytime_lab import plugin

PAGES = doc_blocks.PAGES_OF_LABORATORY
FILES = sorted(file for folder in plugin.PLUGIN.folders for file in folder.path.glob("*.py"))


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch):
    monkeypatch.chdir(doc_blocks.REPOSITORY)


@pytest.mark.parametrize("page", PAGES, ids=doc_blocks.name_of)
@pytest.mark.parametrize("check", page_checks.CHECKS)
def test_page(page, check):
    check(page)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_command_lines_of_studies_and_configurations(file):
    page_checks.check_command_lines(file)


def test_every_command_has_an_example_in_the_documentation():
    found = {
        name for page in (*PAGES, *doc_blocks.PAGES) for name, _ in page_checks.read_commands(page)
    }
    assert found >= {*plugin.PLUGIN.commands}


@pytest.mark.slow
@pytest.mark.parametrize("page", doc_blocks.pages_to_run(PAGES), ids=doc_blocks.name_of)
def test_page_runs(page, tmp_path, request):
    run_page(page, tmp_path / "anytime_jax", request)
