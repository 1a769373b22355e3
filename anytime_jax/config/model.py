"""Settings of the decoder."""

import dataclasses
from typing import Literal, get_args

from anytime_jax.checks import require, require_choice, require_count, require_positive

Attention = Literal["auto", "plain", "blocks", "xla", "cudnn"]
Dtype = Literal["bfloat16", "float32"]
Architecture = Literal["olmo", "olmo2"]
LayerLoop = Literal["scan", "unroll"]
Remat = Literal["none", "products", "full"]


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Shape and arithmetic of the decoder.

    Attributes:
      architecture: "olmo" (LayerNorm before each sublayer, GELU) or "olmo2" (RMSNorm after each
        sublayer, SwiGLU).
      layers: number of blocks, N.
      heads: number of attention heads, H; divides `width`.
      width: size of the residual stream, D.
      mlp_width: size of the MLP's hidden layer, F.
      length: tokens in a training sequence, L.
      vocab_size: tokens that exist.
      embedding_rows: rows of the embedding and columns of the head, V; the rows beyond
        `vocab_size` are padding that stays in the softmax.
      rope_theta: base of the rotary position embedding.
      norm_epsilon: added to the variance in every norm.
      dtype: type of the operands of matrix products; everything else is float32.
      attention: "plain" (einsum and softmax), "blocks" (the same, without most of what is masked),
        "xla" or "cudnn" (`jax.nn.dot_product_attention`), or "auto", the fastest known for the
        device.
      layer_loop: "scan" compiles one block and loops; "unroll" compiles every block.
      remat: what the backward pass recomputes: nothing, all but matrix products, or all.
    """

    architecture: Architecture
    layers: int
    heads: int
    width: int
    mlp_width: int
    length: int
    vocab_size: int
    embedding_rows: int
    rope_theta: float
    norm_epsilon: float
    dtype: Dtype
    attention: Attention
    layer_loop: LayerLoop
    remat: Remat

    def __post_init__(self) -> None:
        """Checks every field."""
        for name in ("layers", "heads", "width", "mlp_width", "length", "vocab_size"):
            require_count(name, getattr(self, name), least=1)
        require_count("embedding_rows", self.embedding_rows, least=self.vocab_size)
        require_positive("rope_theta", self.rope_theta)
        require_positive("norm_epsilon", self.norm_epsilon)
        for name, choices in (
            ("architecture", Architecture),
            ("dtype", Dtype),
            ("attention", Attention),
            ("layer_loop", LayerLoop),
            ("remat", Remat),
        ):
            require_choice(name, getattr(self, name), get_args(choices))
        if self.attention == "cudnn":
            require(self.dtype == "bfloat16", "attention", "cudnn", "another for float32")
        divides = self.width % self.heads == 0 and (self.width // self.heads) % 2 == 0
        allowed = f"a number that splits width = {self.width} into heads of an even size"
        require(divides, "heads", self.heads, allowed)

    @property
    def head_size(self) -> int:
        """Width of one attention head, K."""
        return self.width // self.heads
