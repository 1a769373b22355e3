"""Fixtures of the benchmarks' tests: a tiny model, one device, records in a temporary directory."""

import json

import pytest
import small_run

from anytime_jax.distributed import sharding
from benchmarks import peak_rates, record


@pytest.fixture(name="model")
def model_file(tmp_path):
    """A configuration file with a tiny model."""
    path = tmp_path / "model.py"
    path.write_text(
        "import small_run\n"
        "get_config = lambda: small_run.settings('run', 'data', model__layers=1)\n"
    )
    return str(path)


@pytest.fixture(autouse=True)
def small_machine(monkeypatch, tmp_path):
    mesh = small_run.mesh()
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results.jsonl")
    monkeypatch.setattr(sharding, "make_mesh", lambda config, devices=None: mesh)
    monkeypatch.setattr(peak_rates, "_LARGE", {"cpu": 32})
    monkeypatch.setattr(peak_rates, "_COPIED", {"cpu": 4096})


@pytest.fixture
def read_record(tmp_path):
    """Returns the last record of `results.jsonl`."""
    return lambda: json.loads((tmp_path / "results.jsonl").read_text().splitlines()[-1])
