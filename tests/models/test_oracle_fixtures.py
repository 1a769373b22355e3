"""Committed fixtures: equal to what the oracles produce, where their environments exist."""

import os
import pathlib
import subprocess

import numpy as np
import pytest

TESTS = pathlib.Path(__file__).resolve().parents[1]


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("script", "variable"),
    [
        ("ai2_olmo.py", "ANYTIME_JAX_OLMO_PYTHON"),
        ("olmo2.py", "ANYTIME_JAX_OLMO2_PYTHON"),
        ("transformers_families.py", "ANYTIME_JAX_OLMO2_PYTHON"),
        ("mup_package.py", "ANYTIME_JAX_MUP_PYTHON"),
    ],
)
def test_oracles_reproduce_fixtures(script, variable, tmp_path):
    python = os.environ.get(variable)
    if not python:
        pytest.skip(f"{variable} is not set (tests/oracles/README.md)")
    command = [python, str(TESTS / "oracles" / script), "--output", str(tmp_path)]
    subprocess.run(command, check=True, timeout=300)
    paths = sorted(tmp_path.glob("*.npz"))
    assert paths
    for path in paths:
        # Thirty updates multiply what another processor rounds differently.
        tolerance = 1e-4 if path.stem.endswith("_training") else 1e-5
        with np.load(path) as new, np.load(TESTS / "fixtures" / path.name) as old:
            assert set(new.files) == set(old.files)
            for name in new.files:
                if new[name].dtype.kind != "U":  # a configuration, which names the version
                    np.testing.assert_allclose(
                        new[name], old[name], rtol=tolerance, atol=2e-5, err_msg=name
                    )
