"""Pages of the documentation: their code blocks, which a test runs, and their links."""

import doc_blocks
import page_checks
import pytest
from page_runs import run_page, trained  # noqa: F401
from paths import REPOSITORY

# test_library_page.py runs this page, whose blocks are several programs.
OTHERS = {"docs/library.md"}
RUN = [x for x in doc_blocks.pages_to_run(doc_blocks.PAGES) if doc_blocks.name_of(x) not in OTHERS]


@pytest.mark.parametrize("page", doc_blocks.PAGES, ids=doc_blocks.name_of)
@pytest.mark.parametrize("check", page_checks.CHECKS)
def test_page(page, check, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    check(page)


def is_slow(page):
    return () if doc_blocks.name_of(page) == "README.md" else pytest.mark.slow


@pytest.mark.parametrize(
    "page", [pytest.param(x, marks=is_slow(x), id=doc_blocks.name_of(x)) for x in RUN]
)
def test_page_runs(page, tmp_path, request):
    run_page(page, tmp_path / "anytime_jax", request)
