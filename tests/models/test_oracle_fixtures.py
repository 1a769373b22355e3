"""The committed fixtures are what the oracles say, where their environments are at hand."""

import os
import pathlib
import subprocess

import numpy as np
import pytest

TESTS = pathlib.Path(__file__).resolve().parents[1]


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("script", "variable"),
    [("ai2_olmo.py", "ANYTIME_JAX_OLMO_PYTHON"), ("olmo2.py", "ANYTIME_JAX_OLMO2_PYTHON")],
)
def test_the_fixtures_can_be_made_again(script, variable, tmp_path):
    python = os.environ.get(variable)
    if not python:
        pytest.skip(
            f"{variable} names no interpreter (tests/oracles/README.md says how to make it)"
        )
    command = [python, str(TESTS / "oracles" / script), "--output", str(tmp_path)]
    subprocess.run(command, check=True, timeout=300)
    made = sorted(tmp_path.glob("*.npz"))
    assert made
    for path in made:
        new, old = np.load(path), np.load(TESTS / "fixtures" / path.name)
        assert set(new.files) == set(old.files)
        for name in new.files:
            np.testing.assert_allclose(new[name], old[name], rtol=1e-5, atol=2e-5, err_msg=name)
