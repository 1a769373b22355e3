"""150M, constant learning rate, read out through averages.

    python -m anytime_jax.main --config=configs/150m_constant.py

Settings: the paper's, chosen for the single run of its Figure 2 (Table 2).
Cost:     97 hours of one H100 to 32x (104.9B tokens); 1x is 3.0 hours.
Result:   validation loss of f25, published:

          1x      2x      4x      8x     16x     32x
      3.0259  2.9342  2.8680  2.8178  2.7785  2.7476
"""

from ml_collections import ConfigDict

from configs import paper_settings


def get_config() -> ConfigDict:
    """Returns the configuration."""
    return paper_settings.constant(paper_settings.model_150m("150m_constant"), peak=3e-3, b2=0.99)
