"""Tests of the settings of a run: reading, rules, identity."""

import copy
import functools

import pytest

from anytime_jax import schedules
from anytime_jax.config import other_names, run_config, settings_reader
from anytime_jax.config.clock import Stop
from anytime_jax.config.kinds import NOBODY
from anytime_jax.config.run_settings import OPTIMIZERS, Settings, all_settings
from anytime_jax.errors import InputError
from configs import optimizers
from configs import quickstart as quickstart_file


def quickstart(**changes):
    """The quickstart's settings, some of them replaced by their dotted names (`__` is a dot)."""
    source = quickstart_file.get_config().to_dict()
    for name, value in changes.items():
        *groups, last = name.split("__")
        functools.reduce(dict.__getitem__, groups, source)[last] = value
    return source


def build(**changes):
    return run_config.build(quickstart(**changes), trust=NOBODY)


def decay(**changes):
    schedule = {"kind": "constant", "peak": 1e-2, "warmup": "0.1x"}  # 40 steps of 400
    return build(schedule=schedule, decay={"horizon": "1x"}, **{"stop": "1x", **changes})


def test_a_file_names_what_it_changes():
    source = quickstart()
    built = run_config.build(source, trust=NOBODY)
    assert "clip_norm" not in source
    assert (built.clip_norm, built.optimizer.b1) == (1.0, 0.9)
    assert run_config.build(built.to_dict(), trust=NOBODY) == built


def test_quickstart():
    built = build()
    assert built.clock.chinchilla_steps == 400
    assert built.stop_rule == Stop(1600, doubles=True)
    assert built.learning_rate == schedules.inverse_sqrt(1e-2, 800.0, warmup=160)
    assert list(built.averaging_rules) == ["f6.25", "f12.5", "f25", "f50", "f100"]
    assert (built.eval_steps, built.checkpoint_steps, built.log_steps) == (400, 400, 10)
    assert (built.keep_steps, built.eval_windows(9999, built.model.length)) == (None, 256)
    assert (built.horizon, built.branch_step) == (None, None)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("training.Learning_Rate", "schedule.peak"),
        ("schedule.weight_decay", "optimizer.weight_decay"),
        ("model.dropout", "dropout"),
        ("optimizer.momentum", "muon"),  # the kind that has it
        ("optimizer.weigth_decay", "weight_decay"),
    ],
)
def test_word_of_another_trainer_is_answered(name, answer):
    settings = quickstart()
    settings_reader.change(Settings, settings, {name: settings_reader.Text("1")})
    with pytest.raises(InputError, match=rf"^config\.{name}\b.*: .*\b{answer}\b"):
        run_config.build(settings, trust=NOBODY)


def test_answers_to_words_of_other_trainers_are_settings():
    settings = all_settings()
    assert set(other_names.NAMES) <= set(settings)
    words = [x for text in other_names.NAMES.values() for x in text.split()]
    absent = [x for text in other_names.ABSENT.values() for x in text.split()]
    assert not set(absent) & {*words, *(x.rpartition(".")[2] for x in settings)}
    assert all(word == word.lower() and word not in settings for word in words)


def test_decay_and_its_stop():
    assert decay().horizon == 400
    assert decay().learning_rate.start == 360
    assert decay(stop="0.5x").stop_rule.step == 200
    assert decay(stop="horizon").stop_rule == Stop(400, doubles=False)


@pytest.mark.parametrize(
    ("stop", "reached", "expected"),
    [
        ("4x", (0, 1599, 1600, 4000), [1600, 1600, 1600, 1600]),
        ("4x+", (0, 1599, 1600, 3199, 3200), [1600, 1600, 3200, 3200, 6400]),
        ("100 steps+", (0, 100, 400), [100, 400, 800]),
        ("never", (0, 10**9), [None, None]),
        ("1M tokens", (0,), [245]),  # 1,000,000 / 4096, rounded up
    ],
)
def test_stop_after_steps(stop, reached, expected):
    config = build(stop=stop)  # 400 steps are 1x
    assert [config.stop_rule.after(step, config.clock) for step in reached] == expected


def test_facts_of_a_run_are_those_of_its_kinds():
    declared = all_settings()
    for kind in OPTIMIZERS.classes:
        facts = run_config.build(optimizers.get_config(kind).to_dict(), trust=NOBODY).facts()
        assert facts == {name: declared[name].facts for name in facts}


def test_identity_follows_settings_and_data():
    identity = build().identity("abc")
    assert build().identity("abd") != identity
    assert build(stop="8x", mesh__fsdp=2).identity("abc") == identity
    assert build(schedule__alpha=961.0).identity("abc") != identity
    grown = build(batch_growth=(("2x", 64),)).identity("abc")
    assert grown["batch_growth"] == [["2x", 64]]


def test_branch_on_other_data_reads_those():
    branch = {"branch__from_run": "trunk", "branch__at": "900 steps", "branch__data": "other"}
    config = build(**branch)
    assert config.run_stages[-1].step == 900
    assert config.run_stages[-1].weights == (("other", 1),)
    assert config.sources["other"] == "other"
    assert run_config.build(config.to_dict(), trust=NOBODY) == config


def test_build_leaves_its_input_alone():
    source = quickstart()
    before = copy.deepcopy(source)
    assert run_config.build(source, trust=NOBODY) == run_config.build(source, trust=NOBODY)
    assert source == before


def test_directory_that_follows_from_the_name_is_no_setting():
    built = build()
    assert (built.directory, built.to_dict()["run_dir"]) == ("runs/quickstart", "")
    assert build(run_dir="mine").directory == "mine"


# What follows from a branch


def branch(**changes):
    return build(branch__from_run="folder/trunk", **changes)


def test_branch_leaves_its_trunk_at_a_point_or_at_90_percent_of_its_horizon():
    config = branch(decay={"horizon": "2x"}, stop="horizon")
    assert (config.branch_step, config.horizon, config.stop_rule.step) == (720, 800, 800)
    assert config.directory == "folder/quickstart_2x"
    assert config.learning_rate == schedules.Decay(
        schedules.inverse_sqrt(1e-2, 800.0, 160), 720, 800, 0.0
    )
    config = branch(decay={"horizon": "2x"}, branch__at="500 steps", stop="horizon")
    assert (config.branch_step, config.learning_rate.start) == (500, 500)
    config = branch(branch__at="500 steps", stop="1000 steps")
    assert (config.branch_step, config.horizon) == (500, None)
    assert config.directory == "folder/quickstart_500_steps"
    assert branch(branch__at="1x", run_dir="mine").run_dir == "mine"
