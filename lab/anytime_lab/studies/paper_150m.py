"""The paper's 150M experiment, 1x to 32x: cosines, horizon-free runs, WSD branches.

    anytime sweep --study=paper_150m --list
    anytime sweep --study=paper_150m --run --jobs=8
    anytime report --study=paper_150m

The sweeps are the authors'. The paper does not say from which trunks its WSD branches start; here
every constant run has a branch at every horizon.

Cost:   147 runs, 4,056 hours of one H100 at 344,000 tokens/s (docs/performance.md),
        7.9 TB of checkpoints
Result: the paper's Figures 1 and 2 (top), its transfer and alpha figures, and their tables; its
        published losses are drawn too.
"""

from ml_collections import ConfigDict

from anytime_lab.studies import paper
from anytime_lab.study.plan import Study, chain, grid, values
from configs import paper_settings

ROOT = "runs/studies/paper_150m"
HORIZONS = (1, 2, 4, 8, 16, 32)  # multiples of 12,500 updates
PEAKS = (3e-4, 1e-3, 3e-3)
B2S = (0.95, 0.98, 0.99)
ALPHAS = (12_800.0, 25_600.0, 51_200.0)


def get_study() -> Study:
    """Returns the study."""
    peaks, b2s = values("schedule.peak", *PEAKS), values("optimizer.b2", *B2S)
    horizons = values("schedule.horizon", *(f"{m}x" for m in HORIZONS))
    # The highest peak was not run at 16x and 32x.
    highest = grid(values("schedule.peak", 1e-2), b2s, horizons[:4])
    study = paper.experiment(
        ROOT,
        paper_settings.model_150m,
        HORIZONS,
        cosines=chain(grid(peaks, b2s, horizons), highest),
        constants=grid(peaks, b2s),
        inverse_sqrts=grid(peaks, b2s[1:], values("schedule.alpha", *ALPHAS)),
    )
    title = "the paper's 150M runs on C4, 1x to 32x."
    return Study("paper_150m", ROOT, study, title, published="150M")


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration of one of the study's runs."""
    return get_study().run(name).config
