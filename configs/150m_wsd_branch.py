"""150M, warmup-stable-decay: a branch of the constant run for each horizon.

    python -m anytime_jax.main --config=configs/150m_wsd_branch.py \
        --config.branch.from_run=runs/150m_constant --config.decay.horizon=4x

Starts from the trunk's checkpoint at 90% of the horizon and decays from there; the trunk must have
reached it, and is only read. `--config.decay.shape` is "linear", "1-sqrt" or "cosine",
`--config.decay.floor` the last learning rate over the peak. With `--config.branch.at="STEP steps"`
it starts from another checkpoint.

Settings: as in the trunk, configs/150m_constant.py.
Cost:     0.3 hours of one H100 at 1x, 9.7 hours at 32x: 10% of a run of that length.
Result:   validation loss of the last iterate, published (the best branch of any trunk):

          1x      2x      4x      8x     16x     32x
      3.0252  2.9338  2.8673  2.8168  2.7772  2.7461
"""

from ml_collections import ConfigDict

from configs import paper_settings


def get_config() -> ConfigDict:
    """Returns the configuration."""
    config = paper_settings.model_150m("150m_wsd_branch")
    return paper_settings.wsd(config, peak=3e-3, b2=0.99, trunk="150m_constant", horizon="1x")
