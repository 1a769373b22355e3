"""Loads an exported model with `ai2-olmo` and compares its logits with the recorded ones.

    PYTHON load_ai2_olmo.py DIR < TEXTS

Runs in an interpreter with the target library, without this package. TEXTS is a JSON list. Prints
one line of JSON: the largest logit difference for each way of loading, and the ids of each text.
"""

import importlib.metadata
import json
import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # verifies the directory alone
sys.path = [path for path in sys.path if path != str(Path(__file__).parent)]  # hides `olmo`

import hf_olmo  # noqa: F401  (registers the model with transformers)
import safetensors.numpy
import safetensors.torch
import torch
import transformers
from olmo.config import ModelConfig
from olmo.model import OLMo


def main(directory: Path) -> None:
    """Prints the differences from the parity record of a model directory."""
    record = safetensors.numpy.load_file(directory / "parity.safetensors")
    tokens = torch.from_numpy(record["tokens"])[None].long()
    plain = OLMo(ModelConfig.load(directory / "config.yaml", key="model"))
    plain.load_state_dict(safetensors.torch.load_file(directory / "model.safetensors"))
    pretrained = transformers.AutoModelForCausalLM.from_pretrained(directory)
    version = importlib.metadata.version("ai2-olmo")
    differences = {}
    for name, model in (
        (f"ai2-olmo {version}, OLMo", plain),
        (f"transformers {transformers.__version__}, {type(pretrained).__name__}", pretrained),
    ):
        with torch.no_grad():
            logits = model.float().eval()(tokens).logits[0].numpy()
        differences[name] = float(abs(logits - record["logits"]).max())
    report = {"logits": differences}
    if (directory / "tokenizer.json").is_file():  # transformers 4 reads no SentencePiece model here
        tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
        plain = {"add_special_tokens": False, "split_special_tokens": True}
        report["ids"] = [tokenizer(text, **plain)["input_ids"] for text in json.load(sys.stdin)]
        report["around"] = [tokenizer("a")["input_ids"], tokenizer("a", **plain)["input_ids"]]
    print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
