"""Settings of the paper: two models, a large batch, four schedules.

Their data are C4 in the vocabulary of T5, read from where both are published, 358 GB of tokens:

    anytime prepare --config=150m_inv_sqrt

`--config.data.text` with fewer of the 1,024 files, such as c4-train.000*, takes less.

Costs in the files' docstrings are at the authors' own rates on one H100: 300,000 tokens/s for the
150M model and 160,000 for the 300M model. Results are the validation losses of the paper's Figure 2
in nats per token.
"""

from ml_collections import ConfigDict

from configs import base

_C4 = "hf://datasets/allenai/c4/en"
_VOCABULARIES = "https://storage.googleapis.com/t5-data/vocabs"


def model_150m(name: str) -> ConfigDict:
    """Returns the 150M model at batch 256: 1x is 12,500 steps, 3.28B tokens."""
    config = base.get_config()
    config.name = name
    config.data.text = f"{_C4}/c4-train.*.json.gz"
    config.data.validation_text = f"{_C4}/c4-validation.*.json.gz"
    config.data.vocabulary = f"{_VOCABULARIES}/cc_all.32000.100extra/sentencepiece.model"
    return config


def model_300m(name: str) -> ConfigDict:
    """Returns the 300M model at batch 512: 1x is 12,500 steps, 6.55B tokens."""
    config = model_150m(name)
    config.model.layers = 24
    config.batch_size = 512
    config.microbatches = 16
    config.chinchilla_tokens = 6_553_600_000
    config.stop = "16x"
    return config


def large_batch(name: str) -> ConfigDict:
    """Returns the 150M model at batch 4096: 1x is 782 steps, 3.28B tokens."""
    config = model_150m(name)
    config.batch_size = 4096
    config.microbatches = 128
    config.stop = "16x"
    config.checkpoint.every = "100 steps"
    config.log.every = "5 steps"
    return config


def constant(config: ConfigDict, peak: float, b2: float) -> ConfigDict:
    """Sets a constant learning rate."""
    return _schedule(config, b2, kind="constant", peak=peak)


def inverse_sqrt(config: ConfigDict, peak: float, b2: float, alpha: float) -> ConfigDict:
    """Sets an inverse-square-root learning rate; `alpha` is in updates."""
    return _schedule(config, b2, kind="inverse_sqrt", peak=peak, alpha=alpha)


def cosine(config: ConfigDict, peak: float, b2: float, horizon: str) -> ConfigDict:
    """Sets a cosine decay to a tenth of the peak, and the stop at its horizon."""
    config.stop = "horizon"
    return _schedule(config, b2, kind="cosine", peak=peak, horizon=horizon)


def wsd(config: ConfigDict, peak: float, b2: float, trunk: str, horizon: str) -> ConfigDict:
    """Sets a WSD branch of a constant run: linear to a tenth of the peak over the last 10%.

    Each `decay.horizon` is a run with its own directory.
    """
    config.stop = "horizon"
    config.branch.from_run = f"runs/{trunk}"
    config.decay.update(horizon=horizon, floor=0.1)
    return constant(config, peak, b2)


def _schedule(config: ConfigDict, b2: float, **schedule: float | str) -> ConfigDict:
    config.optimizer.b2 = b2
    warmup = "500 steps" if config.get("batch_size") == 4096 else "5000 steps"
    config.schedule = ConfigDict({**schedule, "warmup": warmup})
    return config
