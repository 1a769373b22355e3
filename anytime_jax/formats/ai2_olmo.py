"""Format of AI2's `ai2-olmo` package, for models of the paper's architecture.

`config.yaml` is for the package itself (`OLMo(ModelConfig.load(FILE, key="model"))`), `config.json`
for `transformers` after `import hf_olmo`; both use the same `model.safetensors`.
"""

import json

from anytime_jax.checks import is_number
from anytime_jax.config.model import ModelConfig
from anytime_jax.errors import InputError, needs_extra
from anytime_jax.formats.model_format import (
    ModelFormat,
    Settings,
    TensorMapping,
    read_shared,
    require_default,
    require_setting,
)

# Settings that our decoder fixes, with its values.
_FIXED: Settings = {
    "activation_type": "gelu",
    "alibi": False,
    "attention_layer_norm": True,
    "attention_layer_norm_with_affine": True,
    "bias_for_layer_norm": False,
    "block_type": "sequential",
    "clip_qkv": None,
    "embedding_layer_norm": False,
    "include_bias": False,
    "layer_norm_type": "default",
    "layer_norm_with_affine": True,
    "multi_query_attention": False,
    "rope": True,
    "scale_logits": False,
    "weight_tying": False,
}
# Their names of shared settings, by our names.
_NAMES = {
    "layers": "n_layers",
    "heads": "n_heads",
    "width": "d_model",
    "mlp_width": "mlp_hidden_size",
    "length": "max_sequence_length",
    "vocab_size": "vocab_size",
    "embedding_rows": "embedding_size",
    "rope_theta": "rope_theta",
    "norm_epsilon": "layer_norm_eps",
}

# Library defaults of settings that differ from our decoder's or that it can vary.
_DEFAULTS: Settings = {
    "activation_type": "swiglu",
    "attention_layer_norm": False,
    "include_bias": True,
    "layer_norm_eps": 1e-5,
    "rope": False,
    "rope_theta": 10_000,
    "weight_tying": True,
}


def _read(settings: Settings) -> Settings:
    settings = {**_DEFAULTS, **settings}
    require_setting(settings, "norm_after", False)
    require_setting(settings, "n_kv_heads", None, settings.get("n_heads"))
    derived = {
        "embedding_size": settings.get("vocab_size"),
        "bias_for_layer_norm": settings["include_bias"],
        "multi_query_attention": False,
    }
    if is_number(settings.get("mlp_ratio")) and is_number(settings.get("d_model")):
        derived["mlp_hidden_size"] = settings["mlp_ratio"] * settings["d_model"]
    settings |= {name: x for name, x in derived.items() if settings.get(name) is None}
    for name, value in _FIXED.items():
        require_setting(settings, name, value)
    return {"kind": "olmo", **read_shared(settings, _NAMES)}


def _write(config: ModelConfig) -> Settings:
    require_default(config, "olmo", "kv_heads", "head_size", "tied", "rope_scaling")
    theta = config.rope_theta
    if theta != int(theta):
        reason = "the format olmo cannot express it: ai2-olmo accepts whole numbers only"
        raise InputError(reason, "config.model.rope_theta", theta)
    shared = {theirs: getattr(config, ours) for ours, theirs in _NAMES.items()}
    return {**_FIXED, **shared, "rope_theta": int(theta)}


def _files(settings: Settings, token_ids: Settings, dtype: str) -> dict[str, str]:
    with needs_extra("export"):
        import yaml
    model = {
        **settings,
        **dict.fromkeys(("attention_dropout", "embedding_dropout", "residual_dropout"), 0.0),
        "flash_attention": False,
        "init_device": "cpu",
        "init_fn": "mitchell",
        "eos_token_id": token_ids["eos_token_id"],
        "pad_token_id": token_ids["eos_token_id"],
    }
    tokenizer = {"identifier": "tokenizer.json", "truncate_direction": "right"}
    hub = {
        "architectures": ["OLMoForCausalLM"],
        "model_type": "hf_olmo",
        "torch_dtype": dtype,
        "use_cache": True,
        **model,
    }
    return {
        "config.yaml": yaml.safe_dump({"model": model, "tokenizer": tokenizer}, sort_keys=False),
        "config.json": json.dumps(hub, indent=1),
    }


_TENSORS = (
    TensorMapping("transformer.wte.weight", "embedding", transposed=False),
    TensorMapping("transformer.blocks.{}.attn_norm.weight", "blocks/attn_norm/scale"),
    TensorMapping("transformer.blocks.{}.att_proj.weight", "blocks/qkv"),
    TensorMapping("transformer.blocks.{}.q_norm.weight", "blocks/q_norm/scale"),
    TensorMapping("transformer.blocks.{}.k_norm.weight", "blocks/k_norm/scale"),
    TensorMapping("transformer.blocks.{}.attn_out.weight", "blocks/attn_out"),
    TensorMapping("transformer.blocks.{}.ff_norm.weight", "blocks/mlp_norm/scale"),
    TensorMapping("transformer.blocks.{}.ff_proj.weight", "blocks/mlp_in"),
    TensorMapping("transformer.blocks.{}.ff_out.weight", "blocks/mlp_out"),
    TensorMapping("transformer.ln_f.weight", "final_norm/scale"),
    TensorMapping("transformer.ff_out.weight", "head"),
)
OLMO = ModelFormat(
    name="olmo",
    library="ai2-olmo",
    model_types=("hf_olmo",),
    tensors=lambda config: _TENSORS,
    read=_read,
    write=_write,
    files=_files,
    prefix="model.",  # in files that transformers wrote
)
