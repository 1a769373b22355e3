"""Rotary position embedding and causal attention.

Attention has five implementations of one function. None is an approximation: results differ by
rounding alone. Tests compare "blocks", "xla" and "splash" with `plain_attention` in float32, and
their gradients agree to 2e-5 of the largest. The benchmark `attention` has the errors of bfloat16
against float32 on an H200: 0.0020 of the norm with "cudnn" and 0.0023 with "plain". The setting
`model.attention` names an implementation; "auto" is the fastest known for the platform.

    name    code                           products  memory     "auto" takes it
    plain   `plain_attention`, the         all       3.2        never: tests compare with it
            reference
    blocks  two blocks of queries          3/4       2.1        on a CPU
    xla     `jax.nn.dot_product_attention` all       4.1        in float32 on a GPU or a TPU; where
                                                                a kernel cannot run
    cudnn   cuDNN's kernel, by the same    not known O(L)       in bfloat16 on a GPU, as `GPU_TIMES`
            function or a private one                           say
    splash  JAX's Pallas kernel            3/4       O(L)       in bfloat16 on a TPU

Products are those of the forward pass at L = 1024, relative to all pairs of a query and a key. With
splash attention they fall toward 1/2 at larger L: it skips every block of 512 x 512 scores that is
masked whole. Memory is the peak of attention and its gradients at L = 1024, in float32 arrays of
all scores (B x H x L x L), as XLA plans it on a CPU (jax 0.10.2). A kernel keeps no scores for the
backward pass, but a float32 for each query and head; it computes the scores again.

Shape suffixes: B batch, L length, M length of keys, H heads of queries, G heads of keys, each of
which serves H/G heads of queries, K head size.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from anytime_jax.config.model import Attention, ModelConfig
from anytime_jax.distributed import xla_settings
from anytime_jax.distributed.sharding import UNCONSTRAINED, ShardingConstraint
from anytime_jax.models.mixed_einsum import Precision, mixed_einsum

# Number of blocks of queries. Two compute 3/4 of the scores. Four compute 10/16, but are no faster
# on a CPU and take half as long again to compile.
_BLOCKS = 2
# With either, XLA of jax 0.11.2 compiles cuDNN's attention and fails to run it (raw_hash_map::at).
_DETERMINISTIC_FLAGS = ("xla_gpu_deterministic_ops", "xla_gpu_exclude_nondeterministic_ops")
# Sizes of splash attention's blocks of queries and keys, which must divide the length.
_SPLASH_BLOCKS = (128, 256, 384, 512)
# Name of what the kernel's backward pass needs of its forward pass, for `jax.checkpoint`.
CHECKPOINT_NAME = "attention"
# Queries whose scores `largest_logit` has in memory at once.
_QUERIES = 128


class GpuTimes(NamedTuple):
    """Times of attention and its gradients in bfloat16 on a GPU.

    Attributes:
      device_kind: the GPU, as `jax.Device.device_kind` names it.
      generation: the first number of its compute capability.
      milliseconds: the time by implementation; only their ratios count.
    """

    device_kind: str
    generation: int
    milliseconds: Mapping[Attention, float]


# "auto" takes the fastest implementation of the first GPU of the same generation, and cuDNN's where
# no GPU of the generation was measured; "xla" where that one cannot run. `python -m
# benchmarks.attention` prints a row for its GPU.
GPU_TIMES = (
    GpuTimes("NVIDIA H200", 9, {"cudnn": 0.51, "plain": 2.36, "xla": 3.18}),
    # Of a whole update of 8 windows of the 150M model.
    GpuTimes("NVIDIA H100 80GB HBM3", 9, {"cudnn": 27.5, "plain": 51.6, "xla": 55.9}),
)
_UNMEASURED: Mapping[Attention, float] = {"cudnn": 0.0}


class Documents(NamedTuple):
    """The documents in a batch of windows, which attention keeps apart.

    Attributes:
      ids_BxL: number of each token's document in its window, from 0 to `most` − 1.
      most: largest number of documents in a window; a packed layout has room for as many.
    """

    ids_BxL: jax.Array
    most: int

    def same(self, queries: slice = slice(None), keys: slice = slice(None)) -> jax.Array:
        """Returns whether queries and keys are of one document, bool of shape Bx1xLxM."""
        ids_BxL = self.ids_BxL
        return (ids_BxL[:, queries, None] == ids_BxL[:, None, keys])[:, None]

    def packed(self) -> tuple[jax.Array, jax.Array]:
        """Returns the first token of each document and its number of tokens.

        Both are int32, the first of shape Bx(M+1) and the second of shape BxM, where M is `most`.
        A window with fewer documents has -1 in the other places.
        """
        slots_M = jnp.arange(self.most)
        lengths_BxM = (self.ids_BxL[:, None] == slots_M[:, None]).sum(-1, dtype=jnp.int32)
        starts_BxM = jnp.cumsum(lengths_BxM, axis=1) - lengths_BxM
        is_there_BxM = lengths_BxM > 0
        starts_BxM, lengths_BxM = (
            jnp.where(is_there_BxM, x, -1).astype(jnp.int32) for x in (starts_BxM, lengths_BxM)
        )
        return jnp.pad(starts_BxM, ((0, 0), (0, 1)), constant_values=-1), lengths_BxM


def find_documents(ends_BxL: jax.Array, most: int) -> Documents:
    """Returns the documents of windows; `ends_BxL` says which tokens are the last of a document.

    All documents of a window after its first `most - 1` count as one document, so that every
    implementation of attention keeps the same documents apart.
    """
    ends_BxL = ends_BxL.astype(jnp.int32)
    before_BxL = jnp.cumsum(ends_BxL, axis=1) - ends_BxL
    return Documents(jnp.minimum(before_BxL, most - 1), most)


def generation(device: Any) -> int:
    """Returns the first number of a GPU's compute capability; 0 for devices that have none."""
    first = str(getattr(device, "compute_capability", "")).partition(".")[0]
    return int(first) if first.isdecimal() else 0


def unmet_need(implementation: Attention, config: ModelConfig, device: Any, length: int) -> str:
    """Returns the first need of an implementation that a device does not meet, "" if none."""
    needs = {
        "cudnn": {
            "a GPU of NVIDIA's Ampere generation or a later one": generation(device) >= 8,
            "XLA_FLAGS without deterministic operations": not any(
                map(xla_settings.is_flag, _DETERMINISTIC_FLAGS)
            ),
            "model.dtype = 'bfloat16'": config.dtype == "bfloat16",
            "heads of at most 128 channels, divisible by 8": (
                config.head_width % 8 == 0 and config.head_width <= 128
            ),
        },
        "splash": {
            "a TPU": device.platform == "tpu",
            "windows of a multiple of 128 tokens": length % 128 == 0,
        },
    }
    return next((need for need, is_met in needs.get(implementation, {}).items() if not is_met), "")


def choose_implementation(config: ModelConfig, device: Any, length: int) -> Attention:
    """Returns the implementation for texts of a length; for "auto", the fastest known.

    `device` is a `jax.Device`, of which the platform and a GPU's compute capability count.

    A kernel that cannot run here (`unmet_need`) is replaced by "xla", so that a run can be
    evaluated on any device and on texts of any length. A training is refused instead.

    On a CPU, the gradient of `jax.nn.dot_product_attention` takes twice the time of the gradient of
    "plain", and the gradient of "blocks" half of the time.
    """
    implementation = config.attention
    if implementation == "auto":
        if device.platform == "cpu":
            return "blocks"
        if config.dtype == "float32":
            return "xla"
        implementation = "splash" if device.platform == "tpu" else _fastest_on_gpu(device)
    return "xla" if unmet_need(implementation, config, device, length) else implementation


def _fastest_on_gpu(device: Any) -> Attention:
    alike = (x.milliseconds for x in GPU_TIMES if x.generation == generation(device))
    times: Mapping[Attention, float] = next(alike, _UNMEASURED)
    return min(times, key=times.__getitem__)


def rotary_table(
    length: int, head_size: int, theta: float, scaling: Sequence[float] = ()
) -> np.ndarray:
    """Returns cosine and sine of the rotary angles, float32 of shape 2 x L x K/2.

    Channel i of the first half of a head and its partner in the second are rotated by
    `position * theta^(-2i/K)`. The table is a NumPy constant: XLA would compute cosine and sine for
    every rotated element.

    `scaling` is (factor, low, high, length before). A frequency makes some number of turns in the
    length before. With more than `high` turns it stays, and with fewer than `low` it is divided by
    the factor. Between the limits it is a mean of the two, with a weight that is linear in turns.

    Source of the scaling: The Llama 3 Herd of Models (arXiv 2407.21783) and its code.
    """
    frequency = theta ** (-np.arange(0, head_size, 2) / head_size)
    if scaling:
        factor, low, high, before = scaling
        turns = before * frequency / (2 * np.pi)
        kept = np.clip((turns - low) / (high - low), 0, 1)
        frequency *= kept + (1 - kept) / factor
    angles = np.arange(length)[:, None] * frequency
    return np.stack([np.cos(angles), np.sin(angles)]).astype(np.float32)


def rotate(
    x_BxLxHxK: jax.Array, table_2xLxK: jax.Array | np.ndarray, precision: Precision
) -> jax.Array:
    """Returns queries or keys rotated by the rows of `rotary_table` at their positions, float32."""
    if precision.platform == "tpu" and x_BxLxHxK.dtype == jnp.bfloat16:
        return _rotate_by_product(x_BxLxHxK, jnp.asarray(table_2xLxK))
    B, L, H, K = x_BxLxHxK.shape
    halves = x_BxLxHxK.astype(jnp.float32).reshape(B, L, H, 2, K // 2)
    cos, sin = table_2xLxK[:, :, None, None, :]
    signed = jnp.concatenate([-sin, sin], axis=2)
    return (halves * cos + jax.lax.rev(halves, (3,)) * signed).reshape(B, L, H, K)


@jax.custom_vjp
def _rotate_by_product(x_BxLxHxK: jax.Array, table_2xLxK: jax.Array) -> jax.Array:
    """Rotates as `rotate` does; a product with 0, 1 and -1, exact in 16 bits, swaps the halves.

    XLA fuses the product with the norm before it, and with the change of layout after it. Without
    the product, a swap copies float32 arrays: on TPU v5p, a twelfth of the update of a 7B model.
    """
    K = x_BxLxHxK.shape[-1]
    swap_KxK = np.roll(np.diag(np.repeat([1, -1], K // 2)), K // 2, axis=1)
    swapped_BxLxHxK = jnp.einsum(
        "blhk,kj->blhj",
        x_BxLxHxK.astype(jnp.bfloat16),
        jnp.asarray(swap_KxK, jnp.bfloat16),
        preferred_element_type=jnp.float32,
    )
    cos, sin = jnp.concatenate([table_2xLxK, table_2xLxK], axis=-1)[:, :, None]
    return x_BxLxHxK * cos + swapped_BxLxHxK * sin


def _rotate_forward(
    x_BxLxHxK: jax.Array, table_2xLxK: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    like_x = jnp.zeros((), x_BxLxHxK.dtype)
    return _rotate_by_product(x_BxLxHxK, table_2xLxK), (table_2xLxK, like_x)


def _rotate_backward(
    saved: tuple[jax.Array, jax.Array], grad_BxLxHxK: jax.Array
) -> tuple[jax.Array, None]:
    table_2xLxK, like_x = saved
    back_2xLxK = table_2xLxK * np.array([1, -1], np.float32)[:, None, None]
    return _rotate_by_product(grad_BxLxHxK, back_2xLxK).astype(like_x.dtype), None


_rotate_by_product.defvjp(_rotate_forward, _rotate_backward)


def causal_attention(
    q_BxLxHxK: jax.Array,
    k_BxLxGxK: jax.Array,
    v_BxLxGxK: jax.Array,
    precision: Precision,
    implementation: Attention,
    constrain: ShardingConstraint = UNCONSTRAINED,
    documents: Documents | None = None,
) -> jax.Array:
    """Returns causal softmax attention, rounded, of shape BxLxHxK.

    Scores and softmax are float32; `precision` applies to the operands and the result.
    `implementation` is one of the table above, not "auto" (`choose_implementation`). With
    `documents`, tokens attend to their own document only.
    """
    if implementation == "splash":
        return _splash_attention(q_BxLxHxK, k_BxLxGxK, v_BxLxGxK, precision, constrain, documents)
    if implementation in ("xla", "cudnn"):
        q, k, v = (precision.round(y) for y in (q_BxLxHxK, k_BxLxGxK, v_BxLxGxK))
        if documents is not None and implementation == "cudnn":
            return _packed_attention(q, k, v, documents, constrain)
        mask = None if documents is None else documents.same()
        return jax.nn.dot_product_attention(
            q, k, v, mask=mask, is_causal=True, implementation=implementation
        )
    if implementation == "blocks":
        return _attend_in_blocks(q_BxLxHxK, k_BxLxGxK, v_BxLxGxK, precision, documents)
    return plain_attention(q_BxLxHxK, k_BxLxGxK, v_BxLxGxK, precision, documents)


def plain_attention(
    q_BxLxHxK: jax.Array,
    k_BxLxGxK: jax.Array,
    v_BxLxGxK: jax.Array,
    precision: Precision,
    documents: Documents | None = None,
) -> jax.Array:
    """Returns causal softmax attention by two einsums, with all scores in memory: the reference.

    Arguments and result are those of `causal_attention`.
    """
    length, heads = q_BxLxHxK.shape[1:3]
    k_BxLxHxK, v_BxLxHxK = (_repeat_heads(y, heads) for y in (k_BxLxGxK, v_BxLxGxK))
    visible = jnp.tril(jnp.ones((length, length), bool))
    if documents is not None:
        visible &= documents.same()
    return _attend(q_BxLxHxK, k_BxLxHxK, v_BxLxHxK, visible, precision)


def _packed_attention(
    q_BxLxHxK: jax.Array,
    k_BxLxGxK: jax.Array,
    v_BxLxGxK: jax.Array,
    documents: Documents,
    constrain: ShardingConstraint,
) -> jax.Array:
    """CuDNN's attention of packed documents, by a private function of JAX, for Hopper and later.

    The public function would take the documents as a mask, which becomes a bias of L x L numbers.
    Each device computes its own rows and heads: the compiler would not split the offsets of
    documents as it splits the queries.
    """
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    heads, head_size = q_BxLxHxK.shape[2:]

    def attend(q: Any, k: Any, v: Any, starts_BxM1: jax.Array, lengths_BxM: jax.Array) -> Any:
        return cast(Any, cudnn.dot_product_attention)(
            q,
            k,
            v,
            q_seqlen=lengths_BxM,
            kv_seqlen=lengths_BxM,
            q_offsets=starts_BxM1,
            kv_offsets=starts_BxM1,
            scale=1 / math.sqrt(head_size),
            mask_type=cudnn.MaskType.PADDING_CAUSAL,
        )

    # JAX 0.10.2 finds the keys of a document as if they had as many heads as the queries:
    # https://github.com/jax-ml/jax/pull/39521.
    k_BxLxHxK, v_BxLxHxK = (_repeat_heads(y, heads) for y in (k_BxLxGxK, v_BxLxGxK))
    by_heads, by_rows = ("batch", None, "heads", None), ("batch", None)
    attend = constrain.per_device(attend, by_heads, (*(by_heads,) * 3, by_rows, by_rows))
    return attend(q_BxLxHxK, k_BxLxHxK, v_BxLxHxK, *documents.packed())


def _repeat_heads(x_BxMxGxK: jax.Array, heads: int) -> jax.Array:
    """Returns keys or values with each head repeated, in order, for the queries that it serves."""
    repeats = heads // x_BxMxGxK.shape[2]
    return x_BxMxGxK if repeats == 1 else jnp.repeat(x_BxMxGxK, repeats, axis=2)


def _splash_attention(
    q_BxLxHxK: jax.Array,
    k_BxLxGxK: jax.Array,
    v_BxLxGxK: jax.Array,
    precision: Precision,
    constrain: ShardingConstraint,
    documents: Documents | None,
) -> jax.Array:
    """Flash attention by JAX's Pallas kernel for TPUs, which other platforms only interpret.

    Each device computes its own heads. The kernel does not scale the scores, so the queries are
    scaled, and then rounded. In the backward pass each block of keys gives a part of the gradient
    of the queries; the kernel rounds each part before it adds the parts.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention as splash  # the import takes 0.1 s

    length, heads, head_size = q_BxLxHxK.shape[1:]
    causal = splash.CausalMask((length, length))
    size = max(n for n in _SPLASH_BLOCKS if length % n == 0)
    kernel = splash.make_splash_mha_single_device(
        splash.MultiHeadMask([causal] * (heads // constrain.shards("heads"))),
        block_sizes=splash.BlockSizes(
            size, size, block_q_dkv=size, block_kv_dkv=size, use_fused_bwd_kernel=True
        ),
        residual_checkpoint_name=CHECKPOINT_NAME,
        interpret=precision.platform != "tpu",
    )
    scaled_BxLxHxK = q_BxLxHxK * (1 / math.sqrt(head_size))
    arrays = (
        precision.round(y).transpose(0, 2, 1, 3) for y in (scaled_BxLxHxK, k_BxLxGxK, v_BxLxGxK)
    )
    by_heads = ("batch", "heads", None, None)
    if documents is None:
        attend = constrain.per_device(jax.vmap(cast(Any, kernel)), by_heads)
        return precision.round(attend(*arrays).transpose(0, 2, 1, 3))

    def attend_within(q: Any, k: Any, v: Any, ids_L: jax.Array) -> Any:
        return cast(Any, kernel)(q, k, v, segment_ids=splash.SegmentIds(ids_L, ids_L))

    inputs = (by_heads, by_heads, by_heads, ("batch", None))
    attend = constrain.per_device(jax.vmap(attend_within), by_heads, inputs)
    return precision.round(attend(*arrays, documents.ids_BxL).transpose(0, 2, 1, 3))


def _attend_in_blocks(
    q_BxLxHxK: jax.Array,
    k_BxLxGxK: jax.Array,
    v_BxLxGxK: jax.Array,
    precision: Precision,
    documents: Documents | None,
) -> jax.Array:
    """Causal attention in which each block of queries sees the keys up to the end of the block.

    The sum of the softmax divides the product with the values, which has fewer elements than the
    weights of the softmax.
    """
    length, heads = q_BxLxHxK.shape[1:3]
    k_BxLxHxK, v_BxLxHxK = (_repeat_heads(y, heads) for y in (k_BxLxGxK, v_BxLxGxK))
    # Batch dimensions come first: one transpose serves all matrix products.
    q_BxHxLxK, k_BxHxLxK, v_BxHxLxK = (
        y.transpose(0, 2, 1, 3) for y in (q_BxLxHxK, k_BxLxHxK, v_BxLxHxK)
    )
    size, outs = -(-length // _BLOCKS), []
    for start in range(0, length, size):
        end = min(start + size, length)
        k_BxHxMxK, v_BxHxMxK = k_BxHxLxK[:, :, :end], v_BxHxLxK[:, :, :end]
        visible = jnp.arange(end) <= jnp.arange(start, end)[:, None]
        if documents is not None:
            visible &= documents.same(slice(start, end), slice(end))
        scores_BxHxLxM = mixed_einsum(
            "bhlk,bhmk->bhlm", q_BxHxLxK[:, :, start:end], k_BxHxMxK, precision, round_result=False
        )
        scores_BxHxLxM = _scale_and_mask(scores_BxHxLxM, q_BxHxLxK.shape[-1], visible)
        max_BxHxLx1 = jax.lax.stop_gradient(scores_BxHxLxM.max(axis=-1, keepdims=True))
        weights_BxHxLxM = jnp.exp(scores_BxHxLxM - max_BxHxLx1)
        out_BxHxLxK = mixed_einsum(
            "bhlm,bhmk->bhlk", weights_BxHxLxM, v_BxHxMxK, precision, round_result=False
        )
        outs.append(out_BxHxLxK / weights_BxHxLxM.sum(axis=-1, keepdims=True))
    return precision.round(jnp.concatenate(outs, axis=2).transpose(0, 2, 1, 3))


def cached_attention(
    q_BxLxHxK: jax.Array,
    k_BxLxGxK: jax.Array,
    v_BxLxGxK: jax.Array,
    cache: Mapping[str, jax.Array],
    start: int | jax.Array,
    precision: Precision,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Returns causal attention of new tokens to the cache and themselves, and the updated cache.

    The queries belong to the tokens from position `start`. The cache has "keys" and "values" of
    shape BxMxGxK, by position; the new keys and values are written from position `start` on. Scores
    and softmax are float32; `precision` applies to the operands and the result.

    The computation is that of `plain_attention`: the kernels of `jax.nn.dot_product_attention`
    would need a mask for positions not filled yet, and are made for more than one query.
    """
    length, capacity = q_BxLxHxK.shape[1], cache["keys"].shape[1]
    cache = {
        name: jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), start, axis=1)
        for name, old, new in (
            ("keys", cache["keys"], k_BxLxGxK),
            ("values", cache["values"], v_BxLxGxK),
        )
    }
    k_BxMxHxK, v_BxMxHxK = (
        _repeat_heads(cache[name].astype(jnp.float32), q_BxLxHxK.shape[2])
        for name in ("keys", "values")
    )
    causal_LxM = jnp.arange(capacity) <= start + jnp.arange(length)[:, None]
    return _attend(q_BxLxHxK, k_BxMxHxK, v_BxMxHxK, causal_LxM, precision), cache


def largest_logit(
    q_BxLxHxK: jax.Array,
    k_BxLxGxK: jax.Array,
    precision: Precision,
    documents: Documents | None = None,
) -> jax.Array:
    """Returns the largest score before the softmax of any query and a key that it attends to.

    The kernels keep the scores to themselves, so they are computed again, for a few queries at a
    time. Arguments are those of `causal_attention`.
    """
    length, heads, head_size = q_BxLxHxK.shape[1:]
    k_BxLxHxK, positions_L = _repeat_heads(k_BxLxGxK, heads), jnp.arange(length)
    ids_BxL = jnp.zeros(q_BxLxHxK.shape[:2], jnp.int32) if documents is None else documents.ids_BxL

    def of_query(query: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        position, q_BxHxK, id_B = query
        visible_BxM = (positions_L <= position) & (ids_BxL == id_B[:, None])
        scores_BxHxM = mixed_einsum(
            "bhk,bmhk->bhm", q_BxHxK, k_BxLxHxK, precision, round_result=False
        )
        return _scale_and_mask(scores_BxHxM, head_size, visible_BxM[:, None]).max()

    queries = positions_L, q_BxLxHxK.swapaxes(0, 1), ids_BxL.T
    return jax.lax.map(of_query, queries, batch_size=min(_QUERIES, length)).max()


def _attend(
    q_BxLxHxK: jax.Array,
    k_BxMxHxK: jax.Array,
    v_BxMxHxK: jax.Array,
    visible: jax.Array,
    precision: Precision,
) -> jax.Array:
    """Softmax attention to the visible keys, of shape LxM or Bx1xLxM."""
    scores_BxHxLxM = mixed_einsum(
        "blhk,bmhk->bhlm", q_BxLxHxK, k_BxMxHxK, precision, round_result=False
    )
    scores_BxHxLxM = _scale_and_mask(scores_BxHxLxM, q_BxLxHxK.shape[-1], visible)
    return mixed_einsum("bhlm,bmhk->blhk", jax.nn.softmax(scores_BxHxLxM), v_BxMxHxK, precision)


def _scale_and_mask(scores: jax.Array, head_size: int, visible: jax.Array) -> jax.Array:
    scaled = scores * (1 / math.sqrt(head_size))
    return jnp.where(visible, scaled, jnp.finfo(jnp.float32).min)
