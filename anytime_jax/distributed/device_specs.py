"""Figures of known accelerators: peak, bandwidth and memory of each device.

Source: the makers' data sheets, and the drivers for a GPU's memory. A TPU v2 or v3 device is one of
a chip's two cores.
"""

import dataclasses
import re
from typing import Any

_PARTIAL = {"mig", "lite"}  # these words mark a smaller device than the entry without them


@dataclasses.dataclass(frozen=True)
class DeviceSpec:
    """Figures of a device.

    Attributes:
      peak_flops: dense bfloat16 products with float32 sums, FLOP/s.
      bandwidth: of the main memory, bytes/s.
      memory: bytes that a program can use; of a GPU, 0.9 of what its driver reports, which is the
        share that JAX takes (`xla_settings`).
    """

    peak_flops: float
    bandwidth: float = 0.0
    memory: int = 0


# The first entry whose words are all words of `jax.Device.device_kind` is the device.
DEVICE_SPECS = {
    "gb200": DeviceSpec(2500e12, 8.0e12, 172 * 10**9),
    "b200": DeviceSpec(2250e12, 8.0e12, 172 * 10**9),
    "h200": DeviceSpec(989e12, 4.8e12, 136 * 10**9),
    "h100 nvl": DeviceSpec(835e12, 3.9e12, 90 * 10**9),
    "h100 pcie": DeviceSpec(756e12, 2.0e12, 76 * 10**9),
    "h100": DeviceSpec(989e12, 3.35e12, 76 * 10**9),
    "a100": DeviceSpec(312e12, 2.04e12, 76 * 10**9),
    "l40s": DeviceSpec(362e12),
    "l40": DeviceSpec(181e12),
    "l4": DeviceSpec(121e12),
    "tpu v6 lite": DeviceSpec(918e12, 1.64e12, 32 * 2**30),
    "tpu v6e": DeviceSpec(918e12, 1.64e12, 32 * 2**30),
    "tpu v5 lite": DeviceSpec(197e12, 0.82e12, int(15.75 * 2**30)),
    "tpu v5e": DeviceSpec(197e12, 0.82e12, int(15.75 * 2**30)),
    "tpu v5p": DeviceSpec(459e12, 2.77e12, 95 * 2**30),
    "tpu v5": DeviceSpec(459e12, 2.77e12, 95 * 2**30),
    "tpu v4": DeviceSpec(275e12, 1.2e12, 32 * 2**30),
    "tpu v3": DeviceSpec(61.5e12),
    "tpu v2": DeviceSpec(22.5e12),
}


def device_spec(device: Any) -> DeviceSpec | None:
    """Returns the figures of a device; None if unknown, as for a CPU."""
    words = set(re.findall(r"[a-z0-9]+", device.device_kind.lower()))
    for name, spec in DEVICE_SPECS.items():
        known = set(name.split())
        if known <= words and not (words - known) & _PARTIAL:
            return spec
    return None
