"""150M at batch 4096, inverse square root, read out through averages.

    python -m anytime_jax.main --config=configs/150m_b4096_inv_sqrt.py

Settings: ours, inside the paper's grid; it publishes none for batch 4096.
Cost:     49 hours of one H100 to 16x (52.5B tokens); 1x is 3.0 hours.
Result:   unpublished as numbers (the paper's large-batch figure).
"""

from ml_collections import ConfigDict

from configs import paper_settings


def get_config() -> ConfigDict:
    """Returns the configuration."""
    config = paper_settings.large_batch("150m_b4096_inv_sqrt")
    return paper_settings.inverse_sqrt(config, peak=3e-3, b2=0.95, alpha=3_200.0)
