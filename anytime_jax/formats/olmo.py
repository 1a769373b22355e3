"""The paper's shape of model as AI2's `ai2-olmo` package has it, and its `hf_olmo` loads it.

`config.yaml` is for the package itself (`OLMo(ModelConfig.load(FILE, key="model"))`), `config.json`
for `transformers` after `import hf_olmo`; both read the same `model.safetensors`.
"""

import json

from anytime_jax.formats.format import Format, Piece, Settings


def _tidy(settings: Settings) -> Settings:
    """A width of the MLP may be given as a multiple of the model's."""
    tidied = dict(settings)
    if tidied.get("mlp_hidden_size") is None and {"mlp_ratio", "d_model"} <= tidied.keys():
        tidied["mlp_hidden_size"] = tidied["mlp_ratio"] * tidied["d_model"]
    if tidied.get("embedding_size") is None:
        tidied["embedding_size"] = tidied.get("vocab_size")
    if tidied.get("n_kv_heads") is None:
        tidied["n_kv_heads"] = tidied.get("n_heads")
    if not tidied.get("bias_for_layer_norm"):  # None: as include_bias
        tidied["bias_for_layer_norm"] = tidied.get("include_bias", False)
    tidied["multi_query_attention"] = tidied["n_kv_heads"] != tidied.get("n_heads")
    return {"layer_norm_eps": 1e-5, "rope_theta": 10_000, **tidied}


def _files(settings: Settings, eos_id: int, dtype: str) -> dict[str, str]:
    import yaml

    model = {
        **settings,
        **dict.fromkeys(("attention_dropout", "embedding_dropout", "residual_dropout"), 0.0),
        "flash_attention": False,
        "init_device": "cpu",
        "init_fn": "mitchell",
        "eos_token_id": eos_id,
        "pad_token_id": eos_id,
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


OLMO = Format(
    name="olmo",
    model_type="hf_olmo",
    library="ai2-olmo",
    pieces=(
        Piece("transformer.wte.weight", "embedding", turned=False),
        Piece("transformer.blocks.{}.attn_norm.weight", "blocks/attn_norm/scale"),
        Piece("transformer.blocks.{}.att_proj.weight", "blocks/qkv"),
        Piece("transformer.blocks.{}.q_norm.weight", "blocks/q_norm/scale"),
        Piece("transformer.blocks.{}.k_norm.weight", "blocks/k_norm/scale"),
        Piece("transformer.blocks.{}.attn_out.weight", "blocks/attn_out"),
        Piece("transformer.blocks.{}.ff_norm.weight", "blocks/mlp_norm/scale"),
        Piece("transformer.blocks.{}.ff_proj.weight", "blocks/mlp_in"),
        Piece("transformer.blocks.{}.ff_out.weight", "blocks/mlp_out"),
        Piece("transformer.ln_f.weight", "final_norm/scale"),
        Piece("transformer.ff_out.weight", "head"),
    ),
    fixed={
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
    },
    names={
        "layers": "n_layers",
        "heads": "n_heads",
        "width": "d_model",
        "mlp_width": "mlp_hidden_size",
        "length": "max_sequence_length",
        "vocab_size": "vocab_size",
        "embedding_rows": "embedding_size",
        "rope_theta": "rope_theta",
        "norm_epsilon": "layer_norm_eps",
    },
    files=_files,
    whole=("rope_theta",),
    tidy=_tidy,
)
