"""An OLMo-shaped decoder of 0.94B parameters, inverse square root, read out through averages.

    python -m anytime_jax.main --config=configs/1b_inv_sqrt.py

Not in the paper, and never trained: no result is known. The peak and alpha are guesses from its
300M run, to be tuned. 1x is 20 tokens for each of the 805,306,368 parameters in blocks.
Device memory: anytime compile --config=configs/1b_inv_sqrt.py --topology=h100:8
"""

from ml_collections import ConfigDict

from configs import paper_settings


def get_config() -> ConfigDict:
    """Returns the configuration."""
    config = paper_settings.model_300m("1b_inv_sqrt")
    config.model.update(layers=16, heads=16, width=2048, mlp_width=8192)
    config.model.layer_loop, config.microbatches = "unroll", 8
    config.chinchilla_tokens = 20 * 805_306_368  # 30,720 steps
    config.stop = "4x"
    return paper_settings.inverse_sqrt(config, peak=1e-3, b2=0.99, alpha=51_200.0)
