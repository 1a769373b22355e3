"""Write what Microsoft's package `mup` makes of a small model, as `mup.npz`.

See README.md for the environment. A Llama of `transformers`, four times as wide as its base, has
the head that the package gives it, and takes six updates of the package's AdamW. Its tensors are
drawn by the formula of `transformers_families.py`. The package multiplies the weight decay of
matrices by the growth of the width, so that rate x decay does not depend on it.
"""

import json
import statistics

import mup
import numpy as np
import torch
import transformers
from transformers_families import THETA, draw
from write_fixtures import main

UPDATES, RATE, DECAY, EPSILON = 6, 0.01, 0.1, 1e-12
STD = 0.02
_DRAWS = 200  # of every tensor, to measure its initial standard deviation


def make(growth: int, tied: bool) -> torch.nn.Module:
    """Returns a model `growth` times as wide as the base, with heads of the same size."""
    config = transformers.AutoConfig.for_model(
        "llama",
        vocab_size=64,
        hidden_size=16 * growth,
        intermediate_size=24 * growth,
        num_hidden_layers=2,
        num_attention_heads=2 * growth,
        num_key_value_heads=growth,
        max_position_embeddings=128,
        rms_norm_eps=1e-5,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
        tie_word_embeddings=tied,
        rope_parameters=dict(THETA),
        attn_implementation="eager",
    )
    model = transformers.AutoModelForCausalLM.from_config(config).float()
    if tied:
        model.lm_head = mup.MuSharedReadout(model.model.embed_tokens.weight, bias=False)
    else:
        model.lm_head = mup.MuReadout(config.hidden_size, config.vocab_size, bias=False)
    return model


def run(tied: bool) -> dict[str, np.ndarray]:
    """Configuration, losses, weights and rates of a training, and the initial scales."""
    model = make(4, tied)
    mup.set_base_shapes(model, make(1, tied), delta=make(2, tied), rescale_params=False)
    parameters = dict(model.named_parameters())
    scales = {}
    with torch.no_grad():
        for name, parameter in parameters.items():
            if "norm" not in name:
                scales[f"std/{name}"] = np.array(_initial_std(parameter))
        drawn = draw({name: tuple(p.shape) for name, p in parameters.items()})
        for name, parameter in parameters.items():
            parameter.copy_(torch.from_numpy(drawn[name]))
    optimizer = mup.MuAdamW(
        parameters.values(), lr=RATE, betas=(0.9, 0.98), eps=EPSILON, weight_decay=DECAY
    )
    rates = {}
    for group in optimizer.param_groups:
        for name, parameter in parameters.items():
            if any(parameter is x for x in group["params"]):
                rates[f"rate/{name}"] = np.array(group["lr"])
    tokens = np.random.RandomState(1).randint(0, 64, size=(UPDATES, 2, 33))
    losses = []
    for batch in tokens:
        ids = torch.from_numpy(batch).long()
        logits = model(input_ids=ids[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    config = json.loads(model.config.to_json_string(use_diff=False))
    return {
        "config": np.array(json.dumps(config)),
        "tokens": tokens.astype(np.int32),
        "losses": np.array(losses),
        **{f"final/{name}": p.detach().numpy() for name, p in parameters.items()},
        **rates,
        **scales,
    }


def _initial_std(parameter: torch.Tensor) -> float:
    torch.manual_seed(0)
    squares = []
    for _ in range(_DRAWS):
        mup.init.normal_(parameter, std=STD)
        squares.append(parameter.square().mean().item())
    return statistics.fmean(squares) ** 0.5


def run_all() -> dict[str, np.ndarray]:
    """The results with a head of its own, and with the embedding as the head."""
    models = {"untied": run(tied=False), "tied": run(tied=True)}
    return {f"{name}/{key}": value for name, x in models.items() for key, value in x.items()}


if __name__ == "__main__":
    main({"mup.npz": run_all})
