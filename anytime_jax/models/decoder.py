"""Decoder-only transformer: the paper's OLMo, OLMo-2, Llama, Qwen, or a kind of your own.

No other module uses Flax. Everywhere else, parameters are a plain dict of float32 arrays:

    {"embedding", "blocks": {"qkv", "attn_out", "mlp_in", "mlp_out", ...}, "final_norm", "head"}

A model with fewer heads of keys than of queries has "q" and "kv" in the place of "qkv". A tied
model has no "head": the transposed embedding takes its place. Every leaf of "blocks" is stacked
over layers, whether the layers run in a loop or unrolled.

Shape suffixes: B batch, L length, M length of keys, D width, C parts fused in a product,
H heads of queries, G heads of keys, K head size, E all heads' channels, F MLP width, V rows of the
embedding, N layers.

Source: the paper's "Architecture and Dataset", and the OLMo code it is based on.
"""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
from flax import linen as nn

from anytime_jax.config.model import ModelConfig
from anytime_jax.distributed.sharding import UNCONSTRAINED, ShardingConstraint
from anytime_jax.errors import InputError, format_value
from anytime_jax.models import attention, between_products, gradient_sum_vjp, norm
from anytime_jax.models.attention import (
    Documents,
    cached_attention,
    causal_attention,
    choose_implementation,
    largest_logit,
    rotary_table,
)
from anytime_jax.models.between_products import NormForm
from anytime_jax.models.mixed_einsum import Precision, mixed_einsum, mixed_einsums
from anytime_jax.models.norm import normalize

Params = dict[str, Any]
Cache = dict[str, jax.Array]  # {"keys", "values"}, each NxBxMxGxK

_RESIDUAL_AXES = ("batch", None, None)
_MEASURES = "intermediates"  # the collection of Flax that `init` leaves out

# Axis names by parameter name, for `sharding.parameter_shardings`. Leaves of "blocks" have the axis
# of layers in front. Other parameters are small vectors, which are replicated.
PARAMETER_AXES: dict[str, tuple[str | None, ...]] = {
    "embedding": ("vocabulary", "width"),
    "qkv": ("width", None, "heads"),
    "q": ("width", None, "heads"),
    "kv": ("width", None, "heads"),
    "attn_out": ("heads", "width"),
    "mlp_in": ("width", None, "mlp"),
    "mlp_out": ("mlp", "width"),
    "head": ("width", "vocabulary"),
}
# The same of the parts of fused matrices in parameters that `split_parts` returns.
PART_AXES: dict[str, tuple[str | None, ...]] = {
    **dict.fromkeys(("queries", "keys", "values"), ("width", "heads", None)),
    **dict.fromkeys(("gate", "up"), ("width", "mlp")),
}
_PARTS = {
    "qkv": ("queries", "keys", "values"),
    "kv": ("keys", "values"),
    "mlp_in": ("gate", "up"),
}

_GROWING_AXES = {"width", "heads", "mlp"}


def parameter_axes(config: ModelConfig) -> dict[str, tuple[str | None, ...]]:
    """Returns the axis names of all parameters by name, including those that a kind adds."""
    return {**PARAMETER_AXES, **config.parameter_axes}


# The reduction and the output axis of every matrix of the blocks, counted from the end, for
# `optimizers.muon`. Other axes count matrices: layers; queries, keys and values; a gate's two.
MATRIX_AXES = {
    **dict.fromkeys(("qkv", "q", "kv", "mlp_in"), (-3, -1)),
    **dict.fromkeys(("attn_out", "mlp_out"), (-2, -1)),
}


@functools.partial(jax.jit, static_argnums=0)  # jit traces the initialization once
def init_params(config: ModelConfig, key: jax.Array) -> Params:
    """Returns initial float32 parameters, the same on any layout of devices."""
    # Flax calls a block with a text of one token, which not every kernel takes.
    plain = dataclasses.replace(config, attention="plain")
    return dict(_Parameters(plain).init(key)["params"])


def apply(config: ModelConfig, params: Params, tokens_BxL: jax.Array) -> jax.Array:
    """Returns the next-token logits, float32 of shape BxLxV, for token ids of any length."""
    return _logits(config, params, hidden(config, params, tokens_BxL))


def hidden(
    config: ModelConfig,
    params: Params,
    tokens_BxL: jax.Array,
    constrain: ShardingConstraint = UNCONSTRAINED,
    documents: Documents | None = None,
) -> jax.Array:
    """Returns the residual stream after the final norm, float32 of shape BxLxD.

    The loss applies the head to the result, one block of rows at a time. With `documents`, tokens
    attend to their own document only.
    """
    return hidden_and_gradient_sums(config, params, None, tokens_BxL, constrain, documents)[0]


def hidden_and_gradient_sums(
    config: ModelConfig,
    params: Params,
    sums: Any,
    tokens_BxL: jax.Array,
    constrain: ShardingConstraint = UNCONSTRAINED,
    documents: Documents | None = None,
) -> tuple[jax.Array, Any]:
    """Returns the result of `hidden`, and `sums`, which the loop over layers carries.

    `sums` are gradient sums of `params["blocks"]` or None. Unless they are None, the parameters of
    each layer are read by `gradient_sum_vjp.read`.
    """
    hidden_BxLxD, _, sums = _run(
        config, params, tokens_BxL, constrain, documents=documents, sums=sums
    )
    return hidden_BxLxD, sums


def measure_layers(
    config: ModelConfig,
    params: Params,
    tokens_BxL: jax.Array,
    constrain: ShardingConstraint = UNCONSTRAINED,
    documents: Documents | None = None,
) -> dict[str, Any]:
    """Returns what the blocks measure in a forward pass, by name, float32 of shape N.

    The layers run in a loop, whatever `layer_loop` says. A `Block` measures root mean squares:
    "residual", the residual stream after it; "attention" and "mlp", what each adds to the stream.
    Its "logit" is the largest score before the softmax.
    """
    block = _make_block(config, constrain, 0, documents)

    def run_layer(x_BxLxD: jax.Array, of_layer: tuple[Params, jax.Array]) -> tuple[jax.Array, Any]:
        params, layer = of_layer
        (x_BxLxD, _), found = block.apply(
            {"params": params}, x_BxLxD, layer, None, mutable=[_MEASURES]
        )
        return x_BxLxD, found.get(_MEASURES, {})  # a block of the user may have none

    layers = params["blocks"], jnp.arange(config.layers)
    return jax.lax.scan(run_layer, _embed(config, params, tokens_BxL, constrain), layers)[1]


def root_mean_square(*arrays: jax.Array) -> jax.Array:
    """Returns the root of the mean square of all elements, a float32 scalar."""
    squares = (jnp.square(x.astype(jnp.float32)).sum() for x in arrays)
    return jnp.sqrt(sum(squares, jnp.float32(0)) / sum(x.size for x in arrays))


def apply_block(
    config: ModelConfig, params: Params, x_BxLxD: jax.Array, layer: int | jax.Array
) -> jax.Array:
    """Returns the residual stream after one block, with `params` of that layer alone."""
    block = block_class(config)(config, UNCONSTRAINED, position=0)
    return block.apply({"params": params}, x_BxLxD, layer, None)[0]


def apply_head(config: ModelConfig, params: Params, x_BxLxD: jax.Array) -> jax.Array:
    """Returns the logits of the residual stream after the last block.

    Of the parameters, only the final norm and the head are read.
    """
    return _logits(config, params, _final_norm(config, params, x_BxLxD))


def head(config: ModelConfig, params: Params) -> jax.Array:
    """Returns the matrix that turns hidden states into logits, of shape DxV.

    Under "mup", it is the parameter divided by the growth of the width.
    """
    head_DxV = params["embedding"].T if config.tied else params["head"]
    return head_DxV if config.width_growth == 1 else head_DxV / config.width_growth


def init_cache(config: ModelConfig, batch: int, length: int) -> Cache:
    """Returns an empty cache for `batch` texts of at most `length` tokens.

    Keys and values are stored in the type to which products round them anyway, `config.dtype`: in
    16 bits they take half the memory and give the same results.
    """
    shape = (config.layers, batch, length, config.key_heads, config.head_width)
    return {name: jnp.zeros(shape, config.dtype) for name in ("keys", "values")}


def decode(
    config: ModelConfig,
    params: Params,
    cache: Cache,
    tokens_BxL: jax.Array,
    position: int | jax.Array,
) -> tuple[jax.Array, Cache]:
    """Returns the next-token logits of tokens that follow those in the cache, and the new cache.

    The logits, float32 of shape BxLxV, equal the logits that `apply` returns for the whole texts.
    `position` is the number of tokens in the cache before the new ones, the same in every row. The
    cache from `position` on is not read, and `position + L` must not exceed its length. A prompt
    may be padded at its end: no token of the prompt attends to the padding, and tokens that are
    decoded later replace it.

    Jit this function with the cache donated. It compiles twice: for the prompt, and for one token.
    """
    output = _run(config, params, tokens_BxL, UNCONSTRAINED, cache, position)
    return _logits(config, params, output[0]), cast(Cache, output[1])


def _logits(config: ModelConfig, params: Params, hidden_BxLxD: jax.Array) -> jax.Array:
    precision = Precision(config.dtype, UNCONSTRAINED.platform)
    logits_BxLxV = mixed_einsum("bld,dv->blv", hidden_BxLxD, head(config, params), precision)
    return logits_BxLxV.astype(jnp.float32)


@functools.lru_cache
def param_shapes(config: ModelConfig) -> Params:
    """Returns the parameters' shapes and dtypes, a cached tree that callers must not modify."""
    return jax.eval_shape(lambda: init_params(config, jax.random.key(0)))


def growing_matrices(config: ModelConfig) -> set[str]:
    """Returns the names of the block parameters that have two axes which grow with the width.

    Raises an InputError for a matrix whose axes are not in `parameter_axes`.
    """
    axes = parameter_axes(config)
    matrices = [name for name, _ in block_matrices(param_shapes(config))]
    if unknown := [name for name in matrices if name not in axes]:
        raise InputError(
            f"parameter_axes of {type(config).__name__} does not name the axes of "
            f"{', '.join(unknown)}: name them, such as ('width', 'mlp')",
            "config.model.parametrization",
            config.parametrization,
        )
    return {x for x in matrices if sum(axis in _GROWING_AXES for axis in axes[x]) > 1}


def block_matrices(params: Params) -> list[tuple[str, Any]]:
    """Returns the matrices of the blocks, stacked over layers, each after its name."""
    leaves = jax.tree_util.tree_leaves_with_path(params["blocks"])
    named = [(path[-1].key, leaf) for path, leaf in leaves]
    return [(x, leaf) for x, leaf in named if leaf.ndim > 2 and not x.endswith("_bias")]


def matrix_axes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Returns the reduction and the output axis of every matrix of a model's blocks, by name."""
    axes = {**MATRIX_AXES, **config.matrix_axes}
    return {name: axes[name] for name in param_shapes(config)["blocks"] if name in axes}


@functools.lru_cache
def count_params(config: ModelConfig) -> dict[str, int]:
    """Returns the number of parameters in the block matrices, in the head and in total.

    In the total of a tied model, embedding and head are one parameter.
    """
    shapes = param_shapes(config)
    matrices = [x for name, x in shapes["blocks"].items() if name in parameter_axes(config)]
    return {
        "blocks": sum(x.size for x in matrices),
        "head": config.width * config.embedding_rows,
        "all": sum(x.size for x in jax.tree.leaves(shapes)),
    }


def _run(
    config: ModelConfig,
    params: Params,
    tokens_BxL: jax.Array,
    constrain: ShardingConstraint,
    cache: Cache | None = None,
    position: int | jax.Array = 0,
    documents: Documents | None = None,
    sums: Any = None,
) -> tuple[jax.Array, Cache | None, Any]:
    """Returns the residual stream after the final norm, the new cache, and the sums."""
    block = _make_block(config, constrain, position, documents)
    is_unrolled = config.layer_loop == "unroll"

    def run_block(
        params: Params, sums: Any, x_BxLxD: jax.Array, layer: jax.Array, cache: Any
    ) -> tuple[jax.Array, Any, Any]:
        if sums is not None:
            params, sums = gradient_sum_vjp.read(params, sums, None if is_unrolled else layer)
        x_BxLxD, cache = block.apply({"params": params}, x_BxLxD, layer, cache)
        return x_BxLxD, sums, cache

    if config.remat != "none":
        policies = jax.checkpoint_policies
        policy = policies.save_from_both_policies(
            policies.dots_with_no_batch_dims_saveable,
            policies.save_only_these_names(attention.CHECKPOINT_NAME, norm.CHECKPOINT_NAME),
        )
        policy = policy if config.remat == "products" else None
        run_block = jax.checkpoint(run_block, policy=policy, prevent_cse=is_unrolled)

    x_BxLxD = _embed(config, params, tokens_BxL, constrain)
    if is_unrolled:
        run_block = jax.jit(run_block, inline=True)  # traces one block
        blocks, caches = (_each_layer(config, x) for x in (params["blocks"], cache))
        all_sums = [None] * config.layers if sums is None else list(sums)
        for i in range(config.layers):
            x_BxLxD, all_sums[i], caches[i] = run_block(
                blocks[i], all_sums[i], x_BxLxD, jnp.int32(i), caches[i]
            )
        cache = jax.tree.map(lambda *x: jnp.stack(x), *caches)
        return _final_norm(config, params, x_BxLxD), cache, sums and all_sums

    def run_layer(carry: tuple[jax.Array, Any], of_layer: tuple[Any, ...]) -> tuple[Any, Any]:
        (x_BxLxD, sums), (params, layer, cache) = carry, of_layer
        x_BxLxD, sums, cache = run_block(params, sums, x_BxLxD, layer, cache)
        return (x_BxLxD, sums), cache

    (x_BxLxD, sums), cache = jax.lax.scan(
        run_layer, (x_BxLxD, sums), (params["blocks"], jnp.arange(config.layers), cache)
    )
    return _final_norm(config, params, x_BxLxD), cache, sums


def _make_block(
    config: ModelConfig,
    constrain: ShardingConstraint,
    position: int | jax.Array,
    documents: Documents | None,
) -> "Block":
    """Returns the block of a model; raises an InputError if it would not keep documents apart."""
    block_type = block_class(config)
    masks = block_type.masks_documents or block_type.attend is Block.attend
    if documents is not None and not masks:
        raise InputError(
            f"the block of {type(config).__name__} has an attend of its own: let it use "
            "self.documents and set masks_documents = True, or take 'join'",
            "config.data.documents",
            "mask",
        )
    return block_type(config, constrain, position, documents, name="blocks")


def _embed(
    config: ModelConfig, params: Params, tokens_BxL: jax.Array, constrain: ShardingConstraint
) -> jax.Array:
    """Returns the residual stream before the first block."""
    # The embedding is not split along the width, so that rows are looked up where the tokens are.
    table_VxD = constrain(params["embedding"], ("vocabulary", None))
    stream_BxLxD = table_VxD[tokens_BxL].astype(config.residual_dtype)
    return constrain(stream_BxLxD, _RESIDUAL_AXES)


def split_layers(config: ModelConfig, sums: Params) -> Params:
    """Returns sums of gradients, in which an unrolled loop has a list of the sums of each block.

    The product that computes the gradient of a block can then add it to an array of its size.
    """
    if config.layer_loop == "scan":
        return sums
    return {**sums, "blocks": _each_layer(config, sums["blocks"])}


def stack_layers(config: ModelConfig, sums: Params) -> Params:
    """Inverts `split_layers`."""
    if config.layer_loop == "scan":
        return sums
    return {**sums, "blocks": jax.tree.map(lambda *x: jnp.stack(x), *sums["blocks"])}


def split_parts(config: ModelConfig, params: Params) -> Params:
    """Returns parameters in which a fused matrix is a dict of its parts.

    "qkv" of shape NxDxCxE becomes {"queries", "keys", "values"}, each of shape NxDxHxK, and
    "mlp_in" of shape NxDxCxF becomes {"gate", "up"}, each of shape NxDxF. A matrix with a bias
    stays as it is. So do queries, keys and values of heads that are no multiple of 128, the lanes
    of a TPU.

    In a loop over layers, a TPU copies an array of which a kernel needs a part. It would copy fused
    matrices, the saved results of products with them, and the gradients of these results.
    """
    names = []
    if config.gated and "mlp_in" not in config.biases:
        names.append("mlp_in")
    if config.head_width % 128 == 0 and "qkv" not in config.biases:
        names += ["qkv", "kv"]
    blocks = dict(params["blocks"])
    for name in blocks.keys() & set(names):
        parts = jnp.unstack(blocks[name], axis=2)
        if name != "mlp_in":
            parts = (x.reshape(*x.shape[:2], -1, config.head_width) for x in parts)
        blocks[name] = dict(zip(_PARTS[name], parts, strict=True))
    return {**params, "blocks": blocks}


def join_parts(params: Params) -> Params:
    """Inverts `split_parts`."""
    blocks = dict(params["blocks"])
    for name in blocks.keys() & _PARTS.keys():
        if isinstance(blocks[name], dict):
            parts = [blocks[name][x] for x in _PARTS[name]]
            blocks[name] = jnp.stack([x.reshape(*x.shape[:2], -1) for x in parts], axis=2)
    return {**params, "blocks": blocks}


def _each_layer(config: ModelConfig, blocks: Any) -> list[Any]:
    return [jax.tree.map(operator.itemgetter(i), blocks) for i in range(config.layers)]


def _final_norm(config: ModelConfig, params: Params, x_BxLxD: jax.Array) -> jax.Array:
    layer = Norm(config, name="final_norm")
    return cast(jax.Array, layer.apply({"params": params["final_norm"]}, x_BxLxD))


class _Parameters(nn.Module):
    """Declares the parameters of a model; `_run` computes with them."""

    config: ModelConfig

    @nn.compact
    def __call__(self) -> None:
        cfg = self.config
        V, D = cfg.embedding_rows, cfg.width
        self.param("embedding", _of_vocabulary(cfg), (V, D))
        blocks = nn.scan(
            block_class(cfg), variable_axes={"params": 0}, split_rngs={"params": True}
        )(cfg, UNCONSTRAINED, position=0, name="blocks")
        blocks(jnp.zeros((1, 1, D)), jnp.arange(cfg.layers), None)
        if not cfg.tied:
            self.param("head", _of_vocabulary(cfg), (D, V))
        Norm(cfg, name="final_norm")(jnp.zeros((1, 1, D)))


def block_class(config: ModelConfig) -> Any:
    """Returns the class of a model's blocks; raises an InputError if its `block` gives none."""
    if type(config).block is ModelConfig.block:
        return Block
    block = config.block()
    if not (isinstance(block, type) and issubclass(block, Block)):
        raise InputError(
            f"block() of {type(config).__name__} returned {format_value(block)}: return a subclass "
            "of anytime_jax.models.decoder.Block",
            "config.model",
        )
    return block


class Block(nn.Module):
    """Attention and MLP, each added to the residual stream.

    The `block` of a model may be a subclass with another `attend` or `mlp`. A subclass whose
    `attend` keeps `documents` apart sets `masks_documents` to True.
    """

    masks_documents: ClassVar[bool] = False

    config: ModelConfig
    constrain: ShardingConstraint
    position: int | jax.Array  # position of the first token
    documents: Documents | None = None

    @nn.compact
    def __call__(
        self, x_BxLxD: jax.Array, layer: jax.Array, cache: Cache | None
    ) -> tuple[jax.Array, Cache | None]:
        """Returns the residual stream after block `layer`, from 0, and the block's new cache.

        The cache is None except in decoding.
        """
        cfg = self.config
        attn_norm, mlp_norm = Norm(cfg, name="attn_norm"), Norm(cfg, name="mlp_norm")
        if cfg.norm_first:
            x_BxLxD, normed_BxLxD = _add_and_normalize(self, x_BxLxD, None, attn_norm)
            attended_BxLxD, cache = self.attend(normed_BxLxD, layer, cache)
            x_BxLxD, normed_BxLxD = _add_and_normalize(self, x_BxLxD, attended_BxLxD, mlp_norm)
            added_BxLxD = self.mlp(normed_BxLxD, layer)
        else:
            attended_BxLxD, cache = self.attend(x_BxLxD, layer, cache)
            attended_BxLxD = attn_norm(attended_BxLxD)
            x_BxLxD = (x_BxLxD + attended_BxLxD).astype(x_BxLxD.dtype)
            added_BxLxD = mlp_norm(self.mlp(x_BxLxD, layer))
        x_BxLxD = (x_BxLxD + added_BxLxD).astype(x_BxLxD.dtype)
        self.measure("attention", root_mean_square, attended_BxLxD)
        self.measure("mlp", root_mean_square, added_BxLxD)
        self.measure("residual", root_mean_square, x_BxLxD)
        return self.constrain(x_BxLxD, _RESIDUAL_AXES), cache

    def measure(self, name: str, function: Callable[..., jax.Array], *arrays: Any) -> None:
        """Adds `function(*arrays)` to the measures of `measure_layers`; nothing in other programs.

        The result is a scalar. An `attend` or `mlp` of your own can add measures too.
        """
        if self.is_mutable_collection(_MEASURES):
            value = function(*arrays)
            self.sow(_MEASURES, name, value, reduce_fn=lambda _, x: x, init_fn=lambda: value)

    @property
    def precision(self) -> Precision:
        """How matrix products round."""
        return Precision(self.config.dtype, self.constrain.platform)

    def attend(
        self, x_BxLxD: jax.Array, layer: jax.Array, cache: Cache | None
    ) -> tuple[jax.Array, Cache | None]:
        """Returns what attention adds, float32 of the input's shape, and the block's new cache."""
        cfg = self.config
        (L, D), H, K = x_BxLxD.shape[1:], cfg.heads, cfg.head_width
        positions = L if cache is None else cache["keys"].shape[1]
        table_2xMxK = rotary_table(positions, K, cfg.rope_theta, cfg.rope_scaling)
        table_2xLxK = jax.lax.dynamic_slice_in_dim(table_2xMxK, self.position, L, axis=1)
        heads = self._queries_keys_values(x_BxLxD, table_2xLxK)
        if cache is None:
            self.measure("logit", largest_logit, *heads[:2], self.precision, self.documents)
            implementation = choose_implementation(cfg, self.constrain.device, L)
            out_BxLxHxK = causal_attention(
                *heads, self.precision, implementation, self.constrain, self.documents
            )
        else:
            out_BxLxHxK, cache = cached_attention(*heads, cache, self.position, self.precision)
        attn_out_ExD = self.param("attn_out", _outward(cfg, H * K, layer), (H * K, D))
        attn_out_HxKxD = attn_out_ExD.reshape(H, K, D)
        out_BxLxD = mixed_einsum("blhk,hkd->bld", out_BxLxHxK, attn_out_HxKxD, self.precision)
        return self._add_bias("attn_out", out_BxLxD), cache

    def _queries_keys_values(
        self, x_BxLxD: jax.Array, table_2xLxK: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Returns queries of shape BxLxHxK, and keys and values of shape BxLxGxK."""
        cfg, D, K = self.config, x_BxLxD.shape[-1], self.config.head_width
        products = {"qkv": cfg.heads}
        if cfg.key_heads != cfg.heads:
            products = {"q": cfg.heads, "kv": cfg.key_heads}
        projected: list[jax.Array] = []
        for name, heads in products.items():
            weight_DxCxE = self._weight(name, (D, len(name), heads * K))
            if isinstance(weight_DxCxE, dict):
                parts_DxHxK = [weight_DxCxE[x] for x in _PARTS[name]]
                y: Any = mixed_einsums("bld,dhk->blhk", x_BxLxD, parts_DxHxK, self.precision)
            else:
                # By heads: TPUs would copy a product of all channels twice to split it.
                weight_DxCxHxK = weight_DxCxE.reshape(D, len(name), heads, K)
                y = mixed_einsum("bld,dchk->blchk", x_BxLxD, weight_DxCxHxK, self.precision)
                y = self._add_bias(name, y, "qkv", (len(name), heads * K))
            scales, form = {}, _norm_form(cfg)
            if cfg.qk_norm != "none":
                shape = (heads, K)[cfg.qk_norm == "head" :]
                scaled = [x for x in name if x != "v"]
                scales = {x: Norm(cfg, name=f"{x}_norm").scale(*shape) for x in scaled}
            projected += _compute(self, "heads", y, name, scales, table_2xLxK, form)
        q_BxLxHxK, k_BxLxGxK, v_BxLxGxK = projected
        return q_BxLxHxK, k_BxLxGxK, v_BxLxGxK

    def _weight(self, name: str, shape: tuple[int, ...]) -> Any:
        """Returns a matrix that reads the stream, or the dict of its parts (`split_parts`)."""
        given = self.variables.get("params", {}).get(name)
        return given if isinstance(given, dict) else self.param(name, _inward(self.config), shape)

    def _add_bias(
        self, name: str, y: jax.Array, option: str = "", shape: tuple[int, ...] = ()
    ) -> jax.Array:
        """Adds the bias of a product if the kind of model has one.

        The bias has the axes of the product after BxL. Its parameter has the same shape, unless
        `shape` gives another with as many elements.
        """
        if (option or name) not in self.config.biases:
            return y
        bias = self.param(f"{name}_bias", nn.initializers.zeros, shape or y.shape[2:])
        return self.precision.round(y.astype(jnp.float32) + bias.reshape(y.shape[2:]))

    def mlp(self, x_BxLxD: jax.Array, layer: jax.Array) -> jax.Array:
        """Returns what the MLP adds, of the input's shape."""
        cfg = self.config
        D, F = cfg.width, cfg.mlp_width
        mlp_in_DxCxF = self._weight("mlp_in", (D, 2 if cfg.gated else 1, F))
        if isinstance(mlp_in_DxCxF, dict):
            parts_DxF = [mlp_in_DxCxF[x] for x in _PARTS["mlp_in"]]
            h: Any = mixed_einsums("bld,df->blf", x_BxLxD, parts_DxF, self.precision)
        else:
            h = mixed_einsum("bld,dcf->blcf", x_BxLxD, mlp_in_DxCxF, self.precision)
            h = self._add_bias("mlp_in", h)
        h_BxLxF = _compute(self, "activation", h)
        mlp_out_FxD = self.param("mlp_out", _outward(cfg, F, layer), (F, D))
        out_BxLxD = mixed_einsum("blf,fd->bld", h_BxLxF, mlp_out_FxD, self.precision)
        return self._add_bias("mlp_out", out_BxLxD)


# Functions, not methods: Flax would add the name of a method to the names of operations.


def _compute(block: Block, part: str, *arguments: Any) -> Any:
    """Calls a function of `between_products`, or on a GPU the Triton kernel of the same name.

    A kernel rounds what it returns, as the products of this module would. A block of another class
    may compute with it in float32.
    """
    functions = between_products.FUNCTIONS
    on_gpu = block.constrain.platform == "gpu"
    if part in block.config.kernels and on_gpu and type(block) is Block:
        from anytime_jax.models import triton_kernels  # the import takes 0.2 s

        functions = triton_kernels.FUNCTIONS
    return functions[part](*arguments, block.precision, block.constrain)


def _add_and_normalize(
    block: Block, x_BxLxD: jax.Array, added_BxLxD: jax.Array | None, layer: "Norm"
) -> tuple[jax.Array, jax.Array]:
    scale_D = layer.scale(x_BxLxD.shape[-1])
    with jax.named_scope(cast(str, layer.name)):
        return _compute(block, "norms", x_BxLxD, added_BxLxD, scale_D, _norm_form(block.config))


class Norm(nn.Module):
    """Layer norm (OLMo) or RMS norm (OLMo-2), with a scale and no bias."""

    config: ModelConfig

    def __call__(self, x_BxLxD: jax.Array) -> jax.Array:
        """Returns the array normalized over the last axis, float32."""
        return normalize(x_BxLxD, self.scale(x_BxLxD.shape[-1]), *_norm_form(self.config))

    @nn.compact
    def scale(self, *shape: int) -> jax.Array:
        """Returns the scale, a parameter of one axis, in the shape of the normalized axes."""
        size = (math.prod(shape),)
        return self.param("scale", nn.initializers.ones, size).reshape(shape)


def _norm_form(config: ModelConfig) -> NormForm:
    return NormForm(config.norm_epsilon, config.norm == "layer")


def _truncated_normal(sigma: Any) -> nn.initializers.Initializer:
    """Normal distribution of standard deviation sigma, truncated at three sigma."""
    unit = nn.initializers.truncated_normal(1.0, lower=-3.0, upper=3.0)
    return lambda key, shape, dtype=jnp.float32: sigma * unit(key, shape, dtype)


def _of_vocabulary(config: ModelConfig) -> nn.initializers.Initializer:
    """Initializer of the embedding and the head; under "mup" it does not depend on the width.

    Sigma is 1/sqrt(D) for OLMo (Mitchell's initialization) and 0.02 for OLMo-2.
    """
    by_width = config.initial_scale == "depth"
    return _truncated_normal(1 / math.sqrt(config.base_width or config.width) if by_width else 0.02)


def _inward(config: ModelConfig) -> nn.initializers.Initializer:
    """Initializer of matrices that read the residual stream.

    Sigma is 1/sqrt(D) for OLMo and `_constant_sigma` for OLMo-2.
    """
    by_width = config.initial_scale == "depth"
    return _truncated_normal(1 / math.sqrt(config.width) if by_width else _constant_sigma(config))


def _outward(config: ModelConfig, fan_in: int, layer: jax.Array) -> nn.initializers.Initializer:
    """Initializer of matrices that write to the residual stream.

    Sigma falls with depth for OLMo; it is `_constant_sigma` for OLMo-2.
    """
    if config.initial_scale == "constant":
        return _truncated_normal(_constant_sigma(config))
    return _truncated_normal(1 / jnp.sqrt(2.0 * fan_in * (layer + 1)))


def _constant_sigma(config: ModelConfig) -> float:
    """Sigma of the block matrices of OLMo-2: 0.02, under "mup" divided by sqrt(width growth)."""
    return 0.02 / math.sqrt(config.width_growth)
