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


def test_averages_cost_little_more_than_their_bytes():
    """Each is read and written, and fused with the update of the weights that it reads."""
    scan = "--config.model.layer_loop=scan"
    with_averages = compile_update("150m_inv_sqrt", "h200:1", scan)
    without = compile_update("150m_inv_sqrt", "h200:1", scan, "--config.averages=()")
    moved = with_averages["bytes"] - without["bytes"]
    assert moved < 1.3 * 2 * with_averages["memory"]["averages"]


@pytest.mark.parametrize(
    ("topology", "milliseconds", "share"),
    [("v5e:2x4", 222, 0.9), ("v5e:4x4", 117, 0.8), ("v6e:2x4", 66, 0.7), ("v5p:2x2x1", 205, 0.85)],
)
def test_150m_fits_small_tpu_slices(topology, milliseconds, share):
    report = compile_update("150m_inv_sqrt", topology)
    assert report["fits"]
    assert report["roofline_seconds"] < milliseconds * MS
    assert report["matmul_share"] > share
    assert {x["axes"] for x in report["collectives"]} == {"data"}
    assert not any(x["in_loop"] for x in report["collectives"])


@pytest.mark.parametrize(
    ("config", "topology", "share"),
    [
        *(("1b_inv_sqrt", "h100:8", 0.65), ("1b_inv_sqrt", "v5p:2x2x2", 0.85)),
        *(("7b_inv_sqrt", "h100:8x8", 0.57), ("7b_inv_sqrt", "v5p:4x4x4", 0.8)),
    ],
)
def test_large_models_communicate_once_an_update(config, topology, share):
    report = compile_update(config, topology, "--config.mesh.fsdp=1", "--config.microbatches=8")
    assert report["fits"]
    assert report["matmul_share"] > share
    assert {x["axes"] for x in report["collectives"]} == {"data"}
    assert not any(x["in_loop"] for x in report["collectives"])


@pytest.mark.parametrize("topology", ["h100:8x8", "v5p:4x4x4"])
def test_layers_split_over_fsdp_are_gathered_one_at_a_time(topology):
    report = compile_update("7b_inv_sqrt", topology)
    assert report["fits"]
    assert report["matmul_share"] > 0.69
    collectives = report["collectives"]
    assert not any(x["kind"] == "all-to-all" for x in collectives)
    assert not any(x["in_loop"] for x in collectives if "data" in x["axes"])
    gathered = [x["bytes"] for x in collectives if x["kind"] == "all-gather" and x["in_loop"]]
    assert gathered
    assert max(gathered) <= 4 * 32_128 * 4096  # the embedding, the largest array of a layer
