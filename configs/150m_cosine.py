"""150M, cosine to one horizon: the baseline, a run of its own for each horizon.

    python -m anytime_jax.main --config=configs/150m_cosine.py

Settings: ours, inside the paper's grid; it publishes none for this schedule.
Cost:     3.0 hours of one H100 at the default 1x; another horizon with
          `--config.schedule.horizon=4x` and its own `run_dir`.
Result:   validation loss of the last iterate, the best setting at each horizon, published:

          1x      2x      4x      8x     16x     32x
      3.0185  2.9357  2.8718  2.8224  2.7790  2.7448
"""

from ml_collections import ConfigDict

from configs import paper_settings


def get_config() -> ConfigDict:
    """Returns the configuration."""
    return paper_settings.cosine(
        paper_settings.model_150m("150m_cosine"), peak=3e-3, b2=0.98, horizon="1x"
    )
