"""The guard of compiled programs: what it passes, refuses, skips and records."""

import json

import pytest

from benchmarks import program_costs

VERSIONS = {"jax": "1.0", "libtpu": "2.0"}
FIGURES = {"flops": 1000.0, "bytes": 500, "kernels": 100, "temporaries": 200}


@pytest.fixture
def guard(monkeypatch, tmp_path):
    """Returns what runs the guard on one program with figures, and gives its output."""
    monkeypatch.setattr(program_costs, "RECORDED", tmp_path / "program_costs.json")
    monkeypatch.setattr(program_costs, "PROGRAMS", {"tiny": ("--topology=v5e:1x1",)})
    monkeypatch.setattr(program_costs, "_python", lambda arguments: "python")

    def run(*words, versions=VERSIONS, **changes):
        monkeypatch.setattr(program_costs, "_versions", lambda python: versions)
        monkeypatch.setattr(program_costs, "_measure", lambda python, arguments: FIGURES | changes)
        return program_costs.main(words)

    assert run("--write") == 0
    return run


def test_figures_are_recorded_with_their_versions(guard):
    recorded = json.loads(program_costs.RECORDED.read_text("utf-8"))
    assert recorded == {"tiny": {"versions": VERSIONS, **FIGURES}}
    assert guard() == 0


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"flops": 1000.9}, 0),
        ({"flops": 1002.0}, 1),
        ({"bytes": 509}, 0),
        ({"bytes": 520}, 1),
        ({"kernels": 103}, 1),
        ({"temporaries": 206}, 1),
        ({"bytes": 100, "kernels": 10}, 0),  # less is no fault
    ],
)
def test_a_program_that_got_worse_fails(guard, changes, code):
    assert guard(**changes) == code


def test_other_versions_are_skipped(guard):
    assert guard(versions={"jax": "1.1", "libtpu": "2.0"}, flops=10**9) == 0


def test_recorded_programs_are_those_of_the_command():
    recorded = json.loads(program_costs.RECORDED.read_text("utf-8"))
    assert list(recorded) == list(program_costs.PROGRAMS)
    assert all(set(x) == {"versions", *program_costs.TOLERANCES} for x in recorded.values())
