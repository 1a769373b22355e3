"""The code of docs/other_trainers.md gives this package's rates and averages in other trainers."""

import collections
import os
import re
import subprocess

import numpy as np
import pytest
from paths import REPOSITORY

from anytime_jax import averaging, schedules

PAGE = (REPOSITORY / "docs/other_trainers.md").read_text(encoding="utf-8")
SCRIPT = REPOSITORY / "tests/oracles/other_trainers.py"
ALPHA, WARMUP = 20, 10  # of the script
VARIABLES = {
    "pytorch": "ANYTIME_JAX_TORCHTITAN_PYTHON",
    "transformers": "ANYTIME_JAX_TORCHTITAN_PYTHON",
    "torchtitan": "ANYTIME_JAX_TORCHTITAN_PYTHON",
    "nanochat": "ANYTIME_JAX_TORCHTITAN_PYTHON",
    "maxtext": "ANYTIME_JAX_MAXTEXT_PYTHON",
    "levanter": "ANYTIME_JAX_LEVANTER_PYTHON",
}
PEAKS = {"transformers": 0.02, "maxtext": 0.01, "levanter": 0.003}
FROM_ZERO = {"transformers", "levanter"}  # warmups of those trainers' own


def read_blocks():
    """The page's code by heading and number, and the settings of Levanter."""
    blocks, heading, numbers = {}, "", collections.Counter()
    for title, language, code in re.findall(
        r"^## ([^\n]+)$|^```(\w*)\n(.*?)^```$", PAGE, re.M | re.S
    ):
        heading = title or heading
        if language == "python":
            blocks[f"{heading}_{numbers[heading]}"] = code
            numbers[heading] += 1
        elif code and heading == "Levanter":
            blocks["Levanter_settings"] = code
    return blocks


def test_page_has_the_blocks_that_the_script_runs():
    used = set(re.findall(r'"([A-Za-z]+_(?:\d|settings))"', SCRIPT.read_text(encoding="utf-8")))
    assert used == set(read_blocks()) - {"nanochat_1"}  # it calls functions of nanochat's script


@pytest.mark.oracle
@pytest.mark.parametrize("trainer", VARIABLES)
def test_trainer_has_the_rates_and_averages_of_this_package(trainer, tmp_path):
    python = os.environ.get(VARIABLES[trainer])
    if not python:
        pytest.skip(f"{VARIABLES[trainer]} is not set (tests/oracles/README.md)")
    for name, code in read_blocks().items():
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    command = [python, str(SCRIPT), trainer, str(tmp_path)]
    subprocess.run(command, check=True, timeout=900, cwd=tmp_path, env=environment)
    result = np.load(tmp_path / "result.npz")

    updates, peak = len(result["rates"]), PEAKS.get(trainer, 0.05)
    first = 0.0 if trainer in FROM_ZERO else 0.1
    schedule = schedules.inverse_sqrt(peak, alpha=ALPHA, warmup=WARMUP, warmup_init=first)
    expected = schedule.evaluate(np.arange(updates))
    np.testing.assert_allclose(result["rates"], expected, rtol=1e-6)
    if "constant" in result.files:  # torchtitan's warmup begins at peak / warmup
        constant = schedules.constant(peak, warmup=WARMUP - 1, warmup_init=1 / WARMUP)
        expected = constant.evaluate(np.arange(updates))
        np.testing.assert_allclose(result["constant"], expected, rtol=1e-6)

    weights = result["weights"]
    assert len(weights) == updates + 1
    expected = averaging.GrowingWindow(25.0).kernel(updates) @ weights
    assert np.abs(weights[-1] - expected).max() > 1e-3  # it is not the live weights
    for name in {"average", "averaged_model"} & set(result.files):
        np.testing.assert_allclose(result[name], expected, rtol=0, atol=1e-6)
    assert "different" not in result.files or result["different"] == 0
