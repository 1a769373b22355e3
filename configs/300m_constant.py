"""300M, constant learning rate, read out through averages.

    python -m anytime_jax.main --config=configs/300m_constant.py

Settings: the paper's, chosen for the single run of its Figure 2 (Table 2).
Cost:     182 hours of one H100 to 16x (104.9B tokens); 1x is 11.4 hours.
Result:   validation loss of f25, published:

          1x      2x      4x      8x     16x
      2.8651  2.7787  2.7162  2.6685  2.6316
"""

from ml_collections import ConfigDict

from configs import paper_settings


def get_config() -> ConfigDict:
    """Returns the configuration."""
    return paper_settings.constant(paper_settings.model_300m("300m_constant"), peak=3e-3, b2=0.95)
