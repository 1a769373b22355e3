"""Kinds of decoders: shapes, arithmetic, and the options that make one kind differ from another."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from anytime_jax.checks import (
    conform_to_types,
    is_number,
    require,
    require_choice,
    require_count,
    require_not_negative,
    require_positive,
)
from anytime_jax.config.kinds import Kinds
from anytime_jax.config.settings_reader import setting
from anytime_jax.errors import InputError

Dtype = Literal["bfloat16", "float32"]
Attention = Literal["auto", "plain", "blocks", "xla", "cudnn", "splash"]
KERNELS = ("heads", "norms", "activation")
LayerLoop = Literal["scan", "unroll"]
Remat = Literal["none", "products", "full"]
Parametrization = Literal["standard", "mup"]

_MOST_UNROLLED = 500  # layers


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Shape and arithmetic of a decoder; a kind is a subclass with its own options.

    A kind of your own sets the options below, or gives a block. The defaults of the fields are the
    paper's 150M model. The setting `stages` may change length and rotation on the way; `Config`
    then has a model for each stage.

    Attributes:
      layers: blocks, N.
      heads: heads of queries, H.
      kv_heads: heads of keys and values, G, each shared by as many heads of queries; 0 for as many
        as `heads`.
      head_size: channels of a head, K, an even number; 0 for `width` divided by `heads`.
      width: size of the residual stream, D.
      mlp_width: size of the MLP's hidden layer, F.
      length: tokens in a training sequence, L.
      vocab_size: tokens in the vocabulary.
      embedding_rows: rows of the embedding and columns of the head, V: at least `vocab_size`; the
        rest is padding that stays in the softmax.
      tied: whether the head is the transposed embedding, one parameter.
      rope_theta: base of the rotary position embedding.
      rope_scaling: Llama 3's scaling of the rotation for longer texts: the factor, the low and the
        high frequency factor, and the length of the training before; empty for none.
      parametrization: how initial weights, logits and updates depend on the width: "standard", or
        "mup", with which the learning rate that is best at `base_width` is best at other widths too
        (docs/width.md).
      base_width: for "mup", the width at which the learning rate was tuned; 0 otherwise. Between
        the two widths, heads keep their size and `mlp_width` grows in proportion.
      norm_epsilon: added to the variance in every norm.
      z_loss: weight of the squared logarithm of the softmax's denominator in the gradient; it keeps
        logits small. Losses are reported without it.
      dtype: type of operands and results of matrix products; their sums are float32, as is all else
        but what `residual_dtype` says.
      residual_dtype: type of the residual stream. "bfloat16" halves the bytes that are read and
        written, and rounds every addition to 8 bits.
      attention: implementation: "auto", the fastest known for the device; "plain" einsum and
        softmax; "blocks", the same without most of what is masked; "xla" or "cudnn"
        (`jax.nn.dot_product_attention`); "splash" (JAX's kernel for TPUs).
      kernels: parts of a block that a Triton kernel computes in one pass each, of "heads" (norm and
        rotation of queries and keys), "norms" (the norm before attention, and attention's addition
        to the residual stream with the norm before the MLP) and "activation". XLA computes all
        else: parts whose sizes do not fit a kernel (docs/performance.md), a block of your own, and
        everything on other devices than GPUs.
      layer_loop: "scan" compiles one block and loops; "unroll" compiles every block, at most
        500: slower to compile, faster to run.
      remat: what the backward pass recomputes: nothing ("none"), all ("full"), or all but matrix
        products, the norms' statistics and the attention of TPUs ("products").
    """

    norm: ClassVar[Literal["layer", "rms"]]  # kind of every norm; each has a scale and no bias
    norm_first: ClassVar[bool]  # whether a sublayer's norm is before it, or else after it
    gated: ClassVar[bool]  # whether the MLP is SwiGLU, or else GELU
    initial_scale: ClassVar[Literal["depth", "constant"]]  # sigma falls with depth, or is 0.02
    # Axes of further parameters, by name, as `models.decoder.PARAMETER_AXES` has them.
    parameter_axes: ClassVar[Mapping[str, tuple[str | None, ...]]] = {}
    # Axes of further matrices of the blocks, by name, as `models.decoder.MATRIX_AXES` has them.
    matrix_axes: ClassVar[Mapping[str, tuple[int, int]]] = {}

    layers: int = 12
    heads: int = 16
    kv_heads: int = 0
    head_size: int = 0
    width: int = 1024
    mlp_width: int = 4096
    length: int = 1024
    vocab_size: int = 32_100
    embedding_rows: int = 32_128
    tied: bool = False
    rope_theta: float = 10_000.0
    rope_scaling: tuple = ()
    parametrization: Parametrization = "standard"
    base_width: int = 0
    norm_epsilon: float = 1e-5
    z_loss: float = 0.0
    dtype: Dtype = "bfloat16"
    residual_dtype: Dtype = "float32"
    attention: Attention = setting("auto", identity=False)
    kernels: tuple = setting((), identity=False)
    layer_loop: LayerLoop = setting("unroll", identity=False)
    remat: Remat = setting("none", identity=False)

    def __post_init__(self) -> None:
        conform_to_types(self)
        for name in ("layers", "heads", "width", "mlp_width", "vocab_size"):
            require_count(name, getattr(self, name), least=1)
        require_count("embedding_rows", self.embedding_rows, least=1)
        if self.vocab_size > self.embedding_rows:
            reason = f"it is more than embedding_rows = {self.embedding_rows}: set both"
            raise InputError(reason, "vocab_size", self.vocab_size)
        require_count("length", self.length, least=1)
        require_positive("rope_theta", self.rope_theta)
        require_rope_scaling("rope_scaling", self.rope_scaling)
        require_positive("norm_epsilon", self.norm_epsilon)
        require_not_negative("z_loss", self.z_loss)
        for name in self.kernels:
            require_choice("kernels", name, KERNELS)
        if self.layer_loop == "unroll" and self.layers > _MOST_UNROLLED:
            raise InputError(
                "with layer_loop = 'unroll', a program of so many blocks takes hours to compile: "
                f"give layer_loop = 'scan', or at most {_MOST_UNROLLED} layers",
                "layers",
                self.layers,
            )
        require_count("base_width", self.base_width)
        if (self.parametrization == "mup") != (self.base_width > 0):
            raise InputError(
                f"it does not fit parametrization = {self.parametrization!r}: give "
                '"mup" with the width at which the learning rate was tuned, or "standard" with 0',
                "base_width",
                self.base_width,
            )
        require_count("kv_heads", self.kv_heads)
        require_count("head_size", self.head_size)
        if self.head_size == 0:
            divides = self.width % self.heads == 0 and (self.width // self.heads) % 2 == 0
            allowed = f"a number that splits width = {self.width} into heads of an even size"
            require(divides, "heads", self.heads, allowed)
        require(self.head_size % 2 == 0, "head_size", self.head_size, "an even number")
        allowed = f"a divisor of heads = {self.heads}"
        require(self.heads % self.key_heads == 0, "kv_heads", self.kv_heads, allowed)

    @property
    def key_heads(self) -> int:
        """Heads of keys and values, G."""
        return self.kv_heads or self.heads

    @property
    def head_width(self) -> int:
        """Channels of one attention head, K."""
        return self.head_size or self.width // self.heads

    @property
    def width_growth(self) -> float:
        """The width over the base width of "mup"; 1 for the standard parametrization."""
        return self.width / self.base_width if self.base_width else 1.0

    @property
    def qk_norm(self) -> Literal["none", "width", "head"]:
        """Norm of queries and keys: none, over all heads together, or over each head."""
        return "none"

    @property
    def biases(self) -> tuple[str, ...]:
        """The products with a bias, of "qkv", "attn_out", "mlp_in" and "mlp_out"."""
        return ()

    def block(self) -> Any:
        """Returns a subclass of `models.decoder.Block` to use in its place; here None, for none."""
        return None


@dataclasses.dataclass(frozen=True)
class Olmo(ModelConfig):
    """OLMo, as the paper trains it: LayerNorm before each sublayer, GELU."""

    norm = "layer"
    norm_first = True
    gated = False
    initial_scale = "depth"

    @property
    def qk_norm(self) -> Literal["none", "width", "head"]:
        """Over all heads together."""
        return "width"


@dataclasses.dataclass(frozen=True)
class Olmo2(ModelConfig):
    """OLMo-2: RMSNorm after each sublayer, SwiGLU."""

    norm = "rms"
    norm_first = False
    gated = True
    initial_scale = "constant"

    @property
    def qk_norm(self) -> Literal["none", "width", "head"]:
        """Over all heads together."""
        return "width"


@dataclasses.dataclass(frozen=True)
class Llama(ModelConfig):
    """Llama 2 and 3, and the models of its shape: SmolLM2, Mistral without a window, Marin.

    RMSNorm before each sublayer, SwiGLU.

    Attributes:
      attention_bias: whether queries, keys, values and the output of attention have biases.
      mlp_bias: whether the products of the MLP have biases.
    """

    norm = "rms"
    norm_first = True
    gated = True
    initial_scale = "constant"

    attention_bias: bool = False
    mlp_bias: bool = False

    @property
    def biases(self) -> tuple[str, ...]:
        """As the settings say."""
        attention = ("qkv", "attn_out") if self.attention_bias else ()
        return attention + (("mlp_in", "mlp_out") if self.mlp_bias else ())


@dataclasses.dataclass(frozen=True)
class Qwen(ModelConfig):
    """Qwen 2, 2.5 and 3, the dense models: RMSNorm before each sublayer, SwiGLU.

    Attributes:
      head_norm: whether queries and keys have a norm over each head, as in Qwen 3.
      qkv_bias: whether queries, keys and values have biases, as in Qwen 2 and 2.5.
      output_bias: whether the output of attention has a bias.
    """

    norm = "rms"
    norm_first = True
    gated = True
    initial_scale = "constant"

    head_norm: bool = True
    qkv_bias: bool = False
    output_bias: bool = False

    @property
    def qk_norm(self) -> Literal["none", "width", "head"]:
        """Over each head, as the setting says."""
        return "head" if self.head_norm else "none"

    @property
    def biases(self) -> tuple[str, ...]:
        """As the settings say."""
        return ("qkv",) * self.qkv_bias + ("attn_out",) * self.output_bias


def require_rope_scaling(name: str, value: Any) -> None:
    """Raises an InputError unless a value is a scaling of the rotation, or empty."""
    ok = value == () or (
        isinstance(value, tuple)
        and len(value) == 4
        and all(is_number(x) and x > 0 for x in value)
        and value[1] < value[2]
    )
    require(ok, name, value, "(factor, low factor, larger high factor, length), or ()")


MODELS = Kinds("model", ModelConfig, default="olmo")
