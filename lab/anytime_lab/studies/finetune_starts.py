"""What is tuned on a second text: a constant rate, its decay and a cosine at 4x.

    anytime package-text --output=runs/data/packages
    anytime sweep --study=finetune_starts --run --jobs=2

The leaderboard's decoder, AdamW and peaks on Python, with three seeds: a constant rate, a linear
decay of it to a tenth from 3.6x on, and a cosine. `finetunes` tunes their exports.

Cost:   50M tokens: 20 minutes of two idle CPU cores.
"""

from ml_collections import ConfigDict

from anytime_lab.package_text import download
from anytime_lab.studies.leaderboard import PEAKS
from anytime_lab.studies.leaderboard_peaks import DATA, METHODS
from anytime_lab.study.plan import Study, chain, decays, runs, seeds

ROOT = "runs/studies/finetune_starts"
SEEDS = (41, 42, 43)
BUDGET = 4


def get_study() -> Study:
    """Returns the study."""
    fresh = seeds(*SEEDS)
    trunks = runs("constant", start("constant"), fresh, ROOT)
    study = chain(
        trunks, decays("wsd", trunks, [BUDGET]), runs("cosine", start("cosine"), fresh, ROOT)
    )
    title = "a decoder of 98,304 block parameters on packages of Python, to be tuned on English."
    return Study("finetune_starts", ROOT, study, title)


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration of one of the study's runs."""
    return get_study().run(name).config


def start(name: str) -> ConfigDict:
    """Returns the configuration of one of the leaderboard's methods to 4x."""
    (method,) = (x for x in METHODS if x.name == name)
    config = method.config("report")
    peaks = PEAKS[name]
    if isinstance(peaks, float):
        config.schedule.peak = peaks
    else:
        config.schedule.update(peak=peaks[BUDGET], horizon=f"{BUDGET}x")
    return on_both_texts(config)


def on_both_texts(config: ConfigDict) -> ConfigDict:
    """Returns a configuration that is evaluated on packages of Python and of English.

    The mean is that of the English packages that select; those that are reported have no weight.
    """
    sets = {
        f"{x.role}-{x.language}-{x.name}": f"{DATA}/{x.role}/{x.language}/{x.name}"
        for x in download.read_list()
        if x.role == "report" or (x.role == "selection" and x.language == "english")
    }
    config.eval.sets = ConfigDict(sets)
    config.eval.weights = ConfigDict({x: 1.0 for x in sets if x.startswith("selection")})
    config.eval.tokens = 8_192  # of each package
    config.averages = ("f25",)
    config.eval.positions = ()
    return config
