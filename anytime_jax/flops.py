"""Model FLOPs and the peak rates of known devices, for model FLOPs utilisation (MFU)."""

from typing import Any

from anytime_jax.model import ModelConfig, count_params

# Dense bfloat16 matrix-product peaks in FLOP/s per device, from the makers' data sheets; the keys
# are lower-case pieces of `jax.Device.device_kind`, the longest match first.
PEAK_FLOPS = {
    "h200": 989e12,
    "h100 pcie": 756e12,
    "h100": 989e12,
    "b200": 2250e12,
    "a100": 312e12,
    "l40s": 362e12,
    "l4": 121e12,
    "v100": 125e12,
    "tpu v2": 22.5e12,  # a core: half a chip
    "tpu v3": 61.5e12,  # a core: half a chip
    "tpu v4": 275e12,
    "tpu v5 lite": 197e12,
    "tpu v5e": 197e12,
    "tpu v5p": 459e12,
    "tpu v5": 459e12,
    "tpu v6 lite": 918e12,
    "tpu v6e": 918e12,
}


def flops_per_token(config: ModelConfig) -> int:
    """Returns the FLOPs of training on one token, forward and backward.

        6 * N + 12 * layers * width * length

    with N the parameters of the block and head matrices. The embedding is a lookup and not counted;
    attention is not halved for being causal.
    """
    params = count_params(config)
    attention = 12 * config.layers * config.width * config.length
    return 6 * (params["blocks"] + params["head"]) + attention


def peak_flops(device: Any) -> float | None:
    """Returns a device's bfloat16 peak in FLOP/s; None where it is unknown, as for a CPU."""
    kind = device.device_kind.lower()
    known = sorted((name for name in PEAK_FLOPS if name in kind), key=len)
    return PEAK_FLOPS[known[-1]] if known else None
