"""Figures of devices, found by device kind."""

import types

import pytest

from anytime_jax.distributed.device_specs import device_spec


@pytest.mark.parametrize(
    ("kind", "teraflops"),
    [
        ("NVIDIA H200", 989),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA B200", 2250),
        ("NVIDIA GB200", 2500),
        ("NVIDIA L4", 121),
        ("NVIDIA L40", 181),
        ("NVIDIA L40S", 362),
        ("TPU v4", 275),
        ("TPU v5 lite", 197),
        ("TPU v5e", 197),
        ("TPU v5", 459),
        ("TPU v5p", 459),
        ("TPU v6 lite", 918),
        # Names that only begin or end like one of these.
        ("NVIDIA H20", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("TPU v4 lite", None),
        ("Tesla V100-SXM2-16GB", None),
        ("cpu", None),
        ("", None),
    ],
)
def test_device_spec_by_device_kind(kind, teraflops):
    spec = device_spec(types.SimpleNamespace(device_kind=kind))
    assert (spec and spec.peak_flops) == (teraflops and teraflops * 1e12)
