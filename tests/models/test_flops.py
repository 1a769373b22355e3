"""Model FLOPs by hand, and peak rates by device name."""

import dataclasses
import types

import jax
import pytest
from reference_decoders import PAPER

from anytime_jax.models import flops


def test_flops_per_token_of_paper_models():
    # 6 (12 * 12 * 1024^2 + 32,128 * 1024) = 1,103,364,096, and 12 * 12 * 1024 * 1024 of attention.
    assert (
        flops.flops_per_token(dataclasses.replace(PAPER, layers=12)) == 1_103_364_096 + 150_994_944
    )
    # 6 (24 * 12 * 1024^2 + 32,128 * 1024) = 2,009,333,760, and twice the attention.
    assert (
        flops.flops_per_token(dataclasses.replace(PAPER, layers=24)) == 2_009_333_760 + 301_989_888
    )


def test_mfu_of_the_authors():
    """300k tokens/s (150M) and 160k (300M) on one H100: about 38% and 37%."""
    peak = flops.peak_flops(device("NVIDIA H100 80GB HBM3"))
    for layers, tokens_per_s, mfu in ((12, 300e3, 0.38), (24, 160e3, 0.37)):
        config = dataclasses.replace(PAPER, layers=layers)
        assert flops.flops_per_token(config) * tokens_per_s / peak == pytest.approx(mfu, abs=0.01)


def device(kind):
    return types.SimpleNamespace(device_kind=kind)


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


def test_peak_flops_of_cpu_is_unknown():
    assert flops.peak_flops(jax.devices()[0]) is None
