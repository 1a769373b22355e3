"""Sums of gradients over microbatches: each layer adds its gradient in place, in the backward pass.

Without this module, the backward pass of a loop over layers makes an array of the gradients of all
layers, and another operation adds the array to the sum over microbatches: one more array in memory,
and more passes over it.

Here the forward loop over layers carries `sums`, a tree whose values are never read. So the
backward loop carries the cotangent of `sums`, and `read` makes each layer add its gradient to this
cotangent. The cotangent that the caller passes in is the sum over earlier microbatches:

    def loss_and_sums(sums): ...  # takes all weights through `read`; returns the loss and the sums
    (loss, _), vjp = jax.vjp(loss_and_sums, zeros)
    (total,) = vjp((jnp.ones(()), total))  # total + the gradient of this microbatch
"""

from typing import Any

import jax
import jax.numpy as jnp


@jax.custom_vjp
def read(weights: Any, sums: Any, layer: jax.Array | None = None) -> tuple[Any, Any]:
    """Returns the weights as float32, and the sums as they are.

    In the backward pass, the gradient of the weights is added to the cotangent of the sums, and
    the argument `weights` itself gets no gradient. Weights and sums are trees of one structure.
    With a `layer`, `weights` are those of one layer, and the first axis of the sums is the layer.
    """
    del layer
    return jax.tree.map(lambda weight: weight.astype(jnp.float32), weights), sums


def _forward(weights: Any, sums: Any, layer: jax.Array | None) -> tuple[Any, jax.Array | None]:
    return read(weights, sums, layer), layer


def _backward(layer: jax.Array | None, cotangents: tuple[Any, Any]) -> tuple[None, Any, None]:
    def add(total: jax.Array, grad: jax.Array) -> jax.Array:
        if layer is None:
            return (total + grad).astype(total.dtype)
        part = jax.lax.dynamic_index_in_dim(total, layer, keepdims=False)
        part = (part + grad).astype(total.dtype)
        return jax.lax.dynamic_update_index_in_dim(total, part, layer, axis=0)

    grads, sums = cotangents
    return None, jax.tree.map(add, sums, grads), None


read.defvjp(_forward, _backward)


def read_except(name: str, weights: dict[str, Any], sums: dict[str, Any]) -> tuple[Any, Any]:
    """Returns the result of `read`, except that one item of both dicts is returned as it is."""
    parts = ({key: leaf for key, leaf in tree.items() if key != name} for tree in (weights, sums))
    read_weights, read_sums = read(*parts)
    return {**read_weights, name: weights[name]}, {**read_sums, name: sums[name]}
