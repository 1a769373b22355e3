"""300M, warmup-stable-decay: a branch of the constant run for each horizon.

    python -m anytime_jax.main --config=configs/300m_wsd_branch.py \
        --config.branch.from_run=runs/300m_constant --config.decay.horizon=4x

Starts from the trunk's checkpoint at 90% of the horizon and decays from there; the trunk must have
reached it, and is only read. `--config.decay.shape` is "linear", "1-sqrt" or "cosine",
`--config.decay.floor` the last learning rate over the peak. With `--config.branch.at="STEP steps"`
it starts from another checkpoint.

Settings: as in the trunk, configs/300m_constant.py.
Cost:     1.1 hours of one H100 at 1x, 18 hours at 16x: 10% of a run of that length.
Result:   validation loss of the last iterate, published (the best branch of any trunk):

          1x      2x      4x      8x     16x
      2.8621  2.7767  2.7143  2.6673  2.6296
"""

from ml_collections import ConfigDict

from configs import paper_settings


def get_config() -> ConfigDict:
    """Returns the configuration."""
    config = paper_settings.model_300m("300m_wsd_branch")
    return paper_settings.wsd(config, peak=3e-3, b2=0.95, trunk="300m_constant", horizon="1x")
