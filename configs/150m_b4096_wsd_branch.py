"""150M at batch 4096, warmup-stable-decay: a branch of the constant run for each horizon.

    python -m anytime_jax.main --config=configs/150m_b4096_wsd_branch.py \
        --config.branch.from_run=runs/150m_b4096_constant --config.branch.multiple=4

Starts from the trunk's checkpoint at 90% of the horizon and decays from there; the trunk must have
reached it, and is only read. `--config.schedule.shape` is "linear", "1-sqrt" or "cosine",
`--config.schedule.floor` the last learning rate over the peak. With `--config.branch.step=STEP`
instead of the multiple it starts from another checkpoint, whose step is 90% of the horizon unless
`--config.schedule.horizon` is set; then give a `run_dir` too.

Settings: those of the trunk, configs/150m_b4096_constant.py.
Cost:     0.3 hours of one H100 at 1x, 4.9 hours at 16x: 10% of a run of that length.
Result:   unpublished as numbers (the paper's large-batch figure).
"""

from ml_collections import ConfigDict

from configs import paper_settings


def get_config() -> ConfigDict:
    """Returns the configuration."""
    config = paper_settings.large_batch("150m_b4096_wsd_branch")
    return paper_settings.wsd(config, peak=3e-3, b2=0.95, trunk="150m_b4096_constant")
