"""Settings of the decoder."""

import dataclasses
from typing import Literal

from anytime_jax.checks import require, require_count
from anytime_jax.config.fields import POSITIVE, Group, count, setting

Architecture = Literal["olmo", "olmo2"]
Dtype = Literal["bfloat16", "float32"]
Attention = Literal["auto", "plain", "blocks", "xla", "cudnn", "splash"]
LayerLoop = Literal["scan", "unroll"]
Remat = Literal["none", "products", "full"]


@dataclasses.dataclass(frozen=True)
class ModelConfig(Group):
    """Shape and arithmetic of the decoder."""

    architecture: Architecture = setting(
        '"olmo": LayerNorm before each sublayer, GELU; "olmo2": RMSNorm after each sublayer, SwiGLU'
    )
    layers: int = setting("blocks, N", count(1))
    heads: int = setting("attention heads, H; splits `width` into heads of an even size", count(1))
    width: int = setting("size of the residual stream, D", count(1))
    mlp_width: int = setting("size of the MLP's hidden layer, F", count(1))
    length: int = setting("tokens in a training sequence, L", count(1))
    vocab_size: int = setting("tokens in the vocabulary", count(1))
    embedding_rows: int = setting(
        "rows of the embedding and columns of the head, V: at least `vocab_size`; the rest is "
        "padding that stays in the softmax",
        count(1),
    )
    rope_theta: float = setting("base of the rotary position embedding", POSITIVE)
    norm_epsilon: float = setting("added to the variance in every norm", POSITIVE)
    dtype: Dtype = setting(
        "type of operands and results of matrix products; their sums and all else are float32"
    )
    attention: Attention = setting(
        'implementation: "plain" einsum and softmax; "blocks", the same without most of what is '
        'masked; "xla" or "cudnn" (`jax.nn.dot_product_attention`); "splash" (JAX\'s kernel for '
        'TPUs and lengths divisible by 128); "auto", the fastest known for the device',
        identity=False,
    )
    layer_loop: LayerLoop = setting(
        '"scan" compiles one block and loops; "unroll" compiles every block: slower to compile, '
        "faster to run",
        identity=False,
    )
    remat: Remat = setting(
        "what the backward pass recomputes: nothing, all but matrix products, or all",
        identity=False,
    )

    def _check(self) -> None:
        require_count("embedding_rows", self.embedding_rows, least=self.vocab_size)
        if self.attention == "cudnn":
            require(self.dtype == "bfloat16", "attention", "cudnn", "another for float32")
        if self.attention == "splash":
            allowed = "another for a length that 128 does not divide"
            require(self.length % 128 == 0, "attention", "splash", allowed)
        divides = self.width % self.heads == 0 and (self.width // self.heads) % 2 == 0
        allowed = f"a number that splits width = {self.width} into heads of an even size"
        require(divides, "heads", self.heads, allowed)

    @property
    def head_size(self) -> int:
        """Width of one attention head, K."""
        return self.width // self.heads
