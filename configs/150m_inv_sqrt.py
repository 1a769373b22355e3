"""150M, inverse square root, read out through averages.

    python -m anytime_jax.main --config=configs/150m_inv_sqrt.py

Settings: the paper's, chosen for the single run of its Figure 2 (Table 2).
Cost:     97 hours of one H100 to 32x (104.9B tokens); 1x is 3.0 hours.
Result:   validation loss of f25, published:

          1x      2x      4x      8x     16x     32x
      3.0225  2.9312  2.8653  2.8157  2.7780  2.7489
"""

from ml_collections import ConfigDict

from configs import paper_settings


def get_config() -> ConfigDict:
    """Returns the configuration."""
    config = paper_settings.model_150m("150m_inv_sqrt")
    return paper_settings.inverse_sqrt(config, peak=3e-3, b2=0.98, alpha=51_200.0)
