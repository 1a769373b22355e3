"""Figures of devices, found by device kind."""

import types

import pytest

from anytime_jax.distributed.device_specs import device_spec


@pytest.mark.parametrize(
    ("kind", "teraflops"),
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA L4", 121),
        ("NVIDIA L40S", 362),
        ("TPU v5 lite", 197),
        ("TPU v5", 459),
        # Names that only begin or end like one of these.
        ("NVIDIA H20", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("TPU v4 lite", None),
        ("", None),
    ],
)
def test_device_spec_by_device_kind(kind, teraflops):
    spec = device_spec(types.SimpleNamespace(device_kind=kind))
    assert (spec and spec.peak_flops) == (teraflops and teraflops * 1e12)
