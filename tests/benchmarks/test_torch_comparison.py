"""Comparison with PyTorch: of known losses, and with torch itself."""

import math
import os

import pytest
import small_run

from anytime_jax.errors import InputError, RunError
from benchmarks import torch_comparison


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
    [(0, -2e-4, False), (5, 9e-4, True), (5, 2e-3, False), (0, math.nan, False)],
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
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nread line\nexit 3\n")
    python.chmod(0o755)
    settings = {"arrays": str(tmp_path / "arrays.npz"), "averages": []}
    with (
        pytest.raises(RunError, match="status 3"),
        torch_comparison.start_workers(str(python), {}, settings, ["eager"]),
    ):
        pass


def test_unsupported_run_is_rejected():
    config = small_run.config("run", model__kind="olmo2")
    with pytest.raises(InputError, match="olmo"):
        torch_comparison.worker_settings(config, "arrays.npz", 1)


@pytest.mark.oracle
def test_torch_computes_the_same_losses(model):
    python = os.environ.get("ANYTIME_JAX_OLMO_PYTHON")
    if not python:
        pytest.skip("ANYTIME_JAX_OLMO_PYTHON is not set (tests/oracles/README.md)")
    arguments = ["--model", model, "--steps=1", "--rounds=1", "--modes", "eager"]
    assert torch_comparison.main([f"--torch-python={python}", *arguments]) == 0
