"""What is tuned on a second text: the leaderboard's constant rate and cosine at 4x, and a decay.

    anytime package-text --output=runs/data/packages
    anytime sweep --study=finetune_starts --run --jobs=2

The decay is linear, to a tenth of the constant rate from 3.6x on. The other runs are those of the
leaderboard, in its directories: a machine that has trained the leaderboard trains the decays alone.
`finetunes` tunes the exports.

Cost:   83M tokens: 20 minutes of two idle CPU cores.
"""

from ml_collections import ConfigDict

from anytime_lab.studies import leaderboard
from anytime_lab.study.plan import Study, chain, decays

ROOT = "runs/studies/finetune_starts"
SEEDS = leaderboard.SEEDS[:5]


def get_study() -> Study:
    """Returns the study."""
    trunks = chain(*(leaderboard.of_method("constant", x) for x in SEEDS))
    cosines = (leaderboard.of_method("cosine", x)[-1] for x in SEEDS)  # to 4x
    study = chain(trunks, decays("wsd", trunks, [4]), cosines)
    title = "a decoder of 98,304 block parameters on packages of Python, to be tuned on English."
    return Study("finetune_starts", ROOT, study, title)


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration of one of the study's runs."""
    return get_study().run(name).config
