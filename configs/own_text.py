r"""Your own text: the quickstart's small model and schedule, on a dataset that you have prepared.

    anytime prepare --input=TEXTS --train-vocabulary=4000 --output=data/mine
    python -m anytime_jax.main --config=configs/own_text.py:data/mine

Vocabulary and the size of an evaluation follow from the dataset; windows have 256 tokens, and an
update has as many tokens as the quickstart's. Longer windows with updates of the same size:
`--config.model.length=1024 --config.batch_size=4`. Data that end before the stop are repeated.

Cost:   some ten minutes on two CPU cores to 4x, 6.6M tokens; a larger vocabulary takes longer.
Result: depends on the text. For a larger model: `--config.model.width=256 --config.model.heads=4
        --config.model.mlp_width=704 --config.model.layers=6`, and a budget to match,
        `--config.chinchilla_tokens`.
"""

from ml_collections import ConfigDict

from anytime_jax.data.dataset_info import load_dataset
from anytime_jax.errors import InputError
from configs import quickstart

_LENGTH = 256  # tokens of a window


def get_config(dataset: str = "") -> ConfigDict:
    """Returns the configuration of a run on the dataset in a directory."""
    if not dataset:
        raise InputError("no dataset: give its directory, as --config=own_text:data/mine")
    info = load_dataset(
        dataset,
        "prepare one: anytime prepare "
        f"--input={dataset} --train-vocabulary=4000 --output=data/mine",
    )
    config = quickstart.get_config()
    update_tokens = config.batch_size * config.model.length
    config.name = info.path.name
    config.data.path = dataset
    config.data.builtin_megabytes = 0.0
    config.model.length = _LENGTH
    config.model.vocab_size = info.vocab_size
    config.model.embedding_rows = info.vocab_size
    config.batch_size = update_tokens // _LENGTH
    config.eval.every = "0.5x"  # to see early that repeated text no longer helps
    config.eval.batch_size = 2 * config.batch_size
    if info.splits["validation"].tokens < 2 * config.eval.tokens:
        config.eval.tokens = "all"
    return config
