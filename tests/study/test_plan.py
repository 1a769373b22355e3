"""Studies as code: what combinators make, how runs are named, and what is refused."""

import copy
import itertools
import json
import pathlib
import re

import pytest

from anytime_jax.commands import config_file
from anytime_jax.config import schema
from anytime_jax.errors import InputError
from anytime_jax.study import plan, tasks
from anytime_jax.study.plan import Study, StudyRun, branches, chain, grid, runs, values
from configs import quickstart
from configs.studies import laptop, paper_150m, paper_300m, paper_large_batch

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]

PEAKS, B2S = values("schedule.peak", 1e-3, 3e-3), values("optimizer.b2", 0.95, 0.98, 0.99)


def test_values_are_a_change_each():
    assert PEAKS == [{"schedule.peak": 1e-3}, {"schedule.peak": 3e-3}]


def test_a_product_is_every_combination():
    got = [(x["schedule.peak"], x["optimizer.b2"]) for x in grid(PEAKS, B2S)]
    assert got == list(itertools.product((1e-3, 3e-3), (0.95, 0.98, 0.99)))
    assert grid(PEAKS) == PEAKS
    assert grid() == [{}]
    assert grid(PEAKS, []) == []


def test_paired_rejects_unequal_lengths():
    alphas = values("schedule.alpha", 1.0, 2.0)
    assert plan.paired(PEAKS, alphas) == [
        {"schedule.peak": 1e-3, "schedule.alpha": 1.0},
        {"schedule.peak": 3e-3, "schedule.alpha": 2.0},
    ]
    with pytest.raises(ValueError, match="spaces of 2, 3 changes cannot be paired"):
        plan.paired(PEAKS, B2S)


def test_chain_is_one_after_another():
    assert chain(PEAKS, B2S, []) == [*PEAKS, *B2S]


def test_a_setting_is_changed_by_one_space_only():
    with pytest.raises(ValueError, match=r"schedule\.peak: changed by two spaces"):
        grid(PEAKS, PEAKS)


def named(space):
    return {x.name: x for x in runs("mine", quickstart.get_config(), space, "root")}


def test_runs_are_named_after_what_changes():
    seeds = plan.paired(values("seed", 1), values("data.seed", 1))
    found = named(grid(PEAKS, seeds))
    assert list(found) == ["mine-peak=0.001-seed=1", "mine-peak=0.003-seed=1"]
    run = found["mine-peak=0.003-seed=1"]
    built = schema.build(run.settings)
    assert (built.schedule.peak, built.seed, built.data.seed) == (3e-3, 1, 1)
    assert (built.name, built.run_dir) == (run.name, f"root/{run.name}")
    assert list(named([{}])) == ["mine"]


def test_the_given_configuration_stays_as_it_is():
    given = quickstart.get_config()
    before = copy.deepcopy(given)
    runs("mine", given, PEAKS, "root")
    assert given == before


def test_an_unknown_setting_is_named():
    with pytest.raises(InputError, match=r"schedule\.peek is not a setting of mine-peek=1"):
        named(values("schedule.peek", 1.0))


def test_branches_inherit_everything_from_their_trunk():
    given = quickstart.get_config()
    given.schedule = {"kind": "constant", "peak": 0.0, "warmup": "160 steps", "warmup_init": 0.1}
    trunks = runs("constant", given, grid(PEAKS, values("seed", 3)), "root")
    made_runs = branches("wsd", trunks, [1, 4], floor=0.0, shape="1-sqrt")
    assert [x.name for x in made_runs] == [
        "wsd-peak=0.001-seed=3-horizon=1x", "wsd-peak=0.001-seed=3-horizon=4x",
        "wsd-peak=0.003-seed=3-horizon=1x", "wsd-peak=0.003-seed=3-horizon=4x",
    ]  # fmt: skip
    last = made_runs[-1]
    assert last.trunk == "constant-peak=0.003-seed=3"
    built = schema.build(last.settings)
    assert (built.branch.from_run, built.branch_step) == (f"root/{last.trunk}", 1440)
    assert (built.schedule.peak, built.seed, built.schedule.floor) == (3e-3, 3, 0.0)
    assert (built.schedule.shape, built.learning_rate.horizon_steps, built.stop_rule.step) == (
        "1-sqrt", 1600, 1600,
    )  # fmt: skip


def test_a_study_refuses_a_missing_trunk_and_a_name_given_twice():
    first = StudyRun("a", {"run_dir": "x"})
    with pytest.raises(InputError, match="two runs are called a"):
        Study("s", "root", [first, first])
    with pytest.raises(InputError, match="b begins from z, which is not a run before it"):
        Study("s", "root", [first, StudyRun("b", {}, trunk="z")])
    with pytest.raises(InputError, match="a begins from b, which is not a run before it"):
        Study("s", "root", [StudyRun("a", {}, trunk="b"), StudyRun("b", {})])


def test_a_run_is_found_by_its_name():
    study = laptop.get_study()
    assert study.run("constant-peak=0.01").config.schedule.peak == 1e-2
    with pytest.raises(InputError, match=r"has no run .constant-peak=0\.1.; did you mean constant"):
        study.run("constant-peak=0.1")
    with pytest.raises(InputError, match="holds many runs: name one, as FILE:NAME"):
        laptop.get_config()


def test_a_study_is_read_back_as_it_was_written(tmp_path):
    study = laptop.get_study()
    plan.write(study, tmp_path / "copy")
    back = plan.load(tmp_path / "copy")
    assert [(x.name, x.trunk) for x in back.runs] == [(x.name, x.trunk) for x in study.runs]
    for ours, theirs in zip(study.runs, back.runs, strict=True):
        assert theirs.run_dir == tmp_path / "copy" / ours.name
        plain = json.loads(json.dumps(ours.settings))
        assert {**theirs.settings, "run_dir": plain["run_dir"]} == plain
    plan.write(study, tmp_path / "packed", "runs")
    assert plan.load(tmp_path / "packed").runs[0].run_dir.parent == tmp_path / "packed" / "runs"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no such file; studies are in configs/studies/"),
        ("x = 1", r"has no get_study\(\) that returns a study.plan.Study"),
        ("def get_study():\n    return 1 / 0", "line 2: ZeroDivisionError: division by zero"),
        ("import nothing_of_that_name", "line 1: ModuleNotFoundError"),
        ("def get_study(", "cannot be run: SyntaxError"),
        (
            "from anytime_jax.study.plan import *\ndef get_study():\n"
            "    return Study('s', 'r', [StudyRun('b', {}, trunk='a')])",
            "study s: b begins from a, which is not a run before it",
        ),
    ],
)
def test_what_is_no_study_file(content, message, tmp_path):
    file = tmp_path / "study.py"
    if content is not None:
        file.write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        plan.load(file)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is no study"),
        ("{", "is damaged"),
        ("[]", "is damaged"),
        ('{"format_version": 9}', "format version 9, this is 1"),
        ('{"format_version": 1, "folder": "."}', "is damaged"),
    ],
)
def test_what_is_no_study_directory(content, message, tmp_path):
    if content is not None:
        (tmp_path / "study.json").write_text(content)
    with pytest.raises(InputError, match=message):
        plan.load(tmp_path)


# The studies of the paper hold the sweeps that its authors ran, and no others.


def settings_of(study, kind):
    """The settings of every run of a kind, as (peak, b2, alpha, horizon or stop)."""
    found = []
    for run in study.runs:
        given = run.config
        if given.schedule.kind == kind:
            last = given.branch.multiple or given.schedule.get("horizon", given.stop)
            schedule = given.schedule
            alpha = schedule.get("alpha")
            found.append((schedule.peak, given.optimizer.b2, alpha, last))
    assert len(set(found)) == len(found)
    return set(found)


def combinations(peaks, b2s, alphas, lasts):
    return set(itertools.product(peaks, b2s, alphas, lasts))


def times(*multiples):
    return [f"{m}x" for m in multiples]


def test_the_sweeps_at_150m():
    study = paper_150m.get_study()
    low, b2s = (3e-4, 1e-3, 3e-3), (0.95, 0.98, 0.99)
    wanted = combinations((*low, 1e-2), b2s, [None], times(1, 2, 4, 8))
    wanted |= combinations(low, b2s, [None], times(16, 32))
    assert settings_of(study, "cosine") == wanted
    assert settings_of(study, "constant") == combinations(low, b2s, [None], ["32x"])
    alphas = (12_800, 25_600, 51_200)
    assert settings_of(study, "inverse_sqrt") == combinations(low, (0.98, 0.99), alphas, ["32x"])
    assert settings_of(study, "wsd") == combinations(low, b2s, [None], (1, 2, 4, 8, 16, 32))
    assert len(study.runs) == 66 + 9 + 18 + 54


@pytest.mark.parametrize(
    ("module", "peaks", "alphas", "steps"),
    [
        (paper_300m, (3e-4, 1e-3, 3e-3), (12_800, 25_600, 51_200), 12_500),
        (paper_large_batch, (1e-3, 3e-3, 1e-2), (800, 1600, 3200, 6400), 782),
    ],
)
def test_the_sweeps_at_300m_and_at_batch_4096(module, peaks, alphas, steps):
    study, b2s = module.get_study(), (0.95, 0.99)
    assert settings_of(study, "cosine") == combinations(peaks, b2s, [None], times(1, 2, 4, 8, 16))
    assert settings_of(study, "constant") == combinations(peaks, b2s, [None], ["16x"])
    assert settings_of(study, "inverse_sqrt") == combinations(peaks, b2s, alphas, ["16x"])
    assert settings_of(study, "wsd") == combinations(peaks, b2s, [None], (1, 2, 4, 8, 16))
    assert {schema.build(run.settings).clock.chinchilla_steps for run in study.runs} == {steps}


@pytest.mark.parametrize("module", [laptop, paper_150m, paper_300m, paper_large_batch])
def test_every_study_can_be_run_and_says_what_it_costs(module, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    study = module.get_study()
    found = tasks.make_tasks(study)
    assert f"{len(found)} runs" in module.__doc__ or module is laptop
    name = module.__name__.rpartition(".")[2]
    assert study.root == f"runs/studies/{name}"
    assert f"--study=configs/studies/{name}.py" in module.__doc__
    assert {job.run.config.data.repeat for job in found} == {False}
    if module is not laptop:
        rate = 160_000 if module is paper_300m else 300_000
        hours = round(sum(job.tokens for job in found) / rate / 3600)
        assert f"{hours:,} hours of one H100 at {rate:,} tokens/s" in module.__doc__
        docs = (REPOSITORY / "docs" / "studies.md").read_text(encoding="utf-8")
        assert f"`configs/studies/{name}.py` | {len(found)} | {hours:,} hours" in docs


def test_a_run_of_a_study_is_a_configuration_of_its_own(capsys):
    name = "configs/studies/laptop.py:constant-peak=0.01"
    config_file.read(name, ["--config.stop=1x"])
    for given, message in (
        ("configs/studies/laptop.py", "holds many runs: name one, as FILE:NAME"),
        ("configs/studies/laptop.py:constant-peak=0.011", "did you mean constant-peak=0.01?"),
        ("configs/studies/none.py:a", "there is no such file"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            config_file.read(given)
