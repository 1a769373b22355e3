"""The paper's 300M experiment, 1x to 16x: cosines, horizon-free runs, WSD branches.

    anytime sweep --study=paper_300m --list
    anytime sweep --study=paper_300m --run --jobs=8
    anytime report --study=paper_300m

The sweeps are the authors'. The paper does not say from which trunks its WSD branches start; here
every constant run has a branch at every horizon.

Cost:   84 runs, 5,761 hours of one H100 at 186,000 tokens/s (docs/performance.md),
        7.4 TB of checkpoints
Result: the paper's Figure 2 (bottom), the 300M twin of Figure 1, its transfer and alpha figures,
        and their tables; its published losses are drawn too.
"""

from ml_collections import ConfigDict

from anytime_lab.studies import paper
from anytime_lab.study.plan import Study, grid, values
from configs import paper_settings

ROOT = "runs/studies/paper_300m"
HORIZONS = (1, 2, 4, 8, 16)  # multiples of 12,500 updates
PEAKS = (3e-4, 1e-3, 3e-3)
B2S = (0.95, 0.99)
ALPHAS = (12_800.0, 25_600.0, 51_200.0)


def get_study() -> Study:
    """Returns the study."""
    space = grid(values("schedule.peak", *PEAKS), values("optimizer.b2", *B2S))
    horizons = values("schedule.horizon", *(f"{m}x" for m in HORIZONS))
    study = paper.experiment(
        ROOT,
        paper_settings.model_300m,
        HORIZONS,
        cosines=grid(space, horizons),
        constants=space,
        inverse_sqrts=grid(space, values("schedule.alpha", *ALPHAS)),
    )
    title = "the paper's 300M runs on C4, 1x to 16x."
    return Study("paper_300m", ROOT, study, title, published="300M")


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration of one of the study's runs."""
    return get_study().run(name).config
