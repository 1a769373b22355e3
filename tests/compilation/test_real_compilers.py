"""Programs from the real compilers, within bounds: in environments of their own, without a device.

`make compilers` makes the environments, `.venv-tpu` and `.venv-cuda`.
"""

import json
import subprocess

import pytest
from paths import REPOSITORY

pytestmark = pytest.mark.slow
GB, MS = 1e9, 1e-3


def compile_update(config, topology, *overrides):
    """The report of `anytime compile --json`, as a dictionary."""
    kind = "tpu" if topology.lstrip("2*").startswith("v") else "cuda"
    python = REPOSITORY / f".venv-{kind}" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no compiler for {topology}: make compilers")
    words = [f"--config=configs/{config}.py", f"--topology={topology}", "--json", *overrides]
    command = [str(python), "-m", "anytime_jax", "compile", *words]
    process = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def test_150m_on_one_h200():
    report = compile_update("150m_inv_sqrt", "h200:1")
    assert report["memory"]["temporaries"] < 20 * GB
    assert report["roofline_seconds"] < 525 * MS
    assert report["matmul_share"] > 0.6
    assert report["collectives"] == []
    assert len(report["kernels"]) < 300


def test_averages_cost_little_more_than_their_bytes():
    """Each is read and written, and fused with the update of the weights that it reads."""
    scan = "--config.model.layer_loop=scan"
    with_averages = compile_update("150m_inv_sqrt", "h200:1", scan)
    without = compile_update("150m_inv_sqrt", "h200:1", scan, "--config.averages=()")
    moved = with_averages["bytes"] - without["bytes"]
    assert moved < 1.3 * 2 * with_averages["memory"]["averages"]


@pytest.mark.parametrize("topology", ["v5e:2x4", "v5e:4x4", "v6e:2x4", "v5p:2x2x1"])
def test_150m_fits_small_tpu_slices(topology):
    report = compile_update("150m_inv_sqrt", topology)
    assert report["fits"]
    assert {x["axes"] for x in report["collectives"]} == {"data"}


@pytest.mark.parametrize(
    ("config", "topology"),
    [("1b_inv_sqrt", "h100:8"), ("1b_inv_sqrt", "v5p:2x2x2"), ("7b_inv_sqrt", "h100:8x8")],
)
def test_large_models_gather_a_layer_at_a_time(config, topology):
    report = compile_update(config, topology)
    assert report["fits"]
    assert report["matmul_share"] > 0.55
    collectives = report["collectives"]
    assert not any(x["kind"] == "all-to-all" for x in collectives)
    gathered = [x["bytes"] for x in collectives if x["kind"] == "all-gather" and x["in_loop"]]
    assert max(gathered, default=0) < report["memory"]["parameters"]


def test_7b_on_a_torus_whose_axes_are_split():
    report = compile_update("7b_inv_sqrt", "v5p:4x4x4")
    assert report["fits"]
    assert not any(x["kind"] == "all-to-all" for x in report["collectives"])
