"""150M at batch 4096, cosine to one horizon.

    python -m anytime_jax.main --config=configs/150m_b4096_cosine.py

Settings: ours, inside the paper's grid; it publishes none for batch 4096.
Cost:     3.0 hours of one H100 at the default 1x; another horizon with
          `--config.schedule.horizon=4x` and its own `run_dir`.
Result:   unpublished as numbers (the paper's large-batch figure).
"""

from ml_collections import ConfigDict

from configs import paper_settings


def get_config() -> ConfigDict:
    """Returns the configuration."""
    return paper_settings.cosine(
        paper_settings.large_batch("150m_b4096_cosine"), peak=3e-3, b2=0.95, horizon="1x"
    )
