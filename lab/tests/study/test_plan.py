"""Studies as code: combinators, names of runs, branches, and the studies of this project."""

import copy
import itertools

import pytest

from anytime_jax.commands import config_file
from anytime_jax.config import run_config
from anytime_jax.config.kinds import NOBODY
from anytime_jax.errors import InputError
from anytime_lab.studies import (
    laptop,
    paper_150m,
    paper_300m,
    paper_large_batch,
    widths,
)
from anytime_lab.study.plan import Study, StudyRun, branches, decays, grid, paired, runs, values
from anytime_lab.study.tasks import make_tasks
from configs import quickstart

PEAKS, B2S = values("schedule.peak", 1e-3, 3e-3), values("optimizer.b2", 0.95, 0.98, 0.99)


def test_grid_is_every_combination():
    pairs = [(x["schedule.peak"], x["optimizer.b2"]) for x in grid(PEAKS, B2S)]
    assert pairs == list(itertools.product((1e-3, 3e-3), (0.95, 0.98, 0.99)))
    assert grid(PEAKS) == PEAKS == [{"schedule.peak": 1e-3}, {"schedule.peak": 3e-3}]
    assert grid() == [{}]
    assert grid(PEAKS, []) == []


def test_paired_combines_by_position_and_rejects_unequal_lengths():
    alphas = values("schedule.alpha", 1.0, 2.0)
    assert paired(PEAKS, alphas) == [
        {"schedule.peak": 1e-3, "schedule.alpha": 1.0},
        {"schedule.peak": 3e-3, "schedule.alpha": 2.0},
    ]
    with pytest.raises(ValueError, match=r"shorter|longer"):
        paired(PEAKS, B2S)


def test_setting_is_changed_by_one_space_only():
    with pytest.raises(ValueError, match=r"schedule\.peak"):
        grid(PEAKS, PEAKS)


def test_runs_are_named_after_their_change():
    config = quickstart.get_config()
    before = copy.deepcopy(config)
    seeds = paired(values("seed", 1), values("data.seed", 1))
    first, run = runs("mine", config, grid(PEAKS, seeds), "root")
    assert (first.name, run.name) == ("mine-peak=0.001-seed=1", "mine-peak=0.003-seed=1")
    built = run_config.build(run.settings, trust=NOBODY)
    assert (built.learning_rate.peak, built.seed, built.data.seed) == (3e-3, 1, 1)
    assert (built.name, built.run_dir) == (run.name, f"root/{run.name}")
    assert [x.name for x in runs("mine", config, [{}], "root")] == ["mine"]
    assert config == before


def test_run_rejects_unknown_setting():
    (run,) = runs("mine", quickstart.get_config(), values("schedule.peek", 1.0), "root")
    with pytest.raises(InputError, match=r"schedule\.peek"):
        run.build()


def test_decays_inherit_everything_from_their_trunk():
    config = quickstart.get_config()
    config.schedule = {"kind": "constant", "warmup": "160 steps"}
    trunks = runs("constant", config, grid(PEAKS, values("seed", 3)), "root")
    found = decays("wsd", trunks, [1, 4], floor=0.0, shape="1-sqrt")
    assert [x.name for x in found] == [
        "wsd-peak=0.001-seed=3-horizon=1x", "wsd-peak=0.001-seed=3-horizon=4x",
        "wsd-peak=0.003-seed=3-horizon=1x", "wsd-peak=0.003-seed=3-horizon=4x",
    ]  # fmt: skip
    last = found[-1]
    assert last.trunk == "constant-peak=0.003-seed=3"
    built = run_config.build(last.settings, trust=NOBODY)
    assert (built.branch.from_run, built.branch_step) == (f"root/{last.trunk}", 1440)
    assert (built.learning_rate.peak, built.seed, built.decay.floor) == (3e-3, 3, 0.0)
    assert built.decay.shape == "1-sqrt"
    assert (built.horizon, built.stop_rule.step) == (1600, 1600)


def test_branches_name_what_they_change():
    config = quickstart.get_config()
    config.schedule = {"kind": "constant", "warmup": "160 steps"}
    trunks = runs("constant", config, grid(PEAKS, values("seed", 3)), "root")
    larger = values("batch_growth", {"1x": 64}, {"1x": 128, "2x": 256})
    found = branches("larger", trunks, "1x", grid(larger, values("schedule.peak", 0.02)), "4x")
    assert [x.name for x in found][:2] == [
        "larger-peak=0.001-seed=3-batch_growth=64_at_1x-peak=0.02",
        "larger-peak=0.001-seed=3-batch_growth=128_at_1x+256_at_2x-peak=0.02",
    ]
    built = found[1].build()
    assert built.branch.named == ("batch_growth", "schedule.peak")
    assert built.branch_step == 400
    assert [(x.step, x.span) for x in built.clock.phases] == [(0, 1), (400, 4), (500, 8)]
    assert (built.learning_rate.peak, built.seed) == (0.02, 3)
    assert built.clock.multiple(built.stop_rule.step) == 4


def test_run_of_a_study_has_settings_whose_keys_have_dots():
    config = quickstart.get_config()
    config.eval.sets = {"py-v1.2": "data/python", "web": "data/web"}
    config.stages = {"0.5x": {"length": 256}}
    (run,) = runs("mine", config, [{}], "root")
    built = run_config.build(run.settings, trust=NOBODY)
    assert built.sets == {"py-v1.2": "data/python", "web": "data/web"}
    assert [x.model.length for x in built.run_stages] == [128, 256]


def test_study_rejects_missing_trunk_and_duplicate_name():
    first = StudyRun("a", {"run_dir": "x"})
    for named, study_runs in (
        (" a", [first, first]),
        ("b .* z", [first, StudyRun("b", {}, trunk="z")]),
        ("a .* b", [StudyRun("a", {}, trunk="b"), StudyRun("b", {})]),  # in the wrong order
    ):
        with pytest.raises(InputError, match=named):
            Study("s", "root", study_runs)


def test_run_suggests_the_nearest_name():
    study = laptop.get_study()
    assert study.run("constant-peak=0.01").config.schedule.peak == 1e-2
    with pytest.raises(InputError, match=r"'constant-peak=0\.1'.*constant-peak=0\.01"):
        study.run("constant-peak=0.1")
    with pytest.raises(InputError, match="FILE:NAME"):
        laptop.get_config()


def test_run_of_a_study_is_an_ordinary_configuration():
    file = "laptop"
    run_config.build(
        config_file.read(f"{file}:constant-peak=0.01", ["--config.stop=1x"]), trust=NOBODY
    )
    for name in (file, f"{file}:constant-peak=0.011", "none:a"):
        with pytest.raises(InputError):
            config_file.read(name)


# The studies of the paper hold the sweeps that its authors ran, and no others.


def settings_of(study, kind):
    """The settings of every run of a kind, as (peak, b2, alpha, horizon or stop)."""
    sweep = []
    for run in study.runs:
        config, schedule = run.config, run.config.schedule
        if ("wsd" if config.decay else schedule.kind) == kind:
            last = config.decay.get("horizon") or schedule.get("horizon", config.get("stop", "32x"))
            sweep.append((schedule.peak, config.optimizer.b2, schedule.get("alpha"), last))
    assert len(set(sweep)) == len(sweep)
    return set(sweep)


def combinations(peaks, b2s, alphas, lasts):
    return set(itertools.product(peaks, b2s, alphas, lasts))


def horizons(*multiples):
    return [f"{m}x" for m in multiples]


def test_sweeps_at_150m():
    study = paper_150m.get_study()
    low, b2s = (3e-4, 1e-3, 3e-3), (0.95, 0.98, 0.99)
    expected = combinations((*low, 1e-2), b2s, [None], horizons(1, 2, 4, 8))
    expected |= combinations(low, b2s, [None], horizons(16, 32))
    assert settings_of(study, "cosine") == expected
    assert settings_of(study, "constant") == combinations(low, b2s, [None], ["32x"])
    alphas = (12_800, 25_600, 51_200)
    assert settings_of(study, "inverse_sqrt") == combinations(low, (0.98, 0.99), alphas, ["32x"])
    assert settings_of(study, "wsd") == combinations(low, b2s, [None], horizons(1, 2, 4, 8, 16, 32))
    assert len(study.runs) == 66 + 9 + 18 + 54


@pytest.mark.parametrize(
    ("module", "peaks", "alphas", "steps"),
    [
        (paper_300m, (3e-4, 1e-3, 3e-3), (12_800, 25_600, 51_200), 12_500),
        (paper_large_batch, (1e-3, 3e-3, 1e-2), (800, 1600, 3200, 6400), 782),
    ],
)
def test_sweeps_at_300m_and_at_batch_4096(module, peaks, alphas, steps):
    study, b2s = module.get_study(), (0.95, 0.99)
    multiples = (1, 2, 4, 8, 16)
    assert settings_of(study, "cosine") == combinations(peaks, b2s, [None], horizons(*multiples))
    assert settings_of(study, "constant") == combinations(peaks, b2s, [None], ["16x"])
    assert settings_of(study, "inverse_sqrt") == combinations(peaks, b2s, alphas, ["16x"])
    assert settings_of(study, "wsd") == combinations(peaks, b2s, [None], horizons(*multiples))
    assert {run.build().clock.chinchilla_steps for run in study.runs} == {steps}


@pytest.mark.parametrize("module", [laptop, paper_150m, paper_300m, paper_large_batch])
def test_studies_are_valid_and_state_their_cost(module, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    study = module.get_study()
    tasks = make_tasks(study)
    name = module.__name__.rpartition(".")[2]
    assert study.root == f"runs/studies/{name}"
    assert f"--study={name}" in module.__doc__
    assert {task.config.data.repeat for task in tasks} == {False}
    if module is not laptop:
        rate = 186_000 if module is paper_300m else 344_000
        hours = round(sum(task.tokens for task in tasks) / rate / 3600)
        assert f"{len(tasks)} runs, {hours:,} hours of one H100 at {rate:,}" in module.__doc__


def test_widths_share_one_base_and_the_size_of_heads():
    models = [x.build().model for x in widths.get_study().runs]
    assert {x.width for x in models} == {64, 128, 256, 512}
    assert {x.head_width for x in models} == {16}
    assert {x.width_growth for x in models} == {1.0, 2.0, 4.0, 8.0}
