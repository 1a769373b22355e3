"""150M at batch 4096, warmup-stable-decay: a branch of the constant run for each horizon.

    python -m anytime_jax.main --config=configs/150m_b4096_wsd_branch.py \
        --config.branch.from_run=runs/150m_b4096_constant --config.decay.horizon=4x

Starts from the trunk's checkpoint at 90% of the horizon and decays from there; the trunk must have
reached it, and is only read. `--config.decay.shape` is "linear", "1-sqrt" or "cosine",
`--config.decay.floor` the last learning rate over the peak. With `--config.branch.at="STEP steps"`
it starts from another checkpoint.

Settings: as in the trunk, configs/150m_b4096_constant.py.
Cost:     0.3 hours of one H100 at 1x, 4.9 hours at 16x: 10% of a run of that length.
Result:   unpublished as numbers (the paper's large-batch figure).
"""

from ml_collections import ConfigDict

from configs import paper_settings


def get_config() -> ConfigDict:
    """Returns the configuration."""
    config = paper_settings.large_batch("150m_b4096_wsd_branch")
    return paper_settings.wsd(config, peak=3e-3, b2=0.95, trunk="150m_b4096_constant", horizon="1x")
