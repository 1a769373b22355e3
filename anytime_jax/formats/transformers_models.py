"""Models of the `transformers` library: OLMo-2, Llama with Mistral, and dense Qwen.

Source of the settings, of their defaults and of the tensors' names: the library's classes
`Olmo2Config`, `LlamaConfig`, `MistralConfig`, `Qwen2Config` and `Qwen3Config`, version 5, and
version 4 where a file of it is read.
"""

import functools
import json
from collections.abc import Sequence
from typing import Any

from anytime_jax.checks import is_number, require_count
from anytime_jax.config.model import ModelConfig, Qwen
from anytime_jax.errors import InputError
from anytime_jax.formats.model_format import (
    ModelFormat,
    Settings,
    TensorMapping,
    read_shared,
    require_setting,
)

# Their names of shared settings, by our names.
_NAMES = {
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "width": "hidden_size",
    "mlp_width": "intermediate_size",
    "length": "max_position_embeddings",
    "embedding_rows": "vocab_size",
    "rope_theta": "rope_theta",
    "norm_epsilon": "rms_norm_eps",
}
# The library's defaults of what a file may leave out, where they differ from those of `_read`.
_DEFAULTS: dict[str, Settings] = {
    "olmo2": {"rms_norm_eps": 1e-5},
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "qwen2": {"num_key_value_heads": 32},
    "qwen3": {"num_key_value_heads": 32, "head_dim": 128},
}
_CLASSES = {
    "olmo2": "Olmo2ForCausalLM",
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
# Settings for which null is another value than what the library takes where they are missing.
_MAY_BE_NULL = ("num_key_value_heads", "sliding_window")
_SLIDING = "sliding_attention"
_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def _read(settings: Settings) -> Settings:
    """Returns what the families share."""
    model_type = settings["model_type"]
    rope = _rope(settings)
    settings = {
        "rms_norm_eps": 1e-6,
        **_DEFAULTS.get(model_type, {}),
        **{name: x for name, x in settings.items() if x is not None or name in _MAY_BE_NULL},
        "rope_theta": rope.get("rope_theta", settings.get("rope_theta", 10_000.0)),
    }
    if settings.get("num_key_value_heads") is None:
        settings["num_key_value_heads"] = settings.get("num_attention_heads")
    require_setting(settings, "hidden_act", "silu")
    require_setting(settings, "clip_qkv", None)
    require_setting(settings, "pretraining_tp", 1)
    require_setting(settings, "attention_multiplier", None)
    require_setting({**settings, **rope}, "partial_rotary_factor", 1.0)
    ours = read_shared(settings, _NAMES)
    if (kv_heads := ours["kv_heads"]) == ours["heads"]:
        kv_heads = 0
    head_size = settings.get("head_dim") or 0
    if head_size * ours["heads"] == ours["width"]:
        head_size = 0
    return {
        **ours,
        "length": _attended_length(settings, ours["layers"], ours["length"]),
        "kv_heads": kv_heads,
        "head_size": head_size,
        "tied": bool(settings.get("tie_word_embeddings", False)),
        "rope_scaling": _scaling(rope),
    }


def _rope(settings: Settings) -> Settings:
    """Returns the settings of the rotation, which versions 4 and 5 name in their own ways."""
    rope = settings.get("rope_scaling") or settings.get("rope_parameters") or {}
    return rope if isinstance(rope, dict) else {"rope_type": rope}


def _scaling(rope: Settings) -> tuple[float, ...]:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return ()
    if kind != "llama3":
        raise InputError("it must be 'default' or 'llama3'", "rope_type", kind)
    for name in _LLAMA3:
        if not is_number(rope.get(name)):
            raise InputError("it is missing in the llama3 rotation: give a number", name)
    return tuple(float(rope[name]) for name in _LLAMA3)


def _attended_length(settings: Settings, layers: int, length: int) -> int:
    """Returns the longest window of tokens in which every token attends to all before it.

    Raises an InputError for a kind of layer that the decoder does not have.
    """
    model_type, window = settings["model_type"], settings.get("sliding_window")
    kinds: Sequence[Any] = ()
    if model_type == "mistral":
        kinds = () if window is None else (_SLIDING,)
    elif model_type.startswith("qwen"):
        if not settings.get("use_sliding_window", False):
            window = None
        is_sliding = window is not None and layers > settings.get("max_window_layers", 28)
        kinds = settings.get("layer_types") or ((_SLIDING,) if is_sliding else ())
    for kind in kinds:
        if kind not in (_SLIDING, "full_attention"):
            raise InputError(
                f"every layer must be 'full_attention' or {_SLIDING!r}", "layer_types", kind
            )
    if _SLIDING not in kinds:
        return length
    require_count("sliding_window", window, least=1)  # layer_types has layers that need it
    return min(length, int(window or 0))


def _write(config: ModelConfig, model_type: str, **options: Any) -> Settings:
    """Returns the settings that the families share, and the options of one."""
    rope: Settings = {"rope_type": "default"}
    if config.rope_scaling:
        values = (*config.rope_scaling[:3], int(config.rope_scaling[3]))
        rope = {"rope_type": "llama3", **dict(zip(_LLAMA3, values, strict=True))}
    return {
        "architectures": [_CLASSES[model_type]],
        "model_type": model_type,
        **{theirs: getattr(config, ours) for ours, theirs in _NAMES.items()},
        "num_key_value_heads": config.key_heads,
        "head_dim": config.head_width,
        "tie_word_embeddings": config.tied,
        "hidden_act": "silu",
        "rope_scaling": rope if config.rope_scaling else None,  # for version 4
        "rope_parameters": {**rope, "rope_theta": config.rope_theta},
        **options,
    }


def _files(settings: Settings, token_ids: Settings, dtype: str) -> dict[str, str]:
    config = {
        **settings,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "pad_token_id": None,
        **token_ids,
        "dtype": dtype,
        "use_cache": True,
    }
    return {
        "config.json": json.dumps(config, indent=1),
        "generation_config.json": json.dumps(token_ids, indent=1),
    }


def _tensors(config: ModelConfig) -> tuple[TensorMapping, ...]:
    """Returns the tensors of a model of any family."""
    layer = "model.layers.{}."
    norms = ("input_layernorm", "post_attention_layernorm")
    if not config.norm_first:
        norms = ("post_attention_layernorm", "post_feedforward_layernorm")
    is_fused = config.key_heads == config.heads
    queries, keys, of_keys = ("qkv", "qkv", 1) if is_fused else ("q", "kv", 0)
    products = (
        ("self_attn.q_proj", queries, 0, "qkv"),
        ("self_attn.k_proj", keys, of_keys, "qkv"),
        ("self_attn.v_proj", keys, of_keys + 1, "qkv"),
        ("self_attn.o_proj", "attn_out", None, "attn_out"),
        ("mlp.gate_proj", "mlp_in", 0, "mlp_in"),
        ("mlp.up_proj", "mlp_in", 1, "mlp_in"),
        ("mlp.down_proj", "mlp_out", None, "mlp_out"),
    )
    table = [
        TensorMapping("model.embed_tokens.weight", "embedding", transposed=False),
        TensorMapping("model.norm.weight", "final_norm/scale"),
    ]
    for name, array, part, option in products:
        table.append(TensorMapping(f"{layer}{name}.weight", f"blocks/{array}", part))
        if option in config.biases:
            table.append(TensorMapping(f"{layer}{name}.bias", f"blocks/{array}_bias", part))
    for name, array in zip(norms, ("attn_norm", "mlp_norm"), strict=True):
        table.append(TensorMapping(f"{layer}{name}.weight", f"blocks/{array}/scale"))
    if config.qk_norm != "none":
        for name in ("q_norm", "k_norm"):
            table.append(TensorMapping(f"{layer}self_attn.{name}.weight", f"blocks/{name}/scale"))
    if not config.tied:
        table.append(TensorMapping("lm_head.weight", "head"))
    return tuple(table)


def _read_olmo2(settings: Settings) -> Settings:
    require_setting(settings, "attention_bias", False)
    return {"kind": "olmo2", **_read(settings)}


def _read_llama(settings: Settings) -> Settings:
    biases = {name: bool(settings.get(name, False)) for name in ("attention_bias", "mlp_bias")}
    return {"kind": "llama", **_read(settings), **biases}


def _write_llama(config: ModelConfig) -> Settings:
    return _write(
        config,
        "llama",
        attention_bias="attn_out" in config.biases,
        mlp_bias="mlp_out" in config.biases,
    )


def _read_qwen(settings: Settings) -> Settings:
    is_third = settings["model_type"] == "qwen3"
    has_bias = bool(settings.get("attention_bias", False)) if is_third else True
    return {
        "kind": "qwen",
        **_read(settings),
        "head_norm": is_third,
        "qkv_bias": has_bias,
        "output_bias": is_third and has_bias,
    }


def _write_qwen(config: ModelConfig) -> Settings:
    assert isinstance(config, Qwen)
    options = {"use_sliding_window": False}
    if config.head_norm and config.qkv_bias == config.output_bias:
        return _write(config, "qwen3", attention_bias=config.qkv_bias, **options)
    if not config.head_norm and config.qkv_bias and not config.output_bias:
        return _write(config, "qwen2", **options)
    raise InputError(
        f"the format qwen cannot express it with output_bias = {config.output_bias} and head_norm "
        f"= {config.head_norm}: Qwen 2 has biases of queries, keys and values alone, and Qwen 3 a "
        "norm over heads, and both biases or none",
        "config.model.qkv_bias",
        config.qkv_bias,
    )


_Format = functools.partial(ModelFormat, library="transformers", tensors=_tensors, files=_files)
OLMO2 = _Format(
    name="olmo2",
    model_types=("olmo2",),
    read=_read_olmo2,
    write=lambda config: _write(config, "olmo2", attention_bias=False),
)
LLAMA = _Format(
    name="llama",
    model_types=("llama", "mistral"),
    read=_read_llama,
    write=_write_llama,
)
QWEN = _Format(name="qwen", model_types=("qwen2", "qwen3"), read=_read_qwen, write=_write_qwen)
