"""README, the map from the paper and the page on one update: links, paths, symbols and examples."""

import importlib
import pathlib
import re

import jax.numpy as jnp
import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
README = (REPOSITORY / "README.md").read_text("utf-8")
PAPER = (REPOSITORY / "docs" / "paper.md").read_text("utf-8")
UPDATE = (REPOSITORY / "docs" / "update.md").read_text("utf-8")
SYMBOLS = re.findall(r"^\|[^|]+\| `(anytime_jax\.[\w.]+)` \|$", PAPER, re.MULTILINE)
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_paper_map_has_entries():
    assert len(SYMBOLS) >= 25


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_paper_map_symbol_exists_and_is_documented(symbol):
    module, _, name = symbol.rpartition(".")
    assert getattr(importlib.import_module(module), name).__doc__


def test_update_page_symbols_exist():
    for symbol in sorted(set(re.findall(r"`(anytime_jax\.[\w.]+)`", UPDATE))):
        try:
            importlib.import_module(symbol)
        except ModuleNotFoundError:
            module, _, name = symbol.rpartition(".")
            assert hasattr(importlib.import_module(module), name), symbol


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#:]+)\)", README))))
def test_readme_link_exists(link):
    assert (REPOSITORY / link).exists()


def test_readme_paths_exist():
    for path in re.findall(r"(?:configs|anytime_jax|docs)/[\w/]+\.(?:py|md)", README):
        assert (REPOSITORY / path).exists(), path
    for name in re.findall(r"`(\d+m_\w+\.py)`", README):
        assert (REPOSITORY / "configs" / name).exists(), name


def test_architecture_paths_exist():
    page = (REPOSITORY / "docs" / "architecture.md").read_text("utf-8")
    table = page.split("## Where to change what")[1].split("\n## ")[0]
    paths = re.findall(r"`([a-z_0-9/]+(?:\.py|/))`", table)
    assert len(paths) > 25
    for path in paths:
        assert (REPOSITORY / path).exists() or (REPOSITORY / "anytime_jax" / path).exists(), path


def test_readme_library_example_runs():
    before, after = EXAMPLES[0].split("...")
    scope: dict = {}
    exec(before, scope)
    scope["opt_state"] = scope["optimizer"].init({"w": jnp.ones(3)})
    exec(after, scope)
    assert scope["averaged"]["w"].shape == (3,)


def test_readme_theory_example_runs():
    *lines, last = EXAMPLES[1].replace("1_000, 100_000", "1_000").strip().splitlines()
    scope: dict = {}
    exec("\n".join([*lines, f"excess = {last}"]), scope)
    assert scope["excess"].shape == (1, 1)
