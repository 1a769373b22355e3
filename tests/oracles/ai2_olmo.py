"""Write the numbers that AI2's own OLMo code gives for a small model, and for training it.

Two files: `olmo.npz` (one forward and backward pass) and `olmo_training.npz` (30 updates with
AdamW, an exact global-norm clip, an inverse-square-root rate and two weight averages). See
README.md for the environment. The module is not called `olmo.py`: a script of that name would
hide the package it imports.

Parameters repeat without torch: `rng = np.random.RandomState(0)`, then for each name of
`parameter_names()`, in that order, `z = rng.standard_normal(shape)` in float64; a matrix is
`0.08 * z`, a norm scale `1 + 0.1 * z`, cast to float32. A linear weight has shape [out, in].
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from olmo.config import ModelConfig
from olmo.model import OLMo
from write_fixtures import main

LAYERS = 3
WIDTH = 32
SHAPE = {
    "d_model": WIDTH,
    "n_heads": 4,
    "n_layers": LAYERS,
    "mlp_hidden_size": 4 * WIDTH,
    "max_sequence_length": 16,
    "vocab_size": 90,
    "embedding_size": 96,
}
STEPS, BATCH, LENGTH = 30, 4, 16
PEAK, WARMUP, ALPHA = 1e-2, 5, 7.0
AVERAGES = (6.25, 25.0)

Arrays = dict[str, np.ndarray]


def model_config(**changes: object) -> ModelConfig:
    """The architecture of the paper at a small shape."""
    return ModelConfig(
        **{
            **SHAPE,
            "activation_type": "gelu",
            "alibi": False,
            "attention_dropout": 0.0,
            "attention_layer_norm": True,
            "attention_layer_norm_with_affine": True,
            "bias_for_layer_norm": False,
            "block_type": "sequential",
            "embedding_dropout": 0.0,
            "eos_token_id": 1,
            "flash_attention": False,
            "include_bias": False,
            "init_device": "cpu",
            "init_fn": "mitchell",
            "layer_norm_type": "default",
            "layer_norm_with_affine": True,
            "pad_token_id": 0,
            "residual_dropout": 0.0,
            "rope": True,
            "weight_tying": False,
            **changes,
        }
    )


def parameter_names() -> list[str]:
    """Every parameter, in the order in which the values are drawn."""
    inner = (
        "attn_norm",
        "att_proj",
        "q_norm",
        "k_norm",
        "attn_out",
        "ff_norm",
        "ff_proj",
        "ff_out",
    )
    blocks = [f"blocks.{layer}.{name}" for layer in range(LAYERS) for name in inner]
    return [f"transformer.{name}.weight" for name in ("wte", *blocks, "ln_f", "ff_out")]


def draw_parameters(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> Arrays:
    """The formula in this module's docstring."""
    rng = np.random.RandomState(seed)
    values = {}
    for name in parameter_names():
        z = rng.standard_normal(shapes[name])
        values[name] = (0.08 * z if z.ndim == 2 else 1.0 + 0.1 * z).astype(np.float32)
    return values


def build(dtype: torch.dtype) -> OLMo:
    """The small model with the drawn parameters.

    In float64 the rotation stays in float64; its tables of sines are float32 numbers, as always
    in this package.
    """
    model = OLMo(model_config(rope_full_precision=dtype == torch.float32)).to(dtype)
    parameters = dict(model.named_parameters())
    drawn = draw_parameters({name: tuple(p.shape) for name, p in parameters.items()})
    if set(drawn) != set(parameters):
        raise ValueError(f"other parameters: {sorted(set(drawn) ^ set(parameters))}")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(torch.from_numpy(drawn[name]))
    return model


def forward(model: OLMo, tokens: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, and the mean cross-entropy over every token and every row of the head."""
    ids = torch.from_numpy(tokens).long()
    logits = model(ids[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    return logits, loss


def arrays(model: OLMo, get: Callable[[torch.nn.Parameter], torch.Tensor | None]) -> Arrays:
    """One array per parameter, under the package's own names."""
    values = {}
    for name, parameter in model.named_parameters():
        value = get(parameter)
        if value is None:
            raise ValueError(f"nothing for {name}")
        values[name] = value.detach().numpy().copy()
    return values


def prefixed(prefix: str, values: Arrays) -> Arrays:
    return {f"{prefix}/{name}": value for name, value in values.items()}


def draw_tokens(*shape: int, seed: int) -> np.ndarray:
    rng = np.random.RandomState(seed)
    return rng.randint(0, SHAPE["vocab_size"], size=(*shape, LENGTH + 1)).astype(np.int32)


def one_pass() -> Arrays:
    """Logits, loss and gradients on one batch."""
    model = build(torch.float32)
    tokens = draw_tokens(2, seed=1)
    logits, loss = forward(model, tokens)
    loss.backward()
    return {
        "tokens": tokens,
        "logits": logits.detach().numpy(),
        "loss": loss.detach().numpy(),
        **prefixed("param", arrays(model, lambda p: p)),
        **prefixed("grad", arrays(model, lambda p: p.grad)),
    }


def learning_rate(count: int) -> float:
    """The rate of the update that follows `count` updates; the first sees 0."""
    if count < WARMUP:
        return PEAK * (0.1 + 0.9 * count / WARMUP)
    return PEAK * math.sqrt(ALPHA / (count - WARMUP + ALPHA))


def train(tokens: np.ndarray, dtype: torch.dtype) -> tuple[Arrays, Arrays, dict[float, Arrays]]:
    """Histories, final parameters and final averages (float64) of one trajectory.

    The clip is by the exact norm: `torch.nn.utils.clip_grad_norm_` divides by the norm + 1e-6.
    """
    model = build(dtype)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    start = {k: v.astype(np.float64) for k, v in arrays(model, lambda p: p).items()}
    averages = {f: dict(start) for f in AVERAGES}
    losses, norms = [], []
    for count, batch in enumerate(tokens):
        optimizer.zero_grad()
        _, loss = forward(model, batch)
        loss.backward()
        squares = (float(p.grad.double().square().sum()) for p in parameters)
        norm = math.sqrt(sum(squares))
        for parameter in parameters:
            parameter.grad.mul_(min(1.0, 1.0 / norm))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(count)
        optimizer.step()
        losses.append(loss.item())
        norms.append(norm)
        weights = arrays(model, lambda p: p)
        for f, average in averages.items():
            tau = 2.0 ** (-f / (count + 1))
            for name, weight in weights.items():
                average[name] = tau * average[name] + (1.0 - tau) * weight.astype(np.float64)
    histories = {"losses": np.array(losses), "gradient_norms": np.array(norms)}
    return histories, arrays(model, lambda p: p), averages


def largest_difference(left: Arrays, right: Arrays) -> np.ndarray:
    return np.array(max(float(np.abs(left[name] - right[name]).max()) for name in left))


def training() -> Arrays:
    """A trajectory in float32, and how far it is from the same one in float64."""
    tokens = draw_tokens(STEPS, BATCH, seed=2)
    histories, final, averages = train(tokens, torch.float32)
    histories64, final64, averages64 = train(tokens, torch.float64)
    result = {
        "tokens": tokens,
        **histories,
        "losses_float64": histories64["losses"],
        "gradient_norms_float64": histories64["gradient_norms"],
        "learning_rates": np.array([learning_rate(count) for count in range(STEPS)]),
        "final_difference_float64": largest_difference(final, final64),
        **prefixed("final", final),
    }
    for f, average in averages.items():
        single = {name: value.astype(np.float32) for name, value in average.items()}
        result.update(prefixed(f"average/{f:g}", single))
        result[f"average_difference_float64/{f:g}"] = largest_difference(average, averages64[f])
    return result


if __name__ == "__main__":
    main({"olmo.npz": one_pass, "olmo_training.npz": training})
