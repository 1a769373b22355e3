"""Pages that name code: their paths, symbols and first examples."""

import pydoc
import re

import jax.numpy as jnp
import pytest
from paths import REPOSITORY


def read(page):
    return (REPOSITORY / page).read_text("utf-8")


def read_example(page):
    """The first block of Python of a page."""
    return re.findall(r"```python\n(.*?)```", read(page), re.DOTALL)[0]


@pytest.mark.parametrize("page", ["docs/paper.md", "docs/update.md"])
def test_symbols_of_a_page_exist_and_are_documented(page):
    symbols = set(re.findall(r"`(anytime_jax\.[\w.]+)`", read(page)))
    assert len(symbols) > 10
    for symbol in symbols:
        assert pydoc.locate(symbol).__doc__, symbol


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
