"""The paper's experiment on a laptop: 98,304 block parameters, 1x to 8x, on built-in text.

    anytime sweep --study=laptop --run --jobs=2
    anytime report --study=laptop

The cosine tuned at each horizon, the constant and the inverse square root with averages, and WSD
branches of the constant runs; peaks of 3e-3, 1e-2 and 3e-2, and 1e-1 where the best was at the
edge; decays to 0; and a second seed, of weights and data, for the selected settings, to estimate
the noise of the differences.

Cost:   about three hours on two shared CPU cores.
Result: lab/evidence/laptop/
"""

from ml_collections import ConfigDict

from anytime_lab.study.plan import (
    Study,
    StudyRun,
    branches,
    chain,
    grid,
    paired,
    runs,
    seeds,
    values,
)
from configs import base

ROOT = "runs/studies/laptop"
HORIZONS = (1, 2, 4, 8)  # multiples of 480 updates
PEAKS = (3e-3, 1e-2, 3e-2)
ALPHAS = (480.0, 1920.0)  # about the paper's shortest and longest: 1x and 4x
SECOND_SEED = seeds(1)


def get_study() -> Study:
    """Returns the study."""
    constant = decoder(kind="constant")
    inverse_sqrt = decoder(kind="inverse_sqrt")
    cosine = decoder(kind="cosine")
    cosine.stop = "horizon"
    horizons = values("schedule.horizon", *(f"{m}x" for m in HORIZONS))
    peaks = values("schedule.peak", *PEAKS)
    trunks = runs("constant", constant, peaks, ROOT)
    wider = runs("constant", constant, grid(WIDER, values("stop", "2x")), ROOT)
    second = runs("constant", constant, grid(CHOSEN["constant"], SECOND_SEED), ROOT)
    study = chain(
        runs("cosine", cosine, grid(peaks, horizons), ROOT),
        trunks,
        branches("wsd", trunks, HORIZONS),
        runs("inverse_sqrt", inverse_sqrt, _inverse_sqrt_space(), ROOT),
        runs("cosine", cosine, grid(WIDER, horizons[:2]), ROOT),
        wider,
        branches("wsd", wider, HORIZONS[:2]),
        runs("cosine", cosine, grid(CHOSEN["cosine"], SECOND_SEED), ROOT),
        second,
        branches("wsd", second, HORIZONS),
        runs("inverse_sqrt", inverse_sqrt, grid(CHOSEN["inverse_sqrt"], SECOND_SEED), ROOT),
        _to_zero(cosine, trunks),
    )
    title = "a decoder of 98,304 block parameters on Python source text, 1x to 8x."
    return Study("laptop", ROOT, study, title)


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration of one of the study's runs."""
    return get_study().run(name).config


# The best settings with the first seed; two of the inverse square root are equally good.
CHOSEN = {
    "cosine": paired(
        values("schedule.peak", 3e-2, 3e-2, 1e-2, 1e-2),
        values("schedule.horizon", "1x", "2x", "4x", "8x"),
    ),
    "constant": values("schedule.peak", 1e-2),
    "inverse_sqrt": grid(values("schedule.peak", 1e-2), values("schedule.alpha", 1920.0, 7680.0)),
}
# The best value was at the edge of the grid, so these go beyond it.
WIDER = values("schedule.peak", 1e-1)


def _inverse_sqrt_space() -> list[dict[str, float]]:
    """Every peak with the longest alpha, every alpha with the best peaks, and wider grids."""
    short, long = (values("schedule.alpha", alpha) for alpha in ALPHAS)
    return chain(
        grid(values("schedule.peak", *PEAKS), long),
        grid(values("schedule.peak", 1e-2, 3e-2), short),
        grid(WIDER, chain(short, long), values("stop", "2x")),
        grid(values("schedule.peak", 1e-2), values("schedule.alpha", 4 * ALPHAS[-1])),
        grid(values("schedule.peak", 3e-2), values("schedule.alpha", 120.0), values("stop", "2x")),
    )


def _to_zero(cosine: ConfigDict, trunks: list[StudyRun]) -> list[StudyRun]:
    """The best cosine and WSD runs with a decay to 0 instead of a tenth of the peak."""
    floor = values("schedule.floor", 0.0)
    chosen = [run for run in trunks if run.settings["schedule"]["peak"] == 1e-2]
    return chain(
        runs("cosine", cosine, grid(CHOSEN["cosine"][:2], floor), ROOT),
        branches("wsd_to_0", chosen, HORIZONS, floor=0.0),
    )


def decoder(**schedule: float | str) -> ConfigDict:
    """Returns two layers of width 64, windows of 128 tokens, 32 an update: 480 updates at 1x."""
    config = base.get_config()
    config.batch_size = 32
    config.microbatches = 1
    config.chinchilla_tokens = 20 * 98_304
    config.stop = f"{HORIZONS[-1]}x"
    config.model.update(
        layers=2,
        heads=4,
        width=64,
        mlp_width=256,
        length=128,
        vocab_size=512,
        embedding_rows=512,
        dtype="float32",
        layer_loop="unroll",
    )
    config.data.path = "runs/data/builtin-512"
    config.data.builtin_megabytes = 65.0
    config.schedule = ConfigDict({**schedule, "warmup": "192 steps"})
    config.eval.update(every=f"{HORIZONS[-1]}x", tokens=131_072, batch_size=64)
    config.checkpoint.update(every="1x", keep=1)
    config.log.update(every="60 steps", tensorboard=False)
    return config
