"""What the README promises exists: the map from the paper, the files, the configurations."""

import importlib
import pathlib
import re

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
SYMBOLS = re.findall(r"^\|[^|]+\| `(anytime_jax\.[\w.]+)` \|$", README, re.MULTILINE)
LINKS = re.findall(r"\]\(([^)#:]+)\)", README)
CONFIGS = re.findall(r"`(\w+\.py)`", README)


def test_the_map_is_read() -> None:
    assert len(SYMBOLS) >= 12
    assert len(LINKS) >= 5


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_every_entry_of_the_map_exists_and_is_documented(symbol: str) -> None:
    module, _, name = symbol.rpartition(".")
    assert getattr(importlib.import_module(module), name).__doc__


@pytest.mark.parametrize("link", sorted(set(LINKS)))
def test_every_linked_file_exists(link: str) -> None:
    assert (REPOSITORY / link).exists()


def test_every_configuration_named_exists() -> None:
    for name in CONFIGS:
        assert (REPOSITORY / "configs" / name).exists()
    for path in re.findall(r"configs/\w+\.py", README):
        assert (REPOSITORY / path).exists()


def test_the_python_example_runs() -> None:
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert code is not None
    import jax.numpy as jnp

    scope: dict[str, object] = {}
    setup = code[1].split("...")[0]
    exec(setup, scope)
    optimizer = scope["optimizer"]
    opt_state = optimizer.init({"w": jnp.ones(3)})  # pyright: ignore[reportAttributeAccessIssue]
    scope["opt_state"] = opt_state
    exec(code[1].split("...")[1], scope)
    assert scope["averaged"]["w"].shape == (3,)  # pyright: ignore[reportIndexIssue]


def test_the_theory_example_runs() -> None:
    code = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[1]
    code = code.replace("1_000, 100_000", "1_000")
    *lines, last = code.strip().splitlines()
    scope: dict[str, object] = {}
    exec("\n".join([*lines, f"risk = {last}"]), scope)
    assert scope["risk"].shape == (1, 1)  # pyright: ignore[reportAttributeAccessIssue]
