r"""A model from other hands, gone on with as an anytime run.

    python -m anytime_jax prepare --source=folder --input=TEXTS \
        --vocabulary=DIR/tokenizer.json --length=1024 --output=data/continued
    python -m anytime_jax.main --config=configs/continued.py:DIR --config.model.length=1024

DIR holds a model of the OLMo-2 shape as `transformers` has it, of the paper's as AI2's `ai2-olmo`
does, or what `python -m anytime_jax export` wrote: its weights, its shape and its vocabulary. The
run begins at step 0 from these weights, with a constant rate after a warmup, and every average
starts from them.

Cost:   that of the model; `python -m anytime_jax layouts --config=configs/continued.py:DIR` says
        what it takes of each device.
Result: the text decides. A peak of a tenth of the model's own last rate is a careful start.
"""

import pathlib

from ml_collections import ConfigDict

from anytime_jax.errors import InputError
from anytime_jax.formats import model_reader
from configs import base


def get_config(model: str = "") -> ConfigDict:
    """Returns the configuration.

    Args:
      model: directory of the model.
    """
    if not model:
        raise InputError("which model? Give --config=configs/continued.py:DIR, with its directory")
    config = base.get_config()
    config.name = "continued"
    config.run_dir = "runs/continued"
    config.initial_weights = model
    config.model.update(model_reader.describe(pathlib.Path(model)).shape)
    config.chinchilla_tokens = 1_000_000_000  # what "1x" means here
    config.stop = "1x+"
    config.data.path = "data/continued"
    config.schedule = ConfigDict(
        {"kind": "constant", "peak": 3e-5, "warmup": "1000 steps", "warmup_init": 0.1}
    )
    config.eval.tokens = 1_000_000
    return config
