"""Four hundred updates in bfloat16 beside AI2's own code under PyTorch's autocast.

The mean training loss of the last hundred must differ by less than 0.01, and by less than between
two seeds.
"""

import os
import subprocess

import jax
import numpy as np
import pytest
import small_run
from paths import REPOSITORY

from anytime_jax.formats.ai2_olmo import OLMO
from anytime_jax.formats.model_format import layers_to_tensors, split_layers
from anytime_jax.training import step
from benchmarks import small

UPDATES, LAST = 400, 100
SHAPE = {
    name: small.get_config().model[name]
    for name in ("layers", "heads", "width", "mlp_width", "length", "vocab_size", "embedding_rows")
}
CHANGES = {f"model__{name}": value for name, value in SHAPE.items()} | {
    "batch_size": 32,
    "eval__tokens": 128,
    "schedule__peak": 1e-2,
    "schedule__alpha": 800.0,
    "schedule__warmup": "160 steps",
}


def windows_of_text():
    """Windows of the bytes of this project's sources, for every update."""
    files = sorted((REPOSITORY / "anytime_jax").rglob("*.py"))
    text = np.frombuffer(b"".join(x.read_bytes() for x in files), np.uint8).astype(np.int32)
    starts = np.random.default_rng(0).integers(0, len(text) - 129, (UPDATES, 32, 1))
    return text[starts + np.arange(129)]


def train(tokens, dtype, seed):
    """Losses, learning rates, and the initial weights by AI2's names."""
    config = small_run.config("unused", model__dtype=dtype, seed=seed, **CHANGES)
    program = small_run.program(config, small_run.mesh())
    state, metrics = program.init(), []
    layers = split_layers(jax.device_get(state.params))
    weights = dict(layers_to_tensors(OLMO.tensors(config.model), layers))
    for count, rows in enumerate(tokens):
        state, row = program.train_step(state, rows, step.rates_at(config, count))
        metrics.append(jax.device_get((row["loss"], row["lr"])))
    losses, rates = np.array(metrics).T
    return losses, rates, weights, config


@pytest.mark.oracle
def test_bfloat16_is_as_near_to_ai2_autocast_as_two_seeds_are(tmp_path):
    python = os.environ.get("ANYTIME_JAX_OLMO_PYTHON")
    if not python:
        pytest.skip("ANYTIME_JAX_OLMO_PYTHON is not set (tests/oracles/README.md)")
    tokens = windows_of_text()
    ours, rates, weights, config = train(tokens, "bfloat16", 0)
    other_seed, *_ = train(tokens, "bfloat16", 1)
    files = OLMO.config_files(OLMO.export_settings(config.model), 0, "float32")
    (tmp_path / "config.yaml").write_text(files["config.yaml"])
    named = {f"param/{name}": array for name, array in weights.items()}
    history = {"tokens": tokens, "learning_rates": rates, "b2": config.optimizer.b2}
    np.savez(tmp_path / "arrays.npz", **history, **named)
    script = REPOSITORY / "tests" / "oracles" / "ai2_autocast.py"
    subprocess.run([python, str(script), str(tmp_path)], check=True)
    theirs = np.load(tmp_path / "losses.npy")

    def mean(losses):
        return losses[-LAST:].mean()

    between_seeds = abs(mean(other_seed) - mean(ours))
    to_ai2 = abs(mean(theirs) - mean(ours))
    print(f"ours {mean(ours):.4f}, seed 1 {mean(other_seed):.4f}, AI2 {mean(theirs):.4f}")
    assert mean(ours) < ours[0] - 1  # it has learned
    assert to_ai2 < min(between_seeds, 0.01)
