"""Bits per byte of the documents of anytime_python.yaml, by our own decoder: lm_eval's number.

python docs/examples/lm_eval/check.py RUN WEIGHTS ...
"""

import json
import math
import sys
from pathlib import Path

import jax
import numpy as np

from anytime_jax.models import decoder, loss
from anytime_jax.weights import evaluation, saved_run, weight_names

saved = saved_run.open_run(Path(sys.argv[1]))
config = saved.config.model
_, vocabulary = evaluation.find_vocabulary(saved)
lines = Path(__file__).with_name("functions.jsonl").read_text(encoding="utf-8").splitlines()
texts = [json.loads(line)["text"] for line in lines]
documents = vocabulary.encode(texts)
if max(map(len, documents)) > config.length:
    sys.exit(f"error: a document has more than {config.length} tokens: shorten it")

# EOS, the document, and more EOS that is not counted.
tokens_BxL = np.full((len(texts), config.length + 1), vocabulary.eos_id)
for row, ids in zip(tokens_BxL, documents, strict=True):
    row[1 : 1 + len(ids)] = ids
counted_BxL = np.arange(config.length) < np.array([[len(ids)] for ids in documents])


@jax.jit
def losses(params):
    """Returns the nats of every token: float32[B, L]."""
    return loss.token_losses(decoder.apply(config, params, tokens_BxL[:, :-1]), tokens_BxL[:, 1:])


size = sum(len(text.encode()) for text in texts)
for name in sys.argv[2:]:
    params = saved_run.load_weights(saved, weight_names.resolve(saved, name))
    nats = np.sum(np.asarray(losses(params), np.float64), where=counted_BxL)
    print(f"{name}  {nats / math.log(2) / size:.4f} bits per byte")
