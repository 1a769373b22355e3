"""Model FLOPs, for model FLOPs utilization (MFU)."""

from anytime_jax.config.model import ModelConfig
from anytime_jax.models.decoder import count_params


def flops_per_token(config: ModelConfig) -> int:
    """Returns the FLOPs of training on one token, forward and backward.

        6 * N + 12 * layers * heads * head_width * length

    N counts the block and head matrices, not the embedding, which is a lookup. Attention is counted
    in full, although it is causal. What the backward pass recomputes is not counted.
    """
    params = count_params(config)
    attention = 12 * config.layers * config.heads * config.head_width * config.length
    return 6 * (params["blocks"] + params["head"]) + attention
