"""Memory of a layout on each device, computed without any device or array.

Weights, moments, averages and gradients are exact, by `sharding.tree_shardings`. Activations are
estimated, because the compiler decides which arrays are alive at once.

Legend: D width, F MLP width, H heads, L length, V rows of the embedding, N layers, o bytes of an
operand of a matrix product.
"""

import dataclasses
import math
from collections.abc import Mapping

import jax
from jax.sharding import AbstractMesh

from anytime_jax.config.schema import Config
from anytime_jax.distributed import sharding
from anytime_jax.models import attention, decoder, loss

_FLOAT32 = 4
# Gradient and intermediate results of the optimizer, in copies of the weights: what XLA's CPU
# compiler allocates for an update of few tokens.
_UPDATE_COPIES = 2.4


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on each device while a run trains.

    Attributes:
      averages: float32; 0 if they are in host memory, although updating them needs device memory.
      gradients: one copy of the weights; with microbatches two, the sum and the microbatch's.
      activations: estimate of everything else (`estimate_activations`).
    """

    parameters: int
    moments: int
    averages: int
    gradients: int
    activations: int

    @property
    def least(self) -> int:
        """State and one gradient, which the clip needs whole: a lower bound for any compiler."""
        return self.parameters + self.moments + self.averages + self.parameters

    @property
    def total(self) -> int:
        """Sum of all parts."""
        return self.parameters + self.moments + self.averages + self.gradients + self.activations


def measure(config: Config, shape: Mapping[str, int], platform: str) -> Memory:
    """Returns the memory of a run on a mesh of this shape; `platform` is "cpu", "gpu" or "tpu".

    Raises InputError if the mesh does not divide a parameter.
    """
    weights = sum(_weights(config.model, shape).values())
    parts = config.microbatches > 1 or config.clock.growth  # a grown batch has several
    gradients = weights * (2 if parts else 1)
    working = estimate_activations(config, shape, platform)
    update = round(_UPDATE_COPIES * weights) - gradients
    elsewhere = config.average_memory == "host" and platform != "cpu"
    return Memory(
        parameters=weights,
        moments=2 * weights,
        averages=0 if elsewhere else len(config.averages) * weights,
        gradients=gradients,
        activations=max(working, update),
    )


def estimate_activations(config: Config, shape: Mapping[str, int], platform: str) -> int:
    """Returns an estimate of the bytes of the forward and backward pass of a microbatch.

        tokens * N * kept + max(tokens * stream + logits, tokens * block) + gathered

    with `tokens = L * batch_size / microbatches / batch shards`. `block` is the bytes per token
    that JAX saves of a block without remat, and `kept` the same or, with remat,

                  whole on each device    split over `tensor`
        none      (24 + 2o) D             (24 + o) D + qkv + (12 + o) F + (4 + o) H L
        products  8 D (olmo2 12 D)        12 D + 4 F
        full      4 D

    and olmo2 has 8 F more in the first line, 4 F more in the second, for its gate. `qkv`, the
    operands of attention, is 8 D + o D on the plain path and in blocks, 3o D with "xla", and 4o D
    with "cudnn", its output included; only cudnn does without the probabilities, the term in H L,
    of which blocks have three quarters. `stream` is (12 + o) D, and `logits` those of the rows that
    the loss has at once, with their gradient: 8 V / tensor a token.
    `gathered`, where the parameters are split over `fsdp`, is the embedding, the head and one block
    gathered for use, and their gradients. The arguments are those of `measure`.
    """
    cfg, tensor = config.model, shape["tensor"]
    shards = math.prod(shape.values()) // tensor
    rows = math.ceil(config.batch_size / config.microbatches / shards)
    tokens = rows * cfg.length
    operand = 2 if cfg.dtype == "bfloat16" and platform != "cpu" else _FLOAT32
    D, V = cfg.width, cfg.embedding_rows
    at_once = loss.rows_per_block(rows, cfg.length, V, platform)
    logits = 2 * _FLOAT32 * at_once * cfg.length * V / tensor
    head = tokens * (3 * _FLOAT32 + operand) * D + logits
    block = _block(cfg, tensor, operand, platform)
    kept = block if cfg.remat == "none" else _recomputed(cfg, tensor)
    gathered = 0
    if shape["fsdp"] > 1:
        whole = _weights(cfg, {**shape, "fsdp": 1})
        outside = whole.pop("embedding") + whole.pop("head")
        gathered = 2 * (outside + sum(whole.values()) // cfg.layers)
    return round(tokens * cfg.layers * kept + max(head, tokens * block)) + gathered


def _block(cfg: decoder.ModelConfig, tensor: int, operand: int, platform: str) -> float:
    """Bytes per token that JAX saves of a block without remat."""
    D, F, path = cfg.width, cfg.mlp_width, decoder.resolve_attention(cfg, platform)
    operands = {"xla": 3 * operand, "cudnn": 4 * operand}.get(path, 2 * _FLOAT32 + operand)
    split = (6 * _FLOAT32 + operand + operands) * D
    split += ((5 if cfg.architecture == "olmo2" else 3) * _FLOAT32 + operand) * F
    kept = {"cudnn": 0.0, "blocks": attention.BLOCKS_SHARE}.get(path, 1.0)
    split += kept * (_FLOAT32 + operand) * cfg.heads * cfg.length
    return (6 * _FLOAT32 + 2 * operand) * D + split / tensor


def _recomputed(cfg: decoder.ModelConfig, tensor: int) -> float:
    """Bytes per token that a block with remat saves."""
    D, F, gated = cfg.width, cfg.mlp_width, cfg.architecture == "olmo2"
    if cfg.remat == "full":
        return _FLOAT32 * D
    split = 3 * D + (2 if gated else 1) * F
    return _FLOAT32 * ((3 if gated else 2) * D + split / tensor)


def _weights(cfg: decoder.ModelConfig, shape: Mapping[str, int]) -> dict[str, int]:
    """Bytes of the parameters on each device, by the first name on their paths."""
    mesh = AbstractMesh(tuple(shape.values()), tuple(shape))
    shapes = decoder.param_shapes(cfg)
    shardings = sharding.tree_shardings(shapes, decoder.PARAMETER_AXES, mesh)
    sizes = jax.tree.map(
        lambda x, placed: math.prod(placed.shard_shape(x.shape)) * x.dtype.itemsize,
        shapes,
        shardings,
    )
    return {name: sum(jax.tree.leaves(part)) for name, part in sizes.items()}
