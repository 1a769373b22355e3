"""Loads an exported model with `ai2-olmo` and compares its logits with the recorded ones.

    PYTHON olmo.py DIR

A script for an interpreter that has the target library; it imports nothing of this package. Prints
one line of JSON: for each way of loading, the library, and the largest difference of any logit.
"""

import importlib.metadata
import json
import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # what is verified is the directory, and nothing else
sys.path = [path for path in sys.path if path != str(Path(__file__).parent)]  # hides `olmo`

import hf_olmo  # noqa: F401  (it tells transformers about the model)
import safetensors.numpy
import safetensors.torch
import torch
import transformers
from olmo.config import ModelConfig
from olmo.model import OLMo


def main(directory: Path) -> None:
    """Prints how far the model in a directory is from its parity record."""
    record = safetensors.numpy.load_file(directory / "parity.safetensors")
    tokens = torch.from_numpy(record["tokens"])[None].long()
    plain = OLMo(ModelConfig.load(directory / "config.yaml", key="model"))
    plain.load_state_dict(safetensors.torch.load_file(directory / "model.safetensors"))
    hub = transformers.AutoModelForCausalLM.from_pretrained(directory)
    version = importlib.metadata.version("ai2-olmo")
    found = {}
    for name, model in (
        (f"ai2-olmo {version}, OLMo", plain),
        (f"transformers {transformers.__version__}, {type(hub).__name__}", hub),
    ):
        with torch.no_grad():
            logits = model.float().eval()(tokens).logits[0].numpy()
        found[name] = float(abs(logits - record["logits"]).max())
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    prompt = json.loads((directory / "anytime_jax.json").read_text("utf-8"))["prompt"]
    ids = tokenizer(prompt["text"], add_special_tokens=False)["input_ids"]
    print(json.dumps({"logits": found, "same_tokens": ids == prompt["ids"]}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
