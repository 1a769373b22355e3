"""Pages that name code: their paths, symbols and first examples."""

import importlib
import re

import jax.numpy as jnp
from paths import REPOSITORY


def read(page):
    return (REPOSITORY / page).read_text("utf-8")


def read_example(page):
    """The first block of Python of a page."""
    return re.findall(r"```python\n(.*?)```", read(page), re.DOTALL)[0]


def test_paper_map_symbols_exist_and_are_documented():
    symbols = re.findall(r"^\|[^|]+\| `(anytime_jax\.[\w.]+)` \|$", read("docs/paper.md"), re.M)
    assert len(symbols) >= 25
    for symbol in symbols:
        module, _, name = symbol.rpartition(".")
        assert getattr(importlib.import_module(module), name).__doc__, symbol


def test_update_page_symbols_exist():
    symbols = set(re.findall(r"`(anytime_jax\.[\w.]+)`", read("docs/update.md")))
    assert symbols
    for symbol in symbols:
        try:
            importlib.import_module(symbol)
        except ModuleNotFoundError:
            module, _, name = symbol.rpartition(".")
            assert hasattr(importlib.import_module(module), name), symbol


def test_configurations_of_the_paper_exist():
    names = re.findall(r"`(\d+m_\w+\.py)`", read("docs/paper.md"))
    assert len(names) == 12
    for name in names:
        assert (REPOSITORY / "configs" / name).exists(), name


def test_architecture_paths_exist():
    paths = re.findall(r"`([a-z_0-9/]+(?:\.py|/))`", read("docs/architecture.md"))
    assert len(paths) > 25
    for path in paths:
        assert (REPOSITORY / path).exists() or (REPOSITORY / "anytime_jax" / path).exists(), path


def test_readme_library_example_runs():
    before, after = read_example("README.md").split("...")
    scope: dict = {}
    exec(before, scope)
    scope["opt_state"] = scope["optimizer"].init({"w": jnp.ones(3)})
    exec(after, scope)
    assert scope["averaged"]["w"].shape == (3,)


def test_theory_example_runs():
    *lines, last = read_example("docs/theory.md").replace("1_000, 100_000", "1_000").splitlines()
    scope: dict = {}
    exec("\n".join([*lines, f"excess = {last}"]), scope)
    assert scope["excess"].shape == (1, 1)
