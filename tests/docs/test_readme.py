"""README, the map from the paper and pages that name code: paths, symbols and examples."""

import importlib
import re

import jax.numpy as jnp
from paths import REPOSITORY


def read(page):
    return (REPOSITORY / page).read_text("utf-8")


README = read("README.md")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


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


def test_readme_paths_exist():
    paths = re.findall(r"(?<!/)(?:configs|anytime_jax|docs)/[\w/]+\.(?:py|md)", README)
    configs = [f"configs/{name}" for name in re.findall(r"`(\d+m_\w+\.py)`", README)]
    assert paths
    assert configs
    for path in (*paths, *configs):
        assert (REPOSITORY / path).exists(), path


def test_architecture_paths_exist():
    table = read("docs/architecture.md").split("## Where to change what")[1].split("\n## ")[0]
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
