"""Loads an exported model with `transformers` and compares its logits with the recorded ones.

    PYTHON load_transformers.py DIR

Runs in an interpreter with the target library, without this package. Prints one line of JSON: the
largest logit difference for each way of loading, and whether tokens agree.
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
    prompt = json.loads((directory / "provenance.json").read_text("utf-8"))["prompt"]
    ids = tokenizer(prompt["text"], add_special_tokens=False)["input_ids"]
    print(json.dumps({"logits": {name: difference}, "same_tokens": ids == prompt["ids"]}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
