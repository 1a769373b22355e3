"""Switches of XLA, timed one after another."""

import json

import pytest

from benchmarks.device import switches


@pytest.mark.slow
def test_first_case_is_timed_again(tmp_path):
    output = tmp_path / "switches.json"
    flags = ["xla_cpu_use_fusion_emitters=false", "xla_no_such_flag=1"]
    assert switches.main(["--smoke", "--flags", *flags, f"--output={output}"]) == 0
    rows = json.loads(output.read_text())["rows"]
    assert [row["case"] for row in rows] == ["XLA's own", *(f"--{x}" for x in flags), "XLA's own"]
    assert [bool(row["failure"]) for row in rows] == [False, False, True, False]
