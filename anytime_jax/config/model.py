"""Kinds of decoders: shapes, arithmetic, and the options that make one kind differ from another."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

from anytime_jax.checks import require, require_choice, require_count, require_positive
from anytime_jax.config.fields import setting

Dtype = Literal["bfloat16", "float32"]
Attention = Literal["auto", "plain", "blocks", "xla", "cudnn", "splash"]
LayerLoop = Literal["scan", "unroll"]
Remat = Literal["none", "products", "full"]


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Shape and arithmetic of a decoder; a kind is a subclass with its own options.

    A kind of your own sets the options below, or gives a block. The defaults of the fields are the
    paper's 150M model.

    Attributes:
      layers: blocks, N.
      heads: attention heads, H; splits `width` into heads of an even size.
      width: size of the residual stream, D.
      mlp_width: size of the MLP's hidden layer, F.
      length: tokens in a training sequence, L.
      vocab_size: tokens in the vocabulary.
      embedding_rows: rows of the embedding and columns of the head, V: at least `vocab_size`; the
        rest is padding that stays in the softmax.
      rope_theta: base of the rotary position embedding.
      norm_epsilon: added to the variance in every norm.
      dtype: type of operands and results of matrix products; their sums and all else are float32.
      attention: implementation: "plain" einsum and softmax; "blocks", the same without most of what
        is masked; "xla" or "cudnn" (`jax.nn.dot_product_attention`); "splash" (JAX's kernel for
        TPUs); "auto", the fastest known for the device.
      layer_loop: "scan" compiles one block and loops; "unroll" compiles every block: slower to
        compile, faster to run.
      remat: what the backward pass recomputes: nothing, all but matrix products, or all.
    """

    norm: ClassVar[Literal["layer", "rms"]]  # kind of every norm; each has a scale and no bias
    norm_first: ClassVar[bool]  # whether a sublayer's norm is before it, or else after it
    gated: ClassVar[bool]  # whether the MLP is SwiGLU, or else GELU
    initial_scale: ClassVar[Literal["depth", "constant"]]  # sigma falls with depth, or is 0.02
    format: ClassVar[str | None] = None  # of a library to which it is exported; not inherited
    # Axes of further parameters, by name, as `models.decoder.PARAMETER_AXES` has them.
    parameter_axes: ClassVar[Mapping[str, tuple[str | None, ...]]] = {}
    # Axes of further matrices of the blocks, by name, as `models.decoder.MATRIX_AXES` has them.
    matrix_axes: ClassVar[Mapping[str, tuple[int, int]]] = {}

    layers: int = 12
    heads: int = 16
    width: int = 1024
    mlp_width: int = 4096
    length: int = 1024
    vocab_size: int = 32_100
    embedding_rows: int = 32_128
    rope_theta: float = 10_000.0
    norm_epsilon: float = 1e-5
    dtype: Dtype = "bfloat16"
    attention: Attention = setting("auto", identity=False)
    layer_loop: LayerLoop = setting("unroll", identity=False)
    remat: Remat = setting("none", identity=False)

    def __post_init__(self) -> None:
        for name in ("layers", "heads", "width", "mlp_width", "length", "vocab_size"):
            require_count(name, getattr(self, name), least=1)
        require_count("embedding_rows", self.embedding_rows, least=self.vocab_size)
        require_positive("rope_theta", self.rope_theta)
        require_positive("norm_epsilon", self.norm_epsilon)
        for name, words in (
            ("dtype", Dtype),
            ("attention", Attention),
            ("layer_loop", LayerLoop),
            ("remat", Remat),
        ):
            require_choice(name, getattr(self, name), get_args(words))
        divides = self.width % self.heads == 0 and (self.width // self.heads) % 2 == 0
        allowed = f"a number that splits width = {self.width} into heads of an even size"
        require(divides, "heads", self.heads, allowed)

    @property
    def head_size(self) -> int:
        """Width of one attention head, K."""
        return self.width // self.heads

    @property
    def export_format(self) -> str | None:
        """The format of another library that has this very model; None if there is none."""
        return vars(type(self)).get("format")

    def block(self) -> Any:
        """Returns a subclass of `models.decoder.Block` to use in its place; here None, for none."""
        return None


@dataclasses.dataclass(frozen=True)
class Olmo(ModelConfig):
    """OLMo, as the paper trains it: LayerNorm before each sublayer, GELU."""

    kind: ClassVar[str] = "olmo"
    norm = "layer"
    norm_first = True
    gated = False
    initial_scale = "depth"
    format = "olmo"


@dataclasses.dataclass(frozen=True)
class Olmo2(ModelConfig):
    """OLMo-2: RMSNorm after each sublayer, SwiGLU."""

    kind: ClassVar[str] = "olmo2"
    norm = "rms"
    norm_first = False
    gated = True
    initial_scale = "constant"
    format = "olmo2"
