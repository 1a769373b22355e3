"""Models in the formats of other libraries, with the tensors of the oracles."""

import json

import pytest
import safetensors.numpy
from reference_decoders import CONFIGS, oracle

from anytime_jax.formats import model_reader, model_writer
from anytime_jax.formats.model_format import split_layers
from anytime_jax.formats.model_reader import FORMATS, WEIGHTS
from anytime_jax.models import decoder

BOTH = pytest.mark.parametrize("name", ["olmo", "olmo2"])
EOS = 1
SIZES = {
    "olmo": {
        "n_layers": 3,
        "n_heads": 4,
        "d_model": 32,
        "mlp_hidden_size": 128,
        "max_sequence_length": 16,
        "vocab_size": 90,
        "embedding_size": 96,
        "rope_theta": 10_000,
        "layer_norm_eps": 1e-5,
    },
    "olmo2": {
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "hidden_size": 32,
        "intermediate_size": 96,
        "max_position_embeddings": 16,
        "vocab_size": 96,
        "rope_theta": 500_000.0,
        "rms_norm_eps": 1e-6,
    },
}
# Settings of the paper's architecture in ai2-olmo 0.6.0.
AI2 = {
    "activation_type": "gelu",
    "alibi": False,
    "attention_dropout": 0.0,
    "attention_layer_norm": True,
    "attention_layer_norm_with_affine": True,
    "bias_for_layer_norm": False,
    "block_type": "sequential",
    "clip_qkv": None,
    "embedding_dropout": 0.0,
    "embedding_layer_norm": False,
    "eos_token_id": EOS,
    "flash_attention": False,
    "include_bias": False,
    "init_device": "cpu",
    "init_fn": "mitchell",
    "layer_norm_type": "default",
    "layer_norm_with_affine": True,
    "multi_query_attention": False,
    "pad_token_id": EOS,
    "residual_dropout": 0.0,
    "rope": True,
    "scale_logits": False,
    "weight_tying": False,
}


def tensors(name):
    """Returns the parameters of the other library, under its names."""
    arrays = oracle(name)[0]
    return {x.removeprefix("param/"): y for x, y in arrays.items() if x.startswith("param/")}


def settings(name, **changes):
    """Returns the necessary content of config.json."""
    if name == "olmo2":
        return {"model_type": "olmo2", **SIZES[name], **changes}
    return {"model_type": "hf_olmo", **AI2, **SIZES[name], **changes}


def write_reference(folder, name, arrays=None, **changes):
    """Writes a directory as the other library does; a change to `...` removes a setting."""
    folder.mkdir(exist_ok=True)
    arrays = tensors(name) if arrays is None else arrays
    safetensors.numpy.save_file(arrays, folder / WEIGHTS, {"format": "pt"})
    config = {x: y for x, y in settings(name, **changes).items() if y is not ...}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def read(folder, name):
    config, model = CONFIGS[name], model_reader.read_description(folder)
    model_reader.check_params(model, config)
    return model_reader.read_params(model, config, decoder.param_shapes(config))


def write(folder, name, dtype="float32", config=None):
    folder.mkdir(exist_ok=True)
    layers = split_layers(oracle(name)[1])
    model_writer.write_model(
        folder, FORMATS[name], config or CONFIGS[name], layers, {"eos_token_id": EOS}, dtype
    )
    return folder
