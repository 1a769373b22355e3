"""Tables at the width of a terminal: every digit is printed."""

import io

import pytest
from rich.console import Console

from anytime_jax.tables import Column, Table, numbers


def printed(table, width):
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return console.file.getvalue()


def make_table(columns):
    table = Table("losses", ["run", *numbers(*(f"f{i}" for i in range(columns)))])
    for row in "ab":
        table.add_row(f"run-{row}", *(f"{i}.{i}2345{row}" for i in range(columns)))
    return table


@pytest.mark.parametrize(("columns", "width"), [(0, 80), (5, 30), (12, 80)])
def test_every_cell_is_whole_within_the_width(columns, width):
    out = printed(make_table(columns), width)
    assert all(len(line) <= width for line in out.splitlines())
    words = out.split()
    assert words.count("losses") == 1
    for i in range(columns):
        assert words.count(f"f{i}") == words.count(f"{i}.{i}2345a") == 1
    assert words.count("run-a") == words.count("run") >= 1


def test_text_wraps_beside_numbers():
    columns = [Column("step"), Column("content", wrap=True), *numbers("loss", format=".5f")]
    table = Table("", columns, [["10", " ".join(["params"] * 20), 2.34567]])
    out = printed(table, 40)
    assert all(len(line) <= 40 for line in out.splitlines())
    assert out.split().count("params") == 20
    assert "2.34567" in out.split()
    assert out.split().count("step") == 1
