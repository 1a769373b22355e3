"""Write the numbers that transformers' OLMo-2 gives for a small model, as `olmo2.npz`.

See README.md for the environment. Parameters repeat without torch:
`rng = np.random.RandomState(0)`, then for each name of `parameter_names()`, in that order,
`z = rng.standard_normal(shape)` in float64; a matrix is `0.08 * z`, a norm scale `1 + 0.1 * z`,
cast to float32. A linear weight has shape [out, in].
"""

import numpy as np
import torch
from transformers import Olmo2Config, Olmo2ForCausalLM
from write_fixtures import main

LAYERS = 3
ROWS = 96


def parameter_names() -> list[str]:
    """Every parameter, in the order in which the values are drawn."""
    inner = (
        *(f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "o_proj")),
        *("self_attn.q_norm", "self_attn.k_norm", "post_attention_layernorm"),
        *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "post_feedforward_layernorm"),
    )
    layers = [f"model.layers.{layer}.{name}" for layer in range(LAYERS) for name in inner]
    return [f"{name}.weight" for name in ("model.embed_tokens", *layers, "model.norm", "lm_head")]


def draw_parameters(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, np.ndarray]:
    """The formula in this module's docstring."""
    rng = np.random.RandomState(seed)
    values = {}
    for name in parameter_names():
        z = rng.standard_normal(shapes[name])
        values[name] = (0.08 * z if z.ndim == 2 else 1.0 + 0.1 * z).astype(np.float32)
    return values


def build() -> Olmo2ForCausalLM:
    """The small model with the drawn parameters.

    There is no padding token: with one, its row of the embedding would have no gradient.
    """
    config = Olmo2Config(
        vocab_size=ROWS,
        hidden_size=32,
        intermediate_size=96,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=32,
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        attention_bias=False,
        attention_dropout=0.0,
        use_cache=False,
        pad_token_id=None,
        eos_token_id=None,
        attn_implementation="eager",
    )
    model = Olmo2ForCausalLM(config).float()
    parameters = dict(model.named_parameters())
    drawn = draw_parameters({name: tuple(p.shape) for name, p in parameters.items()})
    if set(drawn) != set(parameters):
        raise ValueError(f"other parameters: {sorted(set(drawn) ^ set(parameters))}")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(torch.from_numpy(drawn[name]))
    return model


def one_pass() -> dict[str, np.ndarray]:
    """Logits, the mean cross-entropy over every token and every row, and its gradients."""
    model = build()
    tokens = np.random.RandomState(1).randint(0, ROWS, size=(2, 17)).astype(np.int32)
    ids = torch.from_numpy(tokens).long()
    logits = model(input_ids=ids[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    result = {"tokens": tokens, "logits": logits.detach().numpy(), "loss": loss.detach().numpy()}
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            raise ValueError(f"no gradient for {name}")
        result[f"param/{name}"] = parameter.detach().numpy()
        result[f"grad/{name}"] = parameter.grad.numpy()
    return result


if __name__ == "__main__":
    main({"olmo2.npz": one_pass})
