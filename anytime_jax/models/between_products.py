"""What a block computes between its matrix products, in plain JAX, which XLA fuses as it can.

`model.kernels` names the parts that a GPU computes by a Triton kernel instead, with the same
arguments and rounding (`triton_kernels`): "heads" is `split_heads`, "norms" `add_and_normalize` and
"activation" `activate`. A part that is not named is the function here. Tests compare the two. The
model's last norm, and the MLP's addition to the residual stream, are XLA's.

Shape suffixes: B batch, L length, D width, C parts fused in a product, H heads, K head size,
F MLP width.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from anytime_jax.distributed.sharding import ShardingConstraint
from anytime_jax.models.attention import rotate
from anytime_jax.models.mixed_einsum import Precision
from anytime_jax.models.norm import normalize


class NormForm(NamedTuple):
    """Form of a norm: what is added to the variance, and whether it is a layer or an RMS norm."""

    epsilon: float
    centered: bool


# The result of a fused product, with an axis C of parts, or the results of all parts, without one.
Products = jax.Array | tuple[jax.Array, ...]


def split_heads(
    y_BxLxCxHxK: Products,
    parts: str,
    scales: Mapping[str, jax.Array],
    table_2xLxK: Any,
    form: NormForm,
    precision: Precision,
    constrain: ShardingConstraint,
) -> list[jax.Array]:
    """Returns the parts of a product, of shape BxLxHxK; queries and keys are normed and rotated.

    `parts` has a letter for each part: q, k or v. `scales` has the scales of the norms of queries
    and keys by letter, of shape HxK for a norm over all heads and K for a norm over each head; it
    is empty without norms. The table is that of `attention.rotary_table`.
    """
    del constrain
    arrays = _parts(y_BxLxCxHxK)
    for i, part in enumerate(parts):
        if part in scales:
            with jax.named_scope(f"{part}_norm"):
                arrays[i] = precision.round(normalize(arrays[i], scales[part], *form))
        if part != "v":
            arrays[i] = rotate(arrays[i], table_2xLxK, precision)
    return arrays


def add_and_normalize(
    x_BxLxD: jax.Array,
    added_BxLxD: jax.Array | None,
    scale_D: jax.Array,
    form: NormForm,
    precision: Precision,
    constrain: ShardingConstraint,
) -> tuple[jax.Array, jax.Array]:
    """Returns the residual stream with an addition, and its norm."""
    del precision, constrain
    if added_BxLxD is not None:
        x_BxLxD = (x_BxLxD + added_BxLxD).astype(x_BxLxD.dtype)
    return x_BxLxD, normalize(x_BxLxD, scale_D, *form)


def activate(h_BxLxCxF: Products, precision: Precision, constrain: ShardingConstraint) -> jax.Array:
    """Returns GELU of one part, or SwiGLU of a gate and what it multiplies, of shape BxLxF."""
    del precision, constrain
    first_BxLxF, *rest = (y.astype(jnp.float32) for y in _parts(h_BxLxCxF))
    return rest[0] * jax.nn.silu(first_BxLxF) if rest else _gelu(first_BxLxF)


def _parts(y: Products) -> list[jax.Array]:
    if isinstance(y, tuple):
        return list(y)
    # The gradient of a split is one array, that of indexing a sum of padded arrays.
    return [part.squeeze(2) for part in jnp.split(y, y.shape[2], axis=2)]


def _gelu(x: jax.Array) -> jax.Array:
    """The exact GELU, by the error function, float32.

    `jax.nn.gelu` uses erfc, of which XLA evaluates two formulas for every element. erfc is more
    precise for results near 0, but the sums that follow do not preserve these digits.
    """
    return 0.5 * x * (1 + jax.lax.erf(x * math.sqrt(0.5)))


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "heads": split_heads,
    "norms": add_and_normalize,
    "activation": activate,
}
