"""Figures of known accelerators: peak, bandwidth and memory of each device.

Source: the makers' data sheets, and the drivers for a GPU's memory. A TPU v2 or v3 device is one of
a chip's two cores. The links of a TPU are all ports of a chip (v5e: four, together 1,600 Gbit/s);
those of a GPU are its NVLinks, and its network is an adapter for each GPU, as in NVIDIA's machines.
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
      links: of all links to other devices, into a device, bytes/s.
      network: of the network between hosts, into a device, bytes/s; 0 if the links cross hosts.
      host_devices: devices that the links connect, if there is a network.
    """

    peak_flops: float
    bandwidth: float = 0.0
    memory: int = 0
    links: float = 0.0
    network: float = 0.0
    host_devices: int = 1


# The first entry whose words are all words of `jax.Device.device_kind` is the device.
DEVICE_SPECS = {
    "gb200": DeviceSpec(2500e12, 8.0e12, 172 * 10**9, 900e9, 50e9, 72),
    "b200": DeviceSpec(2250e12, 8.0e12, 172 * 10**9, 900e9, 50e9, 8),
    "h200": DeviceSpec(989e12, 4.8e12, 136 * 10**9, 450e9, 50e9, 8),
    "h100 nvl": DeviceSpec(835e12, 3.9e12, 90 * 10**9, 300e9, 50e9, 2),
    "h100 pcie": DeviceSpec(756e12, 2.0e12, 76 * 10**9, 64e9, 50e9, 8),
    "h100": DeviceSpec(989e12, 3.35e12, 76 * 10**9, 450e9, 50e9, 8),
    "a100 40gb": DeviceSpec(312e12, 1.56e12, 38 * 10**9, 300e9, 25e9, 8),
    "a100": DeviceSpec(312e12, 2.04e12, 76 * 10**9, 300e9, 25e9, 8),
    "l40s": DeviceSpec(362e12),
    "l40": DeviceSpec(181e12),
    "l4": DeviceSpec(121e12),
    "tpu v6 lite": DeviceSpec(918e12, 1.64e12, 32 * 2**30, 400e9),
    "tpu v6e": DeviceSpec(918e12, 1.64e12, 32 * 2**30, 400e9),
    "tpu v5 lite": DeviceSpec(197e12, 0.82e12, int(15.75 * 2**30), 200e9),
    "tpu v5e": DeviceSpec(197e12, 0.82e12, int(15.75 * 2**30), 200e9),
    "tpu v5p": DeviceSpec(459e12, 2.77e12, 95 * 2**30, 600e9),
    "tpu v5": DeviceSpec(459e12, 2.77e12, 95 * 2**30, 600e9),
    "tpu v4": DeviceSpec(275e12, 1.2e12, 32 * 2**30, 300e9),
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
