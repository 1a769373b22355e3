"""Comparison with PyTorch: against a worker with known losses, and against torch itself."""

import math
import os
import sys

import pytest
import small_run

from anytime_jax.distributed import sharding
from anytime_jax.errors import InputError, RunError
from anytime_jax.training import step
from benchmarks import harness, torch_comparison

# In place of an interpreter with torch: answers with given losses, a second for each update.
FAKE_PYTHON = """#!{python}
import json, sys
import numpy as np
for line in sys.stdin:
    message = json.loads(line)
    if message["do"] == "start":
        answer = {{name: message[name] for name in ("compiled", "averages")}}
        answer |= {{"names": np.load(message["arrays"]).files, "mode": "eager"}}
    else:
        answer = {{"seconds": 1.0 * message["count"], "losses": {losses}}}
    {statement}
    print(json.dumps(answer), flush=True)
"""


def write_fake_python(folder, losses, statement=""):
    path = folder / "python"
    path.write_text(FAKE_PYTHON.format(python=sys.executable, losses=losses, statement=statement))
    path.chmod(0o755)
    return str(path)


@pytest.mark.slow
def test_peers_reports_ratio_of_medians(model, read_record, tmp_path, monkeypatch):
    config = harness.load_config(model)
    program = step.make_program(config, sharding.make_mesh(config.mesh))
    monkeypatch.setattr(step, "make_program", lambda config, mesh: program)  # compiled once
    trainer = torch_comparison.Trainer(config)
    losses = [float(trainer.update()) for _ in range(6)]
    assert len(set(losses)) == 6  # batches and weights change
    python = write_fake_python(tmp_path, losses)
    arguments = ["--model", model, "--steps=2", "--rounds=2", "--modes", "eager"]
    assert torch_comparison.main([f"--torch-python={python}", *arguments]) == 0
    contents = read_record()
    assert [row["mode"] for row in contents["rows"]] == [None, "eager"]
    details, name = contents["details"], "PyTorch, eager"
    assert details["seconds"][name] == [1.0, 1.0]
    assert details["ratios"][name] == pytest.approx(1 / details["medians"]["anytime_jax"])
    info = details["peers"][name]
    assert (info["averages"], info["compiled"]) == ([6.25, 25.0], False)
    names = {"tokens", "transformer.wte.weight", "transformer.blocks.0.att_proj.weight"}
    assert names <= set(info["names"])


class FakeSide:
    """Either side of a comparison, with known losses."""

    def __init__(self, losses):
        self.losses = losses
        self.remaining = iter(losses)

    def update(self):
        return next(self.remaining)

    def request(self, do, count):
        assert (do, count) == ("steps", 6)
        return {"losses": self.losses}


@pytest.mark.parametrize(
    ("index", "difference", "is_equal"),
    [(0, 9e-5, True), (0, -2e-4, False), (5, 9e-4, True), (5, 2e-3, False), (0, math.nan, False)],
)
def test_compare_losses_rejects_different_losses(index, difference, is_equal):
    ours = [5.0 - i for i in range(6)]
    theirs = [loss + difference * (i == index) for i, loss in enumerate(ours)]
    sides = FakeSide(ours), {"other": FakeSide(theirs)}
    if is_equal:
        assert torch_comparison.compare_losses(*sides) == {"anytime_jax": ours, "other": theirs}
    else:
        with pytest.raises(RunError, match=f"other .* after {index} updates"):
            torch_comparison.compare_losses(*sides)


def test_worker_that_exits_is_an_error(tmp_path):
    settings = {"arrays": str(tmp_path / "arrays.npz"), "averages": []}
    python = write_fake_python(tmp_path, [], "sys.exit(3)")
    with (
        pytest.raises(RunError, match="status 3"),
        torch_comparison.start_workers(python, {}, settings, ["eager"]),
    ):
        pass


def test_unsupported_run_is_rejected():
    config = small_run.config("run", model__kind="olmo2")
    with pytest.raises(InputError, match="needs the model olmo"):
        torch_comparison.worker_settings(config, "arrays.npz", 1)


@pytest.mark.oracle
def test_torch_computes_the_same_losses(model):
    python = os.environ.get("ANYTIME_JAX_OLMO_PYTHON")
    if not python:
        pytest.skip("ANYTIME_JAX_OLMO_PYTHON is not set (tests/oracles/README.md)")
    arguments = ["--model", model, "--steps=1", "--rounds=1", "--modes", "eager"]
    assert torch_comparison.main([f"--torch-python={python}", *arguments]) == 0
