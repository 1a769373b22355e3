"""Anytime training of a small model in a few minutes on a laptop, on built-in text.

    python -m anytime_jax.main --config=configs/quickstart.py

Prepares the built-in corpus (the Python sources of packages that this one needs) and its vocabulary
once, then trains a Llama of 81,920 block parameters with an inverse-square-root rate and five
averages to 4x its Chinchilla budget. Run again, it continues to 8x, 16x, ...: there is no horizon.
From 8x on it reads its text again; `--config.data.builtin_megabytes=65` is enough for 16x.
`transformers` loads an export of it. A schedule with an end needs a stop there:

    --config.name=cosine --config.schedule.kind=cosine --config.schedule.horizon=8x
    --config.stop=horizon

Cost:   two and a half minutes on two CPU cores, of which five seconds are for the text.
Result: validation loss 2.94 nats for `last` and 2.87 for `f25` at 4x, with the packages of
        constraints.txt; the start names those of other versions, with which the text differs.
"""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    """Returns the quickstart's configuration."""
    config = base.get_config()
    config.name = "quickstart"
    config.batch_size = 32
    config.microbatches = 1
    config.chinchilla_tokens = 20 * 81_920  # 20 tokens per block parameter: 400 steps
    config.stop = "4x+"

    config.model.kind = "llama"
    config.model.layers = 2
    config.model.heads = 4
    config.model.width = 64
    config.model.mlp_width = 128
    config.model.length = 128
    config.model.vocab_size = 1024
    config.model.embedding_rows = 1024
    config.model.dtype = "float32"
    config.model.layer_loop = "unroll"

    config.data.path = "runs/data/builtin-1024"
    config.data.builtin_megabytes = 33.0  # enough for 8x
    config.data.repeat = True  # beyond 8x

    config.schedule.kind = "inverse_sqrt"
    config.schedule.peak = 1e-2
    config.schedule.alpha = 800.0
    config.schedule.warmup = "160 steps"

    config.eval.every = "1x"
    config.eval.tokens = 32_768
    config.eval.batch_size = 64
    config.checkpoint.every = "1x"
    config.log.every = "10 steps"
    return config
