"""Switches of the model and of XLA, timed one after another."""

import json

import pytest

from anytime_jax.config.model import KERNELS
from benchmarks.device import switches


@pytest.mark.slow
def test_first_case_is_timed_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")  # one device
    output = tmp_path / "switches.json"
    flags = ["xla_cpu_use_fusion_emitters=false", "xla_no_such_flag=1"]
    assert switches.main(["--smoke", "--flags", *flags, f"--output={output}"]) == 0
    rows = json.loads(output.read_text())["rows"]
    of_model = [f"kernels {x}" for x in (*KERNELS, ",".join(KERNELS))]
    of_model += ["1 microbatches", "1 microbatches, all kernels"]
    expected = ["as it is", *of_model, *(f"--{x}" for x in flags), "as it is"]
    assert [row["case"] for row in rows] == expected
    assert [row["case"] for row in rows if row["failure"]] == [f"--{flags[1]}"]
    assert all(len(row["first losses"].split()) > 1 for row in rows if not row["failure"])
