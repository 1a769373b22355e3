"""Trees of random matrices as the decoder has them, and their Newton-Schulz steps in float64."""

import jax
import jax.numpy as jnp
import numpy as np

from anytime_jax.models import decoder

LAYERS, D, F = 3, 8, 20  # 12 square matrices and 9 others: neither is a multiple of 8 devices
SHAPES = {
    "embedding": (11, D),
    "blocks": {
        "qkv": (LAYERS, D, 3, D),
        "attn_out": (LAYERS, D, D),
        "mlp_in": (LAYERS, D, 2, F),
        "mlp_out": (LAYERS, F, D),
        "mlp_norm": {"scale": (LAYERS, D)},
    },
}
BLOCKS = {name: x for name, x in SHAPES["blocks"].items() if name in decoder.MATRIX_AXES}
MATRIX_AXES = {name: decoder.MATRIX_AXES[name] for name in BLOCKS}
EINSUMS = {  # the decoder's products, which define what a matrix is: reduction r, output o
    "qkv": "lrco->lcro",
    "attn_out": "lro->lro",
    "mlp_in": "lrco->lcro",
    "mlp_out": "lro->lro",
}


def random_tree(seed, shapes=SHAPES):
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda s: jnp.asarray(rng.normal(size=s), jnp.float32),
        shapes,
        is_leaf=lambda x: isinstance(x, tuple),
    )


def matrices(name, leaf):
    """The matrices of a parameter in float64, [..., reduction, output]."""
    return np.einsum(EINSUMS[name], np.asarray(leaf, np.float64))


def newton_schulz(x, steps=5):
    """By the singular values, which the polynomial acts on."""
    u, s, vt = np.linalg.svd(x, full_matrices=False)
    s = s / np.sqrt(np.sum(s**2, -1, keepdims=True))
    for _ in range(steps):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return u * s[..., None, :] @ vt
