"""Pages of the documentation: their code blocks, which a test runs, and their links."""

import shlex

import doc_blocks
import page_checks
import pytest
from page_runs import make_checkout, run_page, trained  # noqa: F401
from paths import REPOSITORY

# test_library_page.py runs this page, whose blocks are several programs.
OTHERS = {"docs/library.md"}
RUN = [x for x in doc_blocks.pages_to_run(doc_blocks.PAGES) if doc_blocks.name_of(x) not in OTHERS]


@pytest.mark.parametrize("page", doc_blocks.PAGES, ids=doc_blocks.name_of)
@pytest.mark.parametrize("check", page_checks.CHECKS)
def test_page(page, check, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    check(page)


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=doc_blocks.name_of)
def test_page_runs(page, tmp_path, request):
    run_page(page, tmp_path / "anytime_jax", request)


def test_commands_of_the_readme_run(starts, tmp_path):
    """With fewer updates, and without a shell and what it installs."""
    folder = tmp_path / "anytime_jax"
    make_checkout(folder, updates=4)
    readme = doc_blocks.runnable(REPOSITORY / "README.md", "bash")
    lines = [shlex.split(line, comments=True) for line in readme.splitlines()]
    for words in filter(None, lines):
        assert words[0] in ("make", "pip", "anytime"), words
        name, argv = "train", ["--config=configs/quickstart.py"]  # of `make quickstart`
        if words[0] == "anytime":
            name, *argv = words[1:]
        if words[0] != "pip":
            start = starts.launch(*argv, command=name, folder=folder)
            assert start.wait() == 0, start.output
