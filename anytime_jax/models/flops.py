"""Model FLOPs and the peak rates of known devices, for model FLOPs utilization (MFU)."""

import re
from typing import Any

from anytime_jax.config.model import ModelConfig
from anytime_jax.models.decoder import count_params

# Dense bfloat16 peaks in FLOP/s per device, from the makers' data sheets. The first entry whose
# words are all words of `jax.Device.device_kind` is the device.
PEAK_FLOPS = {
    "gb200": 2500e12,
    "b200": 2250e12,
    "h200": 989e12,
    "h100 nvl": 835e12,
    "h100 pcie": 756e12,
    "h100": 989e12,
    "a100": 312e12,
    "l40s": 362e12,
    "l40": 181e12,
    "l4": 121e12,
    "tpu v6 lite": 918e12,
    "tpu v6e": 918e12,
    "tpu v5 lite": 197e12,
    "tpu v5e": 197e12,
    "tpu v5p": 459e12,
    "tpu v5": 459e12,
    "tpu v4": 275e12,
    "tpu v3": 61.5e12,  # a core: half a chip
    "tpu v2": 22.5e12,  # a core: half a chip
}
_PARTIAL = {"mig", "lite"}  # words of a device smaller than the entry without them


def flops_per_token(config: ModelConfig) -> int:
    """Returns the FLOPs of training on one token, forward and backward.

        6 * N + 12 * layers * width * length

    where N counts the block and head matrices, not the embedding, which is a lookup. Attention is
    counted in full, although it is causal.
    """
    params = count_params(config)
    attention = 12 * config.layers * config.width * config.length
    return 6 * (params["blocks"] + params["head"]) + attention


def peak_flops(device: Any) -> float | None:
    """Returns a device's bfloat16 peak in FLOP/s; None if unknown, as for a CPU."""
    words = set(re.findall(r"[a-z0-9]+", device.device_kind.lower()))
    for name, peak in PEAK_FLOPS.items():
        known = set(name.split())
        if known <= words and not (words - known) & _PARTIAL:
            return peak
    return None
