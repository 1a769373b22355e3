"""The paper's experiment at batch 4096 with the 150M model, 1x to 16x.

    anytime sweep --study=paper_large_batch --list
    anytime sweep --study=paper_large_batch --run --jobs=8
    anytime report --study=paper_large_batch

The sweeps are the authors'. The paper does not say from which trunks its WSD branches start; here
every constant run has a branch at every horizon.

Cost:   90 runs, 1,813 hours of one H100 at 344,000 tokens/s (docs/performance.md),
        4.9 TB of checkpoints
Result: the paper's large-batch figure and its twin at the best settings of each budget. The paper
        gives no numbers for it.
"""

from ml_collections import ConfigDict

from anytime_lab.studies import paper
from anytime_lab.study.plan import Study, grid, values
from configs import paper_settings

ROOT = "runs/studies/paper_large_batch"
HORIZONS = (1, 2, 4, 8, 16)  # multiples of 782 updates
PEAKS = (1e-3, 3e-3, 1e-2)
B2S = (0.95, 0.99)
ALPHAS = (800.0, 1600.0, 3200.0, 6400.0)


def get_study() -> Study:
    """Returns the study."""
    space = grid(values("schedule.peak", *PEAKS), values("optimizer.b2", *B2S))
    horizons = values("schedule.horizon", *(f"{m}x" for m in HORIZONS))
    study = paper.experiment(
        ROOT,
        paper_settings.large_batch,
        HORIZONS,
        cosines=grid(space, horizons),
        constants=space,
        inverse_sqrts=grid(space, values("schedule.alpha", *ALPHAS)),
    )
    title = "the paper's runs at batch 4096 on C4, 1x to 16x."
    return Study("paper_large_batch", ROOT, study, title)


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration of one of the study's runs."""
    return get_study().run(name).config
