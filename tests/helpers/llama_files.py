"""Files of a random small Llama as other programs write them, and its loss in NumPy."""

import json
import pathlib
import random

import numpy as np
import safetensors.numpy
from byte_level_tokenizer import write_byte_level

LENGTH = 24  # of a window, in tokens
_WIDTH, _HIDDEN, _LAYERS, _HEADS, _HEAD, _THETA = 16, 24, 2, 4, 4, 10_000.0
_INDEX = "model.safetensors.index.json"
# What leaves the numbers as they are.
_HARMLESS = (
    *("null heads", "other nulls", "rotary buffer", "a rotary buffer in each layer", "shards"),
    *(
        "a stale copy in another shard",
        "an equal head",
        "an id past the embedding",
        "a long window",
    ),
    *("an unused window",),
)
_REFUSED = (
    "another head",
    "pickled weights alone",
    "a missing tensor",
    "a cut file",
    "a lost shard",
)


class Llama:
    """A random model, with some odd properties."""

    def __init__(self, draw: random.Random):
        """Draws the properties and the weights."""
        self._draw = draw
        self.odd = set(draw.sample(_HARMLESS, draw.randint(0, 3)))
        if draw.random() < 0.3:
            self.odd.add(draw.choice(_REFUSED))
        if {"a long window", "an unused window"} <= self.odd:
            self.odd.remove("a long window")
        if "a stale copy in another shard" in self.odd or "a lost shard" in self.odd:
            self.odd.add("shards")
        self._kv_heads = _HEADS if "null heads" in self.odd else 2
        self._tied = bool({"an equal head", "another head"} & self.odd) or draw.random() < 0.5

    def write(self, folder: pathlib.Path) -> tuple[bool, str]:
        """Writes model and tokenizer; returns whether it must be refused, and a description."""
        folder.mkdir()
        texts = [" ".join("abcdefghij"[i : i + 3] for i in range(8)) * 9]
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin|>"}
        file = write_byte_level(folder, texts, 300, **settings)
        content = json.loads(file.read_text())
        rows = 1 + max(x["id"] for x in content["added_tokens"])
        if "an id past the embedding" in self.odd:
            content["added_tokens"].append({**content["added_tokens"][0], "id": rows + 3})
            content["added_tokens"][-1]["content"] = "<|image|>"
            file.write_text(json.dumps(content))
        self._make_weights(rows)
        (folder / "config.json").write_text(json.dumps(self._config(rows)))
        self._write_weights(folder)
        return bool(self.odd & set(_REFUSED)), ", ".join(sorted(self.odd)) or "plain"

    def _make_weights(self, rows: int) -> None:
        rng = np.random.default_rng(self._draw.randrange(2**32))
        shapes = {"model.embed_tokens": (rows, _WIDTH), "model.norm": (_WIDTH,)}
        if not self._tied:
            shapes["lm_head"] = (rows, _WIDTH)
        for i in range(_LAYERS):
            layer = f"model.layers.{i}."
            shapes |= {f"{layer}self_attn.{x}_proj": (_WIDTH, _WIDTH) for x in "qo"}
            kv = self._kv_heads * _HEAD
            shapes |= {f"{layer}self_attn.{x}_proj": (kv, _WIDTH) for x in "kv"}
            shapes |= {f"{layer}mlp.{x}_proj": (_HIDDEN, _WIDTH) for x in ("gate", "up")}
            shapes |= {f"{layer}mlp.down_proj": (_WIDTH, _HIDDEN)}
            shapes |= {f"{layer}{x}_layernorm": (_WIDTH,) for x in ("input", "post_attention")}
        self.weights = {
            f"{name}.weight": (0.3 * rng.standard_normal(shape) + (len(shape) == 1)).astype("f4")
            for name, shape in shapes.items()
        }

    def _config(self, rows: int) -> dict:
        config = {
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": _WIDTH,
            "intermediate_size": _HIDDEN, "hidden_act": "silu", "num_hidden_layers": _LAYERS,
            "num_attention_heads": _HEADS, "num_key_value_heads": self._kv_heads,
            "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": _THETA,
            "tie_word_embeddings": self._tied, "vocab_size": rows, "bos_token_id": 2,
            "eos_token_id": 1,
        }  # fmt: skip
        if "null heads" in self.odd:
            config["num_key_value_heads"] = None
        if "other nulls" in self.odd:
            config |= {"rope_scaling": None, "head_dim": None, "pad_token_id": None}
        if "a long window" in self.odd:
            config |= {"model_type": "mistral", "sliding_window": self._draw.choice((LENGTH, 40))}
            config["architectures"] = ["MistralForCausalLM"]
        if "an unused window" in self.odd:
            config |= {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
            config |= {"use_sliding_window": True, "sliding_window": 4, "head_dim": _HEAD}
            config["layer_types"] = ["full_attention"] * _LAYERS
            for i in range(_LAYERS):  # with norms of queries and keys
                for x in "qk":
                    name = f"model.layers.{i}.self_attn.{x}_norm.weight"
                    self.weights[name] = np.linspace(0.5, 1.5, _HEAD, dtype="f4")
        return config

    def _write_weights(self, folder: pathlib.Path) -> None:
        tensors, odd, draw = dict(self.weights), self.odd, self._draw
        frequencies = (_THETA ** -(np.arange(0, _HEAD, 2) / _HEAD)).astype("f4")
        if "rotary buffer" in odd:
            tensors["model.rotary_emb.inv_freq"] = frequencies
        if "a rotary buffer in each layer" in odd:
            for i in range(_LAYERS):
                tensors[f"model.layers.{i}.self_attn.rotary_emb.inv_freq"] = frequencies
        if self._tied and {"an equal head", "another head"} & odd:
            head = tensors["model.embed_tokens.weight"].copy()
            head[draw.randrange(len(head)), 0] += "another head" in odd
            tensors["lm_head.weight"] = head
        if "a missing tensor" in odd:
            del tensors[draw.choice(list(self.weights))]
        if "pickled weights alone" in odd:
            (folder / "pytorch_model.bin").write_bytes(b"PK\x03\x04" + draw.randbytes(900))
            return
        files = {"model.safetensors": list(tensors)}
        if "shards" in odd:
            names = list(tensors)
            draw.shuffle(names)
            files = {f"model-{i + 1:05d}-of-00002.safetensors": names[i::2] for i in range(2)}
            index = {name: file for file, own in files.items() for name in own}
            (folder / _INDEX).write_text(json.dumps({"metadata": {}, "weight_map": index}))
        for file, own in files.items():
            content = {name: tensors[name] for name in own}
            if "a stale copy in another shard" in odd:
                other = draw.choice([name for name in tensors if name not in own])
                content[other] = tensors[other] + 1
            safetensors.numpy.save_file(content, folder / file, {"format": "pt"})
        chosen = folder / draw.choice(list(files))
        if "a lost shard" in odd:
            chosen.unlink()
        elif "a cut file" in odd:
            content = chosen.read_bytes()
            chosen.write_bytes(content[: draw.randrange(len(content))])

    def loss(self, tokens: np.ndarray) -> float:
        """Returns the mean loss, in float64, of the windows of a split of tokens."""
        count = (len(tokens) - 1) // LENGTH
        windows = np.stack([tokens[i * LENGTH :][: LENGTH + 1] for i in range(count)])
        logits = self._logits(windows[:, :-1])
        top = logits.max(-1, keepdims=True)
        normalizer = top[..., 0] + np.log(np.exp(logits - top).sum(-1))
        return float(
            (normalizer - np.take_along_axis(logits, windows[:, 1:, None], -1)[..., 0]).mean()
        )

    def _logits(self, ids: np.ndarray) -> np.ndarray:
        weights = {x.removesuffix(".weight"): y.astype("f8") for x, y in self.weights.items()}

        def norm(x, name):
            return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * weights[name]

        angles = np.arange(LENGTH)[:, None] * _THETA ** -(np.arange(0, _HEAD, 2) / _HEAD)
        angles = np.concatenate([angles, angles], -1)[:, None]

        def heads(x, name, layer, rotated):
            x = (x @ weights[f"{layer}self_attn.{name}_proj"].T).reshape(*ids.shape, -1, _HEAD)
            if f"{layer}self_attn.{name}_norm" in weights:
                x = norm(x, f"{layer}self_attn.{name}_norm")
            if rotated:
                half = np.concatenate([-x[..., _HEAD // 2 :], x[..., : _HEAD // 2]], -1)
                x = x * np.cos(angles) + half * np.sin(angles)
            return x if name == "q" else np.repeat(x, _HEADS // x.shape[2], 2)

        x = weights["model.embed_tokens"][ids]
        causal = np.tril(np.ones((LENGTH, LENGTH), bool))
        for i in range(_LAYERS):
            layer = f"model.layers.{i}."
            y = norm(x, f"{layer}input_layernorm")
            q, k, v = (heads(y, name, layer, name != "v") for name in "qkv")
            scores = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(_HEAD)
            scores = np.exp(np.where(causal, scores - scores.max(-1, keepdims=True), -np.inf))
            scores /= scores.sum(-1, keepdims=True)
            y = np.einsum("bhqk,bkhd->bqhd", scores, v).reshape(*ids.shape, _WIDTH)
            x = x + y @ weights[f"{layer}self_attn.o_proj"].T
            y = norm(x, f"{layer}post_attention_layernorm")
            gate, up = (y @ weights[f"{layer}mlp.{name}_proj"].T for name in ("gate", "up"))
            x = x + (gate / (1 + np.exp(-gate)) * up) @ weights[f"{layer}mlp.down_proj"].T
        head = weights["model.embed_tokens"] if self._tied else weights["lm_head"]
        return norm(x, "model.norm") @ head.T
