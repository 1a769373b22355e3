"""Format of `transformers` for models of the OLMo-2 architecture (`Olmo2ForCausalLM`)."""

import json

from anytime_jax.checks import format_value
from anytime_jax.errors import InputError
from anytime_jax.formats.model_format import ModelFormat, Settings, TensorMapping, require_own_keys


def _normalize(settings: Settings) -> Settings:
    """Resolves the settings of rotary embeddings, which vary with the version of `transformers`."""
    rope = settings.get("rope_scaling") or settings.get("rope_parameters") or {}
    rope = rope if isinstance(rope, dict) else {"rope_type": rope}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise InputError(f"rope_type = {format_value(kind)} is not supported: it must be 'default'")
    require_own_keys(settings, "num_attention_heads", "num_key_value_heads")
    theta = rope.get("rope_theta", settings.get("rope_theta"))
    return {"rms_norm_eps": 1e-5, **settings, "rope_theta": theta}


def _config_files(settings: Settings, eos_id: int, dtype: str) -> dict[str, str]:
    theta = settings["rope_theta"]
    config = {
        "architectures": ["Olmo2ForCausalLM"],
        "model_type": "olmo2",
        **settings,
        "attention_dropout": 0.0,
        "num_key_value_heads": settings["num_attention_heads"],
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "bos_token_id": None,
        "eos_token_id": eos_id,
        "pad_token_id": None,
        "torch_dtype": dtype,
        "use_cache": True,
    }
    generation = {"eos_token_id": eos_id}
    return {
        "config.json": json.dumps(config, indent=1),
        "generation_config.json": json.dumps(generation, indent=1),
    }


OLMO2 = ModelFormat(
    name="olmo2",
    model_type="olmo2",
    library="transformers",
    tensors=(
        TensorMapping("model.embed_tokens.weight", "embedding", transposed=False),
        TensorMapping("model.layers.{}.self_attn.q_proj.weight", "blocks/qkv", part=0),
        TensorMapping("model.layers.{}.self_attn.k_proj.weight", "blocks/qkv", part=1),
        TensorMapping("model.layers.{}.self_attn.v_proj.weight", "blocks/qkv", part=2),
        TensorMapping("model.layers.{}.self_attn.q_norm.weight", "blocks/q_norm/scale"),
        TensorMapping("model.layers.{}.self_attn.k_norm.weight", "blocks/k_norm/scale"),
        TensorMapping("model.layers.{}.self_attn.o_proj.weight", "blocks/attn_out"),
        TensorMapping("model.layers.{}.post_attention_layernorm.weight", "blocks/attn_norm/scale"),
        TensorMapping("model.layers.{}.mlp.gate_proj.weight", "blocks/mlp_in", part=0),
        TensorMapping("model.layers.{}.mlp.up_proj.weight", "blocks/mlp_in", part=1),
        TensorMapping("model.layers.{}.mlp.down_proj.weight", "blocks/mlp_out"),
        TensorMapping("model.layers.{}.post_feedforward_layernorm.weight", "blocks/mlp_norm/scale"),
        TensorMapping("model.norm.weight", "final_norm/scale"),
        TensorMapping("lm_head.weight", "head"),
    ),
    fixed={
        "attention_bias": False,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    },
    names={
        "layers": "num_hidden_layers",
        "heads": "num_attention_heads",
        "width": "hidden_size",
        "mlp_width": "intermediate_size",
        "length": "max_position_embeddings",
        "embedding_rows": "vocab_size",
        "rope_theta": "rope_theta",
        "norm_epsilon": "rms_norm_eps",
    },
    config_files=_config_files,
    normalize=_normalize,
)
