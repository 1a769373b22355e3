"""Objective of a run: the losses of a decoder on windows of tokens, and their gradient.

Shape suffixes: B batch, L length, T = L + 1 tokens of a window, M microbatches, S shards over data.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from anytime_jax.config.model import Dtype, ModelConfig
from anytime_jax.config.run_settings import DataConfig
from anytime_jax.data.dataset_info import Delimiters
from anytime_jax.distributed import sharding
from anytime_jax.errors import RunError
from anytime_jax.models import decoder, gradient_sum_vjp
from anytime_jax.models.attention import Documents, choose_implementation, find_documents
from anytime_jax.models.decoder import Params
from anytime_jax.models.loss import (
    mean_loss_from_hidden,
    token_losses,
    token_losses_from_hidden,
)


@dataclasses.dataclass(frozen=True)
class DocumentRules:
    """How the documents in a window are treated.

    Attributes:
      delimiters: the tokens that begin and end every document.
      masks: whether tokens attend to their own document only.
      most: largest number of documents of a window that are kept apart; with more, all after the
        first `most - 1` count as one.
      counts_boundaries: whether the loss of a token that follows an end of text counts in training.
      refuses: whether a window with more than `most` documents is an error.
    """

    delimiters: Delimiters
    masks: bool
    most: int
    counts_boundaries: bool
    refuses: bool = False

    def find(self, tokens_BxL: jax.Array) -> Documents | None:
        """Returns the documents of a batch that attention keeps apart; None if they are joined."""
        if not self.masks:
            return None
        return find_documents(self.delimiters.find_ends(tokens_BxL), self.most)

    def check(self, tokens_BxT: np.ndarray, where: str) -> None:
        """Raises a RunError if windows that were read have too many documents.

        `where` says in the message which windows they are.
        """
        if not (self.masks and self.refuses):
            return
        ends_BxL = self.delimiters.find_ends(tokens_BxT[:, :-1])[:, :-1]
        documents = 1 + int(ends_BxL.sum(axis=1).max(initial=0))
        if documents > self.most:
            raise RunError(
                f"a window of {where} has {documents} documents, and config.data.most_documents = "
                f"{self.most}: set it to {documents} or more, which needs a new run or "
                "branch.change, or set config.data.surplus = 'merge'"
            )

    def boundary_scale(self, tokens_BxT: jax.Array) -> jax.Array | None:
        """Returns the factor of the losses that count; None if all losses of a batch count.

        The factor is the number of tokens divided by the number of losses that count. The mean
        over all tokens is then the mean of the losses that count.
        """
        if self.counts_boundaries:
            return None
        ends_BxL = self.delimiters.find_ends(tokens_BxT[:, :-1])
        counted = jnp.mean(~ends_BxL, dtype=jnp.float32)
        return 1 / jnp.maximum(counted, 1 / tokens_BxT.size)


# Documents are joined, and every loss counts.
JOINED = DocumentRules(Delimiters(None, -1), masks=False, most=1, counts_boundaries=True)


def document_rules(data: DataConfig, delimiters: Delimiters) -> DocumentRules:
    """Returns how a run treats documents that stand between `delimiters`."""
    masks, refuses = data.documents == "mask", data.surplus == "refuse"
    return DocumentRules(delimiters, masks, data.most_documents, data.boundary_loss, refuses)


@dataclasses.dataclass(frozen=True)
class Objective:
    """Losses of a decoder on windows of tokens; its methods can be differentiated and compiled.

    Attributes:
      model: the decoder.
      constrain: the sharding of arrays in a program.
      rules: how the documents in a window are treated.
    """

    model: ModelConfig
    constrain: sharding.ShardingConstraint = sharding.UNCONSTRAINED
    rules: DocumentRules = JOINED

    def loss_and_gradient(
        self,
        params: Params,
        tokens_BxT: jax.Array,
        microbatches: int = 1,
        accumulation: Dtype = "float32",
    ) -> tuple[jax.Array, Any]:
        """Returns the mean loss and gradient of a batch, float32.

        Each part of the mesh axis `data` accumulates the gradient of its rows, in the type
        `accumulation`. The parts are summed once an update, not in every microbatch. The exception
        is cuDNN's attention of packed documents, on a mesh that has further axes: JAX cannot map
        this kernel over `data` alone, so every microbatch sums.
        """
        scale, mesh = self.rules.boundary_scale(tokens_BxT), self.constrain.mesh

        def of_part(
            objective: Objective, params: Params, tokens_BxT: jax.Array, scale: jax.Array | None
        ) -> tuple[jax.Array, Any]:
            def loss_and_sums(sums: Any, tokens_BxT: jax.Array) -> tuple[jax.Array, Any]:
                return objective.loss_and_sums(params, sums, tokens_BxT, scale)

            dtype = accumulation if microbatches > 1 else "float32"
            zeros = optax.tree.zeros_like(params, dtype=dtype)
            zeros = decoder.split_layers(self.model, zeros)
            loss, sums = _accumulate(loss_and_sums, zeros, tokens_BxT, microbatches)
            return loss, optax.tree.cast(decoder.stack_layers(self.model, sums), jnp.float32)

        def mean(sums: tuple[jax.Array, Any], parts: int = 1) -> tuple[jax.Array, Any]:
            return jax.tree.map(lambda leaf: leaf / (parts * microbatches), sums)

        if mesh is None or mesh.shape["data"] == 1:
            return mean(of_part(self, params, tokens_BxT, scale))
        parts = mesh.shape["data"]
        stored = self._shardings(jax.eval_shape(self._split, params))
        params = self._gather(params)
        if parts == mesh.size:
            local = self._constrained(is_local=True)

            def of_device(*arguments: Any) -> tuple[jax.Array, Any]:
                loss, grads = of_part(local, *arguments)
                return jax.lax.psum(loss, "data"), jax.tree.map(_sum_over_data, grads, stored)

            whole, rows = PartitionSpec(), PartitionSpec("data")
            of_devices = jax.shard_map(
                of_device,
                mesh=mesh,
                in_specs=(whole, rows, whole),
                out_specs=(whole, jax.tree.map(lambda place: place.spec, stored)),
                # Weights would become varying, and their gradients sums in each loop.
                check_vma=False,
            )
            loss, grads = mean(of_devices(params, tokens_BxT, scale), parts)
            return loss, decoder.join_parts(grads)
        length = tokens_BxT.shape[1] - 1
        implementation = choose_implementation(self.model, self.constrain.device, length)
        if implementation == "cudnn" and self.rules.masks:
            return mean(of_part(self, params, tokens_BxT, scale))
        within = self._constrained(batch_axes=("fsdp",))

        def of_rows(*arguments: Any) -> tuple[jax.Array, Any]:
            return of_part(within, *arguments)

        tokens_SxBxT = tokens_BxT.reshape(parts, -1, tokens_BxT.shape[1])
        # Inside a `shard_map` over `data` alone, XLA fails on the embedding's gather.
        of_parts = jax.vmap(of_rows, in_axes=(None, 0, None), spmd_axis_name="data")
        losses, grads = of_parts(params, tokens_SxBxT, scale)
        grads = jax.tree.map(lambda leaf: leaf.sum(axis=0), grads)
        grads = jax.lax.with_sharding_constraint(grads, stored)
        loss, grads = mean((losses.sum(), grads), parts)
        return loss, decoder.join_parts(grads)

    def loss_and_sums(
        self,
        params: Params,
        sums: Params | None,
        tokens_BxT: jax.Array,
        boundary_scale: jax.Array | None = None,
    ) -> tuple[jax.Array, Params | None]:
        """Returns the mean loss in nats of the tokens of a batch, and the sums if there are any.

        In the backward pass, the gradient is added to the cotangents of the sums
        (`gradient_sum_vjp`). The gradient includes the z-loss of the model; the loss does not. With
        `boundary_scale`, the loss of a token that follows an end of text does not count, and the
        other losses are multiplied by `boundary_scale`.
        """
        if sums is not None:  # the blocks are read in the loop over layers
            params, sums = gradient_sum_vjp.read_except("blocks", params, sums)
        hidden_BxLxD, targets_BxL, block_sums = self._hidden(
            params, tokens_BxT, sums and sums["blocks"]
        )
        if sums is not None:
            sums = {**sums, "blocks": block_sums}
        weights_BxL = None
        if boundary_scale is not None:
            ends_BxL = self.rules.delimiters.find_ends(tokens_BxT[:, :-1])
            weights_BxL = jnp.where(ends_BxL, 0, boundary_scale)
        loss = mean_loss_from_hidden(
            hidden_BxLxD,
            decoder.head(self.model, params),
            targets_BxL,
            self.model.dtype,
            self.constrain,
            self.model.z_loss,
            weights_BxL,
        )
        return cast(jax.Array, loss), sums

    def token_losses(
        self,
        params: Params,
        tokens_BxT: jax.Array,
        of_logits: Callable[[jax.Array, jax.Array], Any] = token_losses,
    ) -> Any:
        """Returns the loss in nats of every token of a batch, float32 of shape BxL.

        `of_logits` is as in `token_losses_from_hidden`.
        """
        params = self._gather(params)
        hidden_BxLxD, targets_BxL, _ = self._hidden(params, tokens_BxT)
        return token_losses_from_hidden(
            hidden_BxLxD,
            decoder.head(self.model, params),
            targets_BxL,
            self.model.dtype,
            self.constrain,
            of_logits,
        )

    def window_losses(self, params: Params, tokens_BxT: jax.Array) -> jax.Array:
        """Returns the sum of the token losses of each window."""
        return self.token_losses(params, tokens_BxT).sum(axis=1)

    def position_losses(
        self, params: Params, tokens_BxT: jax.Array, weights_B: jax.Array
    ) -> jax.Array:
        """Returns the sum of token losses at each position, each row multiplied by its weight."""
        return jnp.sum(weights_B[:, None] * self.token_losses(params, tokens_BxT), axis=0)

    def measure_layers(self, params: Params, tokens_BxT: jax.Array) -> dict[str, Any]:
        """Returns what the blocks measure on a batch, as `decoder.measure_layers`."""
        inputs_BxL = self.constrain(tokens_BxT, ("batch", None))[:, :-1]
        documents = self.rules.find(inputs_BxL)
        params = self._gather(params)
        return decoder.measure_layers(self.model, params, inputs_BxL, self.constrain, documents)

    def _constrained(self, **changes: Any) -> "Objective":
        return dataclasses.replace(self, constrain=dataclasses.replace(self.constrain, **changes))

    def _hidden(
        self, params: Params, tokens_BxT: jax.Array, block_sums: Any = None
    ) -> tuple[jax.Array, jax.Array, Any]:
        """Returns the hidden states of a batch, the targets, and the sums of the blocks."""
        tokens_BxT = self.constrain(tokens_BxT, ("batch", None))
        inputs_BxL = tokens_BxT[:, :-1]
        documents = self.rules.find(inputs_BxL)
        hidden_BxLxD, block_sums = decoder.hidden_and_gradient_sums(
            self.model, params, block_sums, inputs_BxL, self.constrain, documents
        )
        return hidden_BxLxD, tokens_BxT[:, 1:], block_sums

    def _gather(self, params: Params) -> Params:
        """Returns parameters gathered over `data`, for TPUs by parts (`_split`).

        A matrix that is only used in products is rounded to the type of these products first, as
        the products would round it anyway.
        """
        mesh = self.constrain.mesh
        if mesh is None or mesh.shape["data"] == 1:
            return params
        dtypes: dict[str, Any] = {}
        if decoder.block_class(self.model) is decoder.Block:
            dtypes = dict.fromkeys((*decoder.MATRIX_AXES, "head"), self.model.dtype)

        def rounded(path: Any, leaf: jax.Array) -> jax.Array:
            return leaf.astype(dtypes.get(path[-1].key, leaf.dtype))

        params = self._split(jax.tree_util.tree_map_with_path(rounded, params))
        return jax.lax.with_sharding_constraint(params, self._shardings(params, gathered=True))

    @property
    def _splits_parts(self) -> bool:
        return self.constrain.platform == "tpu" and (
            decoder.block_class(self.model) is decoder.Block
        )

    def _split(self, params: Params) -> Params:
        """Returns the parameters as the program of the platform has them (`split_parts`)."""
        return decoder.split_parts(self.model, params) if self._splits_parts else params

    def _shardings(self, params: Params, *, gathered: bool = False) -> Params:
        """Returns `parameter_shardings` of what `_split` returns."""
        parts = decoder.PART_AXES if self._splits_parts else {}
        axes = {**decoder.parameter_axes(self.model), **parts}
        mesh = cast(Mesh, self.constrain.mesh)
        return sharding.parameter_shardings(params, axes, mesh, gathered=gathered)


def _sum_over_data(grad: jax.Array, stored: NamedSharding) -> jax.Array:
    """Returns the gradient, summed over `data`: the part of it that this device stores."""
    if "data" not in stored.spec:
        return jax.lax.psum(grad, "data")
    axis = stored.spec.index("data")
    # The parts get an axis of their own: without it, TPUs sum arrays of odd sizes whole.
    parts = jax.lax.axis_size("data")
    split = (*grad.shape[:axis], parts, -1, *grad.shape[axis + 1 :])
    return jax.lax.psum_scatter(grad.reshape(split), "data", scatter_dimension=axis)


def _accumulate(
    loss_and_sums: Callable[[Any, jax.Array], tuple[jax.Array, Any]],
    zeros: Any,
    tokens_BxT: jax.Array,
    microbatches: int,
) -> tuple[jax.Array, Any]:
    """Returns the sums of the microbatches' losses and gradients.

    `loss_and_sums` is a function of sums and tokens, as for `gradient_sum_vjp`.
    """
    B, T = tokens_BxT.shape
    # Row i goes to microbatch i mod M, so that every device keeps a share of each.
    tokens_MxBxT = tokens_BxT.reshape(B // microbatches, microbatches, T).swapaxes(0, 1)

    def add(total: tuple[jax.Array, Any], tokens_BxT: jax.Array) -> tuple[Any, None]:
        (loss, _), vjp = jax.vjp(lambda sums: loss_and_sums(sums, tokens_BxT), zeros)
        (sums,) = vjp((jnp.ones_like(loss), total[1]))
        return (total[0] + loss, sums), None

    total, _ = jax.lax.scan(add, (jnp.zeros((), jnp.float32), zeros), tokens_MxBxT)
    return total
