"""Loads an exported model with `transformers` and compares its logits with the recorded ones.

    PYTHON load_transformers.py DIR < TEXTS

Runs in an interpreter with the target library, without this package. TEXTS is a JSON list. Prints
one line of JSON: the largest logit difference for each way of loading, the ids of each text, and
the ids that the tokenizer by default puts before and after a text.
"""

import json
import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # verifies the directory alone

import safetensors.numpy
import torch
import transformers


def main(directory: Path) -> None:
    """Prints the differences from the parity record of a model directory."""
    record = safetensors.numpy.load_file(directory / "parity.safetensors")
    model = transformers.AutoModelForCausalLM.from_pretrained(directory).float().eval()
    with torch.no_grad():
        logits = model(torch.from_numpy(record["tokens"])[None].long()).logits[0].numpy()
    name = f"transformers {transformers.__version__}, {type(model).__name__}"
    difference = float(abs(logits - record["logits"]).max())
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    report = {"logits": {name: difference}, **encode(tokenizer, json.load(sys.stdin))}
    print(json.dumps(report))


def encode(tokenizer: transformers.PreTrainedTokenizerBase, texts: list[str]) -> dict[str, object]:
    """Returns the ids of texts, in which special tokens are text, and the ids around a text."""
    plain = {"add_special_tokens": False, "split_special_tokens": True}
    ids = [tokenizer(text, **plain)["input_ids"] for text in texts]
    return {
        "ids": ids,
        "around": [tokenizer("a")["input_ids"], tokenizer("a", **plain)["input_ids"]],
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
