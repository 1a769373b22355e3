"""The paper's experiment on a laptop: 98,304 block parameters, 1x to 8x, on built-in text.

    anytime sweep --study=laptop --run --jobs=2
    anytime report --study=laptop

Cosines tuned at each horizon, constant rates and inverse square roots with averages, and WSD
branches of the constant runs; peaks a factor of sqrt(3) apart; decays to 0. One seed selects the
settings, and four fresh seeds, of weights and data, repeat the selected ones.

Cost:   596M tokens, about an hour and a half on two idle CPU cores.
Result: lab/evidence/laptop/
"""

from ml_collections import ConfigDict

from anytime_lab.study.plan import (
    Change,
    Study,
    StudyRun,
    chain,
    decays,
    grid,
    runs,
    seeds,
    values,
)
from configs import base

ROOT = "runs/studies/laptop"
HORIZONS = (1, 2, 4, 8)  # multiples of 480 updates
# A factor of sqrt(3) apart, around the best; wider where the best was at the edge.
CONSTANT_PEAKS = (5.8e-3, 1e-2, 1.7e-2)
COSINE_PEAKS = {
    "1x": (1e-2, 1.7e-2, 3e-2, 5.2e-2),
    "2x": (1e-2, 1.7e-2, 3e-2),
    "4x": (1e-2, 1.7e-2, 3e-2),
    "8x": (5.8e-3, 1e-2, 1.7e-2, 3e-2),
}
ALPHA = 7680.0  # 16x
FRESH_SEEDS = seeds(1, 2, 3, 4)


def get_study() -> Study:
    """Returns the study."""
    constant = decoder(kind="constant")
    inverse_sqrt = decoder(kind="inverse_sqrt")
    cosine = decoder(kind="cosine")
    cosine.stop = "horizon"
    trunks = runs("constant", constant, values("schedule.peak", *CONSTANT_PEAKS), ROOT)
    fresh = runs("constant", constant, grid(CHOSEN["constant"], FRESH_SEEDS), ROOT)
    study = chain(
        runs("cosine", cosine, _cosine_space(), ROOT),
        trunks,
        runs("cosine", cosine, grid(FRESH_SEEDS, CHOSEN["cosine"]), ROOT),
        fresh,
        decays("wsd", chain(trunks, fresh), HORIZONS),
        runs("inverse_sqrt", inverse_sqrt, CHOSEN["inverse_sqrt"], ROOT),
        runs("inverse_sqrt", inverse_sqrt, grid(CHOSEN["inverse_sqrt"], FRESH_SEEDS), ROOT),
        _to_zero(cosine, trunks),
    )
    title = "a decoder of 98,304 block parameters on Python source text, 1x to 8x."
    return Study("laptop", ROOT, study, title)


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration of one of the study's runs."""
    return get_study().run(name).config


# The best settings with the first seed.
CHOSEN = {
    "cosine": grid(values("schedule.peak", 1.7e-2), values("schedule.horizon", *COSINE_PEAKS)),
    # Both peaks are equally good.
    "constant": values("schedule.peak", 1e-2, 1.7e-2),
    "inverse_sqrt": grid(values("schedule.peak", 1e-2, 1.7e-2), values("schedule.alpha", ALPHA)),
}


def _cosine_space() -> list[Change]:
    """Returns the peaks of every horizon."""
    return chain(
        *(
            grid(values("schedule.peak", *peaks), values("schedule.horizon", horizon))
            for horizon, peaks in COSINE_PEAKS.items()
        )
    )


def _to_zero(cosine: ConfigDict, trunks: list[StudyRun]) -> list[StudyRun]:
    """The best cosine and WSD runs with a decay to 0 instead of a tenth of the peak."""
    floor = values("schedule.floor", 0.0)
    chosen = [run for run in trunks if run.settings["schedule"]["peak"] == 1e-2]
    return chain(
        runs("cosine", cosine, grid(CHOSEN["cosine"][:2], floor), ROOT),
        decays("wsd_to_0", chosen, HORIZONS, floor=0.0),
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
    config.schedule = ConfigDict({"warmup": "192 steps", **schedule})
    config.eval.update(every=f"{HORIZONS[-1]}x", tokens=262_144, batch_size=64)
    config.checkpoint.update(every="1x", keep=1)
    config.log.update(every="60 steps", trackers=())
    return config
