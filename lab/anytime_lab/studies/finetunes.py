"""What should one hand to those who tune? Four models at 4x, tuned for a short time on English.

    anytime sweep --study=finetunes --run --jobs=2
    anytime fine-tunes --study=finetunes --base=wsd --sets report-english report-python \
        --page=finetunes.md

Each model of `finetune_starts` (a constant rate by its live weights and through f25, its decay, and
a cosine) is tuned on the documentation of 28 packages by cosines of two lengths, 0.25x and 0.0625x
(492,000 and 123,000 tokens), each with five peaks. Peaks are selected on 4 packages of English;
losses are reported on 8 others of English and on 32 of Python. lab/evidence/finetunes.md has the
commands that export the models.

Cost:   61M tokens in 200 runs: 40 minutes of two idle CPU cores.
Result: lab/evidence/finetunes.md
"""

from ml_collections import ConfigDict

from anytime_lab.package_text import download
from anytime_lab.studies import finetune_starts
from anytime_lab.studies.finetune_starts import SEEDS
from anytime_lab.studies.leaderboard_peaks import DATA, get_method
from anytime_lab.study.plan import Study, StudyRun, chain, grid, runs, seeds, values

ROOT = "runs/studies/finetunes"
STARTS = ("constant", "constant_f25", "wsd", "cosine")
LENGTHS = {"0.25x": "12 steps", "0.0625x": "3 steps"}  # with their warmups
PEAKS = (0.002, 0.004, 0.008, 0.016, 0.032)


def get_study() -> Study:
    """Returns the study; all runs of one seed are trained, then those of the next."""
    title = "a decoder of 98,304 block parameters, tuned from Python on English."
    found = (of_start(start, seed) for seed in SEEDS for start in STARTS)
    return Study("finetunes", ROOT, chain(*found), title)


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration of one of the study's runs."""
    return get_study().run(name).config


def of_start(start: str, seed: int) -> list[StudyRun]:
    """Returns the runs from one export of `finetune_starts`."""
    config = on_both_texts(get_method("cosine").config("report"))
    config.initial_weights = f"{finetune_starts.ROOT}/exports/{start}-seed={seed}"
    found = []
    for length, warmup in LENGTHS.items():
        config.schedule.warmup = warmup
        horizon, peaks = values("schedule.horizon", length), values("schedule.peak", *PEAKS)
        found += runs(start, config, grid(horizon, peaks, seeds(seed)), ROOT)
    return found


def on_both_texts(config: ConfigDict) -> ConfigDict:
    """Returns a configuration on English that is evaluated on packages of both languages.

    The mean is that of the English packages that select; those that are reported have no weight.
    """
    config.data.path = f"{DATA}/english"
    sets = {
        f"{x.role}-{x.language}-{x.name}": f"{DATA}/{x.role}/{x.language}/{x.name}"
        for x in download.read_list()
        if x.role == "report" or (x.role == "selection" and x.language == "english")
    }
    config.eval.sets = ConfigDict(sets)
    config.eval.weights = ConfigDict({x: 1.0 for x in sets if x.startswith("selection")})
    config.averages = ()
    config.eval.positions = ()
    return config
