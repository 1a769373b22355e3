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
    ("changes", "code", "line"),
    [
        ({"flops": 1000.9}, 0, ""),
        ({"flops": 1002.0}, 1, "tiny: flops grew by 0.20%, and 0.1% is allowed"),
        ({"bytes": 509}, 0, ""),
        ({"bytes": 520}, 1, "tiny: bytes grew by 4.00%, and 2.0% is allowed"),
        ({"kernels": 103}, 1, "tiny: kernels grew by 3.00%"),
        ({"temporaries": 206}, 1, "tiny: temporaries grew by 3.00%"),
        ({"bytes": 100, "kernels": 10}, 0, ""),  # less is no fault
    ],
)
def test_a_program_that_got_worse_fails(guard, capsys, changes, code, line):
    assert guard(**changes) == code
    output = " ".join(capsys.readouterr().out.split())
    assert line in output
    assert ("grew" in output) == bool(code)


def test_other_versions_are_skipped_and_named(guard, capsys):
    assert guard(versions={"jax": "1.1", "libtpu": "2.0"}, flops=10**9) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "tiny: skipped, recorded with {'jax': '1.0', 'libtpu': '2.0'}" in output


def test_recorded_programs_are_those_of_the_command():
    recorded = json.loads(program_costs.RECORDED.read_text("utf-8"))
    assert list(recorded) == list(program_costs.PROGRAMS)
    assert all(set(x) == {"versions", *program_costs.TOLERANCES} for x in recorded.values())
