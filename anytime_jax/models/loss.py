"""Token cross-entropy, from logits or from hidden states without storing all logits.

The loss has three implementations. `token_losses` is the reference: exact, by Optax, from logits in
float32. The others compute logits one block of rows at a time, with products that round to `dtype`;
for "float32" they agree with a computation in float64 to 1e-5 (tests/models/test_loss.py).

    name                        of             memory      products   chosen
    `token_losses`              each token     1.0, 2.0    1, 3       for logits that exist: within
                                                                      a block, or `decoder.apply`
    `token_losses_from_hidden`  each token     0.3, 1.6    1, 3       in evaluations
    `mean_loss_from_hidden`     the mean       0.3, 0.8    1, 3       in training

Each pair of numbers is for the loss alone and for the loss with its gradient. Memory is the peak
beyond arguments and results, in float32 arrays of all logits (B x L x V), with 4 blocks on a CPU;
with more blocks it is less, but not that of the gradient of `token_losses_from_hidden`, which
stores the logits of all blocks. Products are counted in products of all hidden states with the
head. `mean_loss_from_hidden` computes the gradient of a block along with the loss, so it neither
stores the logits of other blocks nor computes them again, in a fourth product.

Shape suffixes: B batch, L length, D width, V rows of the embedding, S shards of the
batch, N blocks, R rows of a block.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from anytime_jax.config.model import Dtype
from anytime_jax.distributed.sharding import ShardingConstraint
from anytime_jax.models.mixed_einsum import Precision, mixed_einsum

# Number of logits in a block on each device: they fit a CPU's cache, or take 1 GB elsewhere.
_LOGITS = {"cpu": 2**20}
_LOGITS_ELSEWHERE = 2**28


def token_losses(logits_BxLxV: jax.Array, targets_BxL: jax.Array) -> jax.Array:
    """Returns the cross-entropy of each token in nats, float32 of shape BxL: the reference.

    The softmax includes the padding rows of the embedding.

    Examples:
      >>> token_losses(jnp.log(jnp.array([[[0.25, 0.75]]])), jnp.array([[0]]))  # log(4)
      Array([[1.3862944]], dtype=float32)

    Source: the paper's "Architecture and Dataset" (no z-loss).
    """
    logits_BxLxV = logits_BxLxV.astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits_BxLxV, targets_BxL)


def token_losses_and_hits(
    logits_BxLxV: jax.Array, targets_BxL: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns `token_losses`, and whether each target has the largest logit, bool of shape BxL."""
    is_hit_BxL = logits_BxLxV.argmax(axis=-1) == targets_BxL
    return token_losses(logits_BxLxV, targets_BxL), is_hit_BxL


def token_losses_from_hidden(
    hidden_BxLxD: jax.Array,
    head_DxV: jax.Array,
    targets_BxL: jax.Array,
    dtype: Dtype,
    constrain: ShardingConstraint,
    of_logits: Callable[[jax.Array, jax.Array], Any] = token_losses,
) -> Any:
    """Returns the cross-entropy of each token in nats, float32 of shape BxL.

    Logits are computed one block of rows at a time. `hidden_BxLxD` is the output of
    `decoder.hidden`. The operands of the product with the head have type `dtype`; `constrain` is
    applied to the logits. `of_logits` may be another function of logits and targets that returns
    arrays of shape BxL, such as `token_losses_and_hits`.
    """

    def of_block(block: tuple[jax.Array, ...]) -> Any:
        hidden_SxRxLxD, targets_SxRxL = block
        return of_logits(_logits(hidden_SxRxLxD, head_DxV, dtype, constrain), targets_SxRxL)

    blocks = _blocks(hidden_BxLxD, head_DxV, targets_BxL, constrain)
    return jax.tree.map(_unblock, jax.lax.map(of_block, blocks))


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def mean_loss_from_hidden(
    hidden_BxLxD: jax.Array,
    head_DxV: jax.Array,
    targets_BxL: jax.Array,
    dtype: Dtype,
    constrain: ShardingConstraint,
    z_loss: float = 0.0,
    weights_BxL: jax.Array | None = None,
) -> jax.Array:
    """Mean of `token_losses_from_hidden`, with a gradient that computes no logits twice.

    With weights, each loss is multiplied by its weight before the mean over all tokens.

    `z_loss` adds `z_loss` times the mean square of log(sum(exp(logits))) to the gradient, and
    nothing to the loss. Source of the z-loss: PaLM (arXiv 2204.02311), Section 5.

    The backward pass receives one factor, by which the gradient of the mean loss is multiplied. So
    the forward pass already computes, from the logits of each block, the gradient but for this
    factor. Every shard of the batch accumulates a gradient of the head of its own; the gradients
    of the shards are summed once, at the end.
    """
    losses = token_losses_from_hidden(hidden_BxLxD, head_DxV, targets_BxL, dtype, constrain)
    return (losses if weights_BxL is None else losses * weights_BxL).mean()


def rows_per_block(rows: int, length: int, vocabulary: int, platform: str) -> int:
    """Returns the number of rows in a block of logits; it divides `rows`, the rows on a device.

    A row has `length` times `vocabulary` logits; `platform` is "cpu", "gpu" or "tpu".

    Examples:
      >>> rows_per_block(rows=32, length=128, vocabulary=1024, platform="cpu")  # 2^20 logits
      8
    """
    limit = max(_LOGITS.get(platform, _LOGITS_ELSEWHERE) // (length * vocabulary), 1)
    return max(r for r in range(1, rows + 1) if rows % r == 0 and r <= limit)


@jax.named_scope("loss")
def _mean_loss_forward(
    hidden_BxLxD: jax.Array,
    head_DxV: jax.Array,
    targets_BxL: jax.Array,
    dtype: Dtype,
    constrain: ShardingConstraint,
    z_loss: float,
    weights_BxL: jax.Array | None,
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    def add_block(
        dhead_SxDxV: jax.Array, block: tuple[jax.Array, ...]
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        hidden_SxRxLxD, targets_SxRxL, *weights = block
        precision = Precision(dtype, constrain.platform)
        logits_SxRxLxV = _logits(hidden_SxRxLxD, head_DxV, dtype, constrain)
        token_weight = 1 / targets_BxL.size
        if weights:
            token_weight *= weights[0]
        losses_SxRxL, grad_SxRxLxV = _with_gradient(
            logits_SxRxLxV, targets_SxRxL, token_weight, z_loss
        )
        dhead_SxDxV += mixed_einsum(
            "srld,srlv->sdv", hidden_SxRxLxD, grad_SxRxLxV, precision, round_result=False
        )
        dhead_SxDxV = constrain(dhead_SxDxV, ("batch", None, "vocabulary"))
        dhidden_SxRxLxD = mixed_einsum("srlv,dv->srld", grad_SxRxLxV, head_DxV, precision)
        if weights:
            losses_SxRxL *= weights[0]
        return dhead_SxDxV, (losses_SxRxL, dhidden_SxRxLxD)

    shards = constrain.shards("batch")
    zero_SxDxV = jnp.zeros((shards, *head_DxV.shape), jnp.float32)
    blocks = _blocks(hidden_BxLxD, head_DxV, targets_BxL, constrain, weights_BxL)
    dhead_SxDxV, (losses, dhidden) = jax.lax.scan(add_block, zero_SxDxV, blocks)
    return losses.mean(), (_unblock(dhidden), dhead_SxDxV.sum(axis=0))


def _mean_loss_backward(
    dtype: Dtype,
    constrain: ShardingConstraint,
    z_loss: float,
    saved: tuple[jax.Array, jax.Array],
    factor: jax.Array,
) -> tuple[jax.Array, jax.Array, None, None]:
    dhidden_BxLxD, dhead_DxV = saved
    return factor * dhidden_BxLxD, factor * dhead_DxV, None, None


mean_loss_from_hidden.defvjp(_mean_loss_forward, _mean_loss_backward)


def _logits(
    hidden_SxRxLxD: jax.Array, head_DxV: jax.Array, dtype: Dtype, constrain: ShardingConstraint
) -> jax.Array:
    precision = Precision(dtype, constrain.platform)
    logits_SxRxLxV = mixed_einsum("srld,dv->srlv", hidden_SxRxLxD, head_DxV, precision)
    return constrain(logits_SxRxLxV, ("batch", None, None, "vocabulary"))


def _with_gradient(
    logits_SxRxLxV: jax.Array,
    targets_SxRxL: jax.Array,
    token_weight: float | jax.Array,
    z_loss: float,
) -> tuple[jax.Array, jax.Array]:
    """Returns the token losses, and the gradient of their sum by the logits times `token_weight`.

    The gradient includes the gradient of the z-loss.
    """
    logits_SxRxLxV = logits_SxRxLxV.astype(jnp.float32)
    max_SxRxL = logits_SxRxLxV.max(axis=-1)
    weights_SxRxLxV = jnp.exp(logits_SxRxLxV - max_SxRxL[..., None])
    sum_SxRxL = weights_SxRxLxV.sum(axis=-1)
    target_SxRxL = jnp.take_along_axis(logits_SxRxLxV, targets_SxRxL[..., None], axis=-1)[..., 0]
    log_sum_SxRxL = max_SxRxL + jnp.log(sum_SxRxL)
    losses_SxRxL = log_sum_SxRxL - target_SxRxL
    is_target_SxRxLxV = jnp.arange(logits_SxRxLxV.shape[-1]) == targets_SxRxL[..., None]
    factor_SxRxL = token_weight / sum_SxRxL
    if z_loss:
        factor_SxRxL *= 1 + 2 * z_loss * log_sum_SxRxL
    grad_SxRxLxV = weights_SxRxLxV * factor_SxRxL[..., None]
    if isinstance(token_weight, jax.Array):
        token_weight = token_weight[..., None]
    return losses_SxRxL, jnp.where(is_target_SxRxLxV, grad_SxRxLxV - token_weight, grad_SxRxLxV)


def _blocks(
    hidden_BxLxD: jax.Array,
    head_DxV: jax.Array,
    targets_BxL: jax.Array,
    constrain: ShardingConstraint,
    weights_BxL: jax.Array | None = None,
) -> tuple[jax.Array, ...]:
    """Reshapes hidden states, targets and any weights to NxSxRxL: N blocks of R rows a shard."""
    (B, L), V = targets_BxL.shape, head_DxV.shape[1]
    shards = constrain.shards("batch")
    shard_rows = B // shards
    rows = rows_per_block(shard_rows, L, V, constrain.platform)

    def split(x_BxLx_: jax.Array) -> jax.Array:
        x_SxNxRxLx_ = x_BxLx_.reshape(shards, shard_rows // rows, rows, *x_BxLx_.shape[1:])
        return x_SxNxRxLx_.swapaxes(0, 1)

    arrays = (hidden_BxLxD, targets_BxL, weights_BxL)
    return tuple(split(x) for x in arrays if x is not None)


def _unblock(x_NxSxRxLx_: jax.Array) -> jax.Array:
    """Inverts `_blocks`."""
    N, S, R = x_NxSxRxLx_.shape[:3]
    return x_NxSxRxLx_.swapaxes(0, 1).reshape(N * S * R, *x_NxSxRxLx_.shape[3:])
