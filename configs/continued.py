r"""Continued pretraining of an existing model, as an anytime run.

    anytime prepare --input=TEXTS --vocabulary=DIR --output=data/continued
    python -m anytime_jax.main --config=configs/continued.py:DIR

DIR has the weights, shape and vocabulary of a model: Llama, Mistral, Qwen or OLMo 2 in the layout
of `transformers`, OLMo in the layout of AI2's `ai2-olmo`, or an export of `anytime export`.
The run starts at step 0 from these weights. docs/tutorials/continued.md has the whole way.

- Windows have 1,024 tokens, or as many as the model was trained for if these are fewer; set
  `--config.model.length` for others.
- The peak is a tenth of 3e-4, with which Llama 2 7B and Llama 3 8B were trained: a careful guess.
- The warmup is there because the moments start at zero: the first update of Adam moves every weight
  by the whole rate. Then the rate is constant, so that the run needs no planned end.
- The averages start from the weights and forget them at once, since their clock starts with the
  run: after t updates their weight is 2^(-f (1 + 1/2 + ... + 1/t)), which for f6.25 is 1.3% after
  the first update, for f25 3e-8. Begin with f12.5 and f25. "ema0.9999" keeps 37% of the first
  weights after 10,000 updates.

Cost:   depends on the model; `anytime compile --config=configs/continued.py:DIR --topology=h100:8`
        estimates the device memory.
Result: depends on the text. Where the loss of `last` rises for good, the peak is too high.
"""

import pathlib

from ml_collections import ConfigDict

from anytime_jax.errors import InputError
from anytime_jax.formats import model_reader
from configs import base


def get_config(model: str = "") -> ConfigDict:
    """Returns the configuration of a run from the model in a directory."""
    if not model:
        raise InputError("no model: give its directory, as --config=configs/continued.py:DIR")
    config = base.get_config()
    config.name = "continued"
    config.initial_weights = model
    config.model.update(model_reader.read_description(pathlib.Path(model)).shape)
    config.model.length = min(config.model.length, 1024)  # tokens of a window
    config.chinchilla_tokens = 1_000_000_000  # what "1x" means here
    config.stop = "1x+"
    config.data.path = "data/continued"
    config.schedule.update(kind="constant", peak=3e-5, warmup="1000 steps")
    config.eval.tokens = 1_000_000
    return config
