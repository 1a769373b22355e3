"""Programs and symbols of the laboratory's pages."""

import pydoc
import re

from lab_paths import LABORATORY


def read(page):
    return (LABORATORY / "docs" / page).read_text("utf-8")


def test_symbols_of_the_paper_exist_and_are_documented():
    symbols = set(re.findall(r"`(anytime_lab\.[\w.]+)`", read("paper.md")))
    assert len(symbols) > 10
    for symbol in symbols:
        assert pydoc.locate(symbol).__doc__, symbol


def test_theory_example_runs():
    code = re.findall(r"```python\n(.*?)```", read("theory.md"), re.DOTALL)[0]
    *lines, last = code.replace("1_000, 100_000", "1_000").splitlines()
    scope: dict = {}
    exec("\n".join([*lines, f"excess = {last}"]), scope)
    assert scope["excess"].shape == (2, 1)
