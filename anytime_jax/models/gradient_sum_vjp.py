"""Sums of gradients, to which each layer adds its own where it is computed.

The gradient of a loop over layers is otherwise an array of all layers, which is added to the sums
of other microbatches afterwards: one more array in memory, and more passes over it. Here the loop
over layers carries the sums. Their values are not read; the backward loop carries their cotangents,
and adds to them in place:

    def loss_and_sums(sums): ...  # reads all weights by `read`
    (loss, _), vjp = jax.vjp(loss_and_sums, zeros)
    (sums,) = vjp((jnp.ones(()), sums))  # the sums with this gradient
"""

from typing import Any

import jax
import jax.numpy as jnp


@jax.custom_vjp
def read(weights: Any, sums: Any, layer: jax.Array | None = None) -> tuple[Any, Any]:
    """Returns weights as float32, and the sums, whose cotangents their gradients are added to.

    Both are trees of one structure. With a `layer`, the weights are those of that layer, and the
    sums have all layers on their first axis. The gradient of `weights` itself is zero.
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
    """Returns what `read` does, but one item of both dicts as it is."""
    parts = ({key: leaf for key, leaf in tree.items() if key != name} for tree in (weights, sums))
    read_weights, read_sums = read(*parts)
    return {**read_weights, name: weights[name]}, {**read_sums, name: sums[name]}
