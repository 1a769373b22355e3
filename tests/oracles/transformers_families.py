"""Write the numbers that transformers' decoders give for small models, as `families.npz`.

See README.md for the environment. A model of `transformers` starts with zero biases, norms of 1 and
weights so small that neither biases nor the rotation would show. Here every tensor is drawn again,
without torch: `rng = np.random.RandomState(0)`, then for each tensor in the order of the sorted
names `0.3 * rng.standard_normal(shape)`, with 1 added for a norm, cast to float32.
"""

import json

import numpy as np
import torch
import transformers
from write_fixtures import main

SHAPE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
THETA = {"rope_type": "default", "rope_theta": 10_000.0}
MODELS = {
    "llama": ("llama", {"head_dim": 12, "attention_bias": True, "mlp_bias": True, "rope": LLAMA3}),
    "smollm2": ("llama", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    "mistral": ("mistral", {"head_dim": 12, "sliding_window": None}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {"head_dim": 12, "attention_bias": True}),
    "olmo2": ("olmo2", {}),
}


def draw(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """The formula in this module's docstring."""
    rng = np.random.RandomState(0)
    values = {}
    for name in sorted(shapes):
        z = 0.3 * rng.standard_normal(shapes[name])
        values[name] = (z + ("norm" in name)).astype(np.float32)
    return values


def run(model_type: str, options: dict) -> dict[str, np.ndarray]:
    """Configuration, logits, loss, gradients and greedy text of a model with drawn weights."""
    options = {"tie_word_embeddings": False, **options}
    rope = options.pop("rope", THETA)
    config = transformers.AutoConfig.for_model(
        model_type, **{**SHAPE, **options}, rope_parameters=dict(rope), attn_implementation="eager"
    )
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    parameters = dict(model.named_parameters())  # a tied head is named once
    drawn = draw({name: tuple(p.shape) for name, p in parameters.items()})
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(torch.from_numpy(drawn[name]))
    tokens = np.random.RandomState(1).randint(0, SHAPE["vocab_size"], size=(1, 129))
    ids = torch.from_numpy(tokens).long()
    logits = model(input_ids=ids[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    greedy = ids[:, :16]
    with torch.no_grad():
        for _ in range(32):
            following = model(input_ids=greedy).logits[:, -1].argmax(-1)
            greedy = torch.cat([greedy, following[:, None]], dim=1)
    return {
        "config": np.array(json.dumps(json.loads(config.to_json_string(use_diff=False)))),
        "tokens": tokens.astype(np.int32),
        "logits": logits.detach().numpy()[0],
        "loss": loss.detach().numpy(),
        "greedy": greedy.numpy()[0].astype(np.int32),
        **{f"grad/{name}": parameter.grad.numpy() for name, parameter in parameters.items()},
    }


def run_all() -> dict[str, np.ndarray]:
    """The results of all models, by model and name."""
    return {
        f"{name}/{key}": value
        for name, (model_type, options) in MODELS.items()
        for key, value in run(model_type, options).items()
    }


if __name__ == "__main__":
    main({"families.npz": run_all})
