"""Small Llama with grouped queries and its tokenizer, as transformers saves them."""

import dataclasses
import json
from pydoc_data.topics import topics

import numpy as np
import safetensors.numpy
from byte_level_tokenizer import write_byte_level

from anytime_jax.config import run_config
from anytime_jax.config.kinds import NOBODY
from anytime_jax.formats import model_reader
from anytime_jax.formats.model_reader import WEIGHTS
from anytime_jax.models import decoder
from configs import continued


def write_llama(folder):
    """Writes the model into a folder; its tokenizer puts a BOS before a text."""
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin|>"}  # as Llama 3
    file = write_byte_level(folder, topics.values(), **config)
    rows = 1 + max(x["id"] for x in json.loads(file.read_text())["added_tokens"])
    config = {
        "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "hidden_act": "silu",
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10_000.0,
        "tie_word_embeddings": True, "vocab_size": rows, "bos_token_id": 2, "eos_token_id": 1,
    }  # fmt: skip
    shapes = {"model.embed_tokens": (rows, 32), "model.norm": (32,)}
    for layer in (f"model.layers.{i}." for i in range(2)):
        shapes |= {f"{layer}self_attn.{x}_proj": (32, 32) for x in "qo"}
        shapes |= {f"{layer}self_attn.{x}_proj": (16, 32) for x in "kv"}
        shapes |= {f"{layer}mlp.{x}_proj": (64, 32) for x in ("gate", "up")}
        shapes |= {f"{layer}mlp.down_proj": (32, 64)}
        shapes |= {f"{layer}{x}_layernorm": (32,) for x in ("input", "post_attention")}
    random = np.random.default_rng(0)
    tensors = {
        f"{name}.weight": (0.3 * random.standard_normal(shape) + (len(shape) == 1)).astype("f4")
        for name, shape in shapes.items()
    }
    (folder / "config.json").write_text(json.dumps(config))
    safetensors.numpy.save_file(tensors, folder / WEIGHTS, {"format": "pt"})


def read_export(folder):
    """Returns the model of an export, computed in float32, and its weights as a run reads them."""
    model = run_config.build(continued.get_config(str(folder)).to_dict(), trust=NOBODY).model
    model = dataclasses.replace(model, dtype="float32", attention="plain")
    shapes = decoder.param_shapes(model)
    return model, model_reader.read_params(model_reader.read_description(folder), model, shapes)
