"""Token cross-entropy.

Legend of shape suffixes: B batch, L length, V rows of the embedding.
"""

import jax
import optax


def token_losses(logits_BxLxV: jax.Array, targets_BxL: jax.Array) -> jax.Array:
    """Returns the cross-entropy of each token in nats, float32 of shape BxL.

    The softmax runs over every row of the embedding, padding rows included.

    Args:
      logits_BxLxV: float32 logits.
      targets_BxL: integer ids of the tokens to predict.

    Source: the paper's "Architecture and Dataset" (no z-loss).
    """
    return optax.softmax_cross_entropy_with_integer_labels(logits_BxLxV, targets_BxL)
