"""The groups of settings that belong to no room of their own, each checked as it is made."""

import dataclasses
from typing import Literal, get_args

from anytime_jax.checks import (
    LARGEST_COUNT,
    format_value,
    is_number,
    require,
    require_choice,
    require_count,
    require_directory,
    require_fraction,
    require_positive,
    require_word,
)

Attention = Literal["auto", "plain", "blocks", "xla", "cudnn"]
Dtype = Literal["bfloat16", "float32"]
Architecture = Literal["olmo", "olmo2"]
LayerLoop = Literal["scan", "unroll"]
Remat = Literal["none", "products", "full"]

# What of a trunk's settings a branch may change where `branch.change` names it.
CHANGEABLE = ("schedule.", "optimizer.")


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Where token windows come from.

    Attributes:
      path: directory of a dataset written by `anytime_jax.commands.prepare`.
      builtin_megabytes: text of the built-in corpus to prepare at `path` if nothing is there yet;
        0 to refuse instead.
      seed: seed of the order of the windows.
      repeat: whether to start another pass when the windows are used up, rather than stop.
    """

    path: str
    builtin_megabytes: float
    seed: int
    repeat: bool

    def __post_init__(self) -> None:
        """Checks every field."""
        require_directory("path", self.path)
        ok = 0 <= self.builtin_megabytes < 1e6
        require(ok, "builtin_megabytes", self.builtin_megabytes, "megabytes of text, 0 for none")
        require_count("seed", self.seed)


@dataclasses.dataclass(frozen=True)
class BranchConfig:
    """The checkpoint of another run, the trunk, that this one begins from.

    Attributes:
      from_run: directory of the trunk; empty for a run that begins at its own first update.
      multiple: horizon in Chinchilla multiples; the branch leaves the trunk at 90% of it.
      step: the trunk's checkpoint to leave from, if it is not given by `multiple`.
      data: directory of other data to go on with, from their beginning; empty for the trunk's.
      change: names of settings that are meant to differ from the trunk's.
    """

    from_run: str
    multiple: float
    step: int
    data: str
    change: tuple

    def __post_init__(self) -> None:
        """Checks every field."""
        for name in ("from_run", "data"):
            if value := getattr(self, name):
                require_directory(name, value)
        ok = is_number(self.multiple) and 0 <= self.multiple < LARGEST_COUNT
        require(ok, "multiple", self.multiple, "a multiple of the Chinchilla budget, 0 for none")
        require_count("step", self.step)
        for name in self.change:
            ok = isinstance(name, str) and name.startswith(CHANGEABLE)
            require(ok, "change", name, 'names of settings such as "schedule.peak", "optimizer.b2"')
        given = [name for name in ("multiple", "step", "data", "change") if getattr(self, name)]
        if not self.from_run and given:
            value = format_value(getattr(self, given[0]))
            raise ValueError(f"{given[0]} = {value} needs from_run: the directory of the trunk")
        if self.from_run and bool(self.multiple) == bool(self.step):
            given = "both are given" if self.step else "none is given"
            raise ValueError(
                f"from_run = {format_value(self.from_run)} needs one of multiple (the horizon, such as 4: "
                f"the branch leaves at 90% of it) and step (the trunk's checkpoint): {given}"
            )


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """AdamW and the clip before it.

    Attributes:
      b1: decay of the first moment.
      b2: decay of the second moment.
      epsilon: added to the root of the second moment.
      weight_decay: decoupled decay of every parameter, times the learning rate.
      clip_norm: largest global norm of the gradient.
    """

    b1: float
    b2: float
    epsilon: float
    weight_decay: float
    clip_norm: float

    def __post_init__(self) -> None:
        """Checks every field."""
        for name in ("b1", "b2"):
            value = getattr(self, name)
            # float32 rounds what is nearer to 1 up to it.
            require(0 <= value < 1 - 2**-25, name, value, "from 0 to below 1, in float32 too")
        require_positive("epsilon", self.epsilon)
        require_fraction("weight_decay", self.weight_decay)
        require_positive("clip_norm", self.clip_norm)


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    """When and on what the weights and their averages are evaluated.

    Attributes:
      every: distance between evaluations, as a point; those at 1x, 2x, 4x, ... come besides.
      tokens: tokens of the validation split, rounded down to windows: the first ones, every time.
      batch_size: sequences evaluated at once.
    """

    every: str
    tokens: int
    batch_size: int

    def __post_init__(self) -> None:
        """Checks every field."""
        require_count("tokens", self.tokens, least=1)
        require_count("batch_size", self.batch_size, least=1)


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """What is saved and kept.

    Attributes:
      every: distance between rolling checkpoints, as a point.
      keep: number of rolling checkpoints kept.
      keep_every: distance between checkpoints kept for ever, as a point; "never" for only the
        doublings 1x, 2x, 4x, ... and the branch point at 90% of each, which are always kept.
    """

    every: str
    keep: int
    keep_every: str

    def __post_init__(self) -> None:
        """Checks every field."""
        require_count("keep", self.keep, least=1)


@dataclasses.dataclass(frozen=True)
class LogConfig:
    """What is written while training.

    Attributes:
      every: distance between rows of the records, as a point.
      tensorboard: whether to write TensorBoard files too.
      wandb_project: Weights & Biases project to mirror to; empty for none.
    """

    every: str
    tensorboard: bool
    wandb_project: str

    def __post_init__(self) -> None:
        """Checks what the other settings do not."""
        if self.wandb_project:
            require_word("wandb_project", self.wandb_project)


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


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """How many devices each mesh axis takes.

    Attributes:
      data: devices that split the batch and repeat the parameters; -1 for all that remain.
      fsdp: devices that split the batch and the parameters.
      tensor: devices that split each matrix product.
    """

    data: int
    fsdp: int
    tensor: int

    def __post_init__(self) -> None:
        """Checks every field."""
        if self.data != -1:
            require_count("data", self.data, least=1)
        require_count("fsdp", self.fsdp, least=1)
        require_count("tensor", self.tensor, least=1)


@dataclasses.dataclass(frozen=True)
class GuardConfig:
    """What counts as a bad update, and what becomes of it.

    Attributes:
      skip: "nothing": the run stops at the first update whose loss or gradient is not finite;
        "nonfinite": it passes over such updates; "spikes": over those of a spiking loss too.
      spike: standard deviations above the mean of the last losses from which on a loss is a spike.
      limit: bad updates in a row that are passed over; one more stops the run.
    """

    skip: Literal["nothing", "nonfinite", "spikes"]
    spike: float
    limit: int

    def __post_init__(self) -> None:
        """Checks every field."""
        require_choice("skip", self.skip, ("nothing", "nonfinite", "spikes"))
        require_positive("spike", self.spike)
        require_count("limit", self.limit, least=1)
