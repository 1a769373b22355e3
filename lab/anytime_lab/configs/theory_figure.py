"""The paper's synthetic figures, computed exactly by `anytime theory`.

    anytime theory --config=theory_figure

Linear regression with lambda_i = i^-a and (w*_i)^2 = i^-(b-a): constant and 1/sqrt(t) step sizes
at 22 multiples of 1/tr(H), 150,000 updates, both noise levels, for the iterate, the running
average, the mean of the last half and five growing windows. The step size is selected by the risk
after 5,000 updates; the same trajectory is shown at every other length.

Cost:   half a minute on two CPU cores; no accelerator is used.
Result: in runs/theory_figure, two pictures for each noise level, `curves.csv` and `figure.json`.
"""

from ml_collections import ConfigDict

MULTIPLIERS = (
    1e-4, 2e-4, 5e-4, 7e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 3e-2, 5e-2, 7.5e-2,
    0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 2.0, 3.0, 5.0, 10.0,
)  # fmt: skip


def get_config() -> ConfigDict:
    """Returns the settings of the figure; `FigureConfig` in synthetic_figures.py explains them."""
    config = ConfigDict()
    config.out_dir = "runs/theory_figure"
    config.capacity = (1.1, 1.5, 1.9)  # a
    config.source_ratio = (1.0, 2.0)  # b / a
    config.dimension = 500_000  # 0 for infinity
    config.noise = (0.1, 0.01)  # sigma^2
    config.steps = 150_000
    config.select_at = 5_000
    config.multipliers = MULTIPLIERS  # in units of 1/tr(H)
    config.schedules = ("constant", "inverse_sqrt")
    config.windows = (6.25, 12.5, 25.0, 50.0, 100.0)
    config.last_fraction = 0.5
    return config
