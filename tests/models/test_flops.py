"""Model FLOPs by hand, and peak rates by device name."""

import dataclasses
import types

import pytest
from reference_decoders import PAPER

from anytime_jax.models import flops


def device(kind):
    return types.SimpleNamespace(device_kind=kind)


@pytest.mark.parametrize(
    ("layers", "matrices", "attention", "tokens_per_s", "mfu"),
    [
        # 6 (12 layers * 12 * 1024^2 + 32,128 * 1024), and 12 layers * 12 * 1024 * 1024.
        (12, 1_103_364_096, 150_994_944, 300e3, 0.38),
        (24, 2_009_333_760, 301_989_888, 160e3, 0.37),
    ],
)
def test_flops_per_token_of_paper_models(layers, matrices, attention, tokens_per_s, mfu):
    """The authors' speeds on an H100 are about 38% and 37% of its peak."""
    per_token = flops.flops_per_token(dataclasses.replace(PAPER, layers=layers))
    assert per_token == matrices + attention
    peak = flops.peak_flops(device("NVIDIA H100 80GB HBM3"))
    assert per_token * tokens_per_s / peak == pytest.approx(mfu, abs=0.01)


@pytest.mark.parametrize(
    ("kind", "teraflops"),
    [
        ("NVIDIA H200", 989),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A100-PCIE-40GB", 312),
        ("NVIDIA B200", 2250),
        ("NVIDIA L4", 121),
        ("NVIDIA L40S", 362),
        ("Tesla V100-SXM2-16GB", None),
        ("TPU v2", 22.5),
        ("TPU v3", 61.5),
        ("TPU v4", 275),
        ("TPU v5 lite", 197),
        ("TPU v5e", 197),
        ("TPU v5", 459),
        ("TPU v5p", 459),
        ("TPU v6 lite", 918),
        ("cpu", None),
        ("", None),
        ("NVIDIA H20", None),
        ("NVIDIA GeForce RTX 4090", None),
        ("TPU v1", None),
        ("NVIDIA L40", 181),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA GB200", 2500),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("TPU v4 lite", None),
    ],
)
def test_peak_flops_by_device_kind(kind, teraflops):
    expected = None if teraflops is None else teraflops * 1e12
    assert flops.peak_flops(device(kind)) == expected
