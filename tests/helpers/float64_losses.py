"""Losses of a model, with the softmax in NumPy float64."""

import jax
import numpy as np

from anytime_jax.models import decoder

_apply = jax.jit(decoder.apply, static_argnums=0)


def token_losses(model, params, tokens):
    """Returns the loss of every token of windows, which have one token more than losses."""
    logits = np.asarray(_apply(model, params, tokens[:, :-1]), np.float64)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    target = np.take_along_axis(shifted, tokens[:, 1:, None], axis=-1)[..., 0]
    return np.log(np.exp(shifted).sum(axis=-1)) - target
