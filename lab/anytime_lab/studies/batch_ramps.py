"""Ways to grow the batch from 1x to 4x, against a rate that falls, and against cosines.

    anytime package-text --output=runs/data/packages
    anytime sweep --study=batch_ramps --run --jobs=2
    anytime differences --study=batch_ramps --base=constant-peak=0.0111 --page=batch_ramps.md

The trunks are the leaderboard's runs of AdamW at a constant rate, and the cosines are the
leaderboard's, in its directories: a machine that has trained the leaderboard trains the branches
alone. Branches keep the trunk's rate, moments and decay:

- `ramp`: the batch grows as the tokens, rounded: 64 from 1.5x, 96 from 2.5x, 128 from 3.5x.
- `larger`: 64 from 1x on. `late`: 128 from 2x on. Both have about as many updates as `ramp`.
- `falling`: the batch is the trunk's, and from 1x on the rate falls as one over the root of the
  tokens.
- `seesaw`: from the trunk's rate on, the batch doubles and the rate falls by the root of 2 where
  the cosine to 4x would have halved its own. Of all branches, this one alone knows the end.

`constant-64` is no branch: a batch of 64 from the start, at the best peak of `batch_peaks`.

Cost:   268M tokens: an hour of two idle CPU cores.
Result: lab/evidence/batches.md
"""

from ml_collections import ConfigDict

from anytime_lab import seesaw
from anytime_lab.studies import batch_peaks, leaderboard
from anytime_lab.studies.leaderboard_peaks import peak_changes
from anytime_lab.study.plan import Change, Study, StudyRun, branches, chain, grid, runs, seeds

ROOT = "runs/studies/batch_ramps"
STOP = "4x"
PEAK_64 = 0.0176  # for all budgets. Source: lab/evidence/batches.md.
X = 480  # updates of the first batch size in 1x
RAMP: Change = {"batch_growth": {"1.5x": 64, "2.5x": 96, "3.5x": 128}}
FALLING: Change = {
    "schedule.kind": "inverse_sqrt",
    "schedule.alpha": float(X),
    "schedule.warmup": X,  # the rate falls from 1x on, as one over the root of the tokens
}


def get_study() -> Study:
    """Returns the study; all runs of one seed are trained, then those of the next."""
    title = "batches that grow, of a decoder of 98,304 block parameters on packages of Python."
    return Study("batch_ramps", ROOT, chain(*map(of_seed, leaderboard.SEEDS)), title)


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration of one of the study's runs."""
    return get_study().run(name).config


def of_seed(seed: int) -> list[StudyRun]:
    """Returns the leaderboard's trunk and cosines of a seed, and the branches."""
    trunks = leaderboard.of_method("constant", seed)
    cosines = leaderboard.of_method("cosine", seed)
    cosine = cosines[-1].build()  # to 4x
    found = [trunks, cosines]
    for name, at, change in (
        ("ramp", "1x", RAMP),
        ("larger", "1x", {"batch_growth": {"1x": 64}}),
        ("falling", "1x", FALLING),
        ("late", "2x", {"batch_growth": {"2x": 128}}),
        ("seesaw", "2x", seesaw.follow(cosine.learning_rate, cosine.clock, STOP)),
    ):
        found.append(branches(name, trunks, at, [change], STOP))
    config = batch_peaks.config_of_64("constant", "report")
    found.append(runs("constant-64", config, grid(peak_changes(PEAK_64), seeds(seed)), ROOT))
    return chain(*found)
