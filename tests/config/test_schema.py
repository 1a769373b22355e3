"""Tests of the settings of a run: reading, rules, identity."""

import copy
import dataclasses
import functools
import importlib
import math
import re
import typing

import numpy as np
import pytest
from paths import REPOSITORY

from anytime_jax import averaging, schedules
from anytime_jax.config import fields, schema
from anytime_jax.config.clock import Stop
from anytime_jax.errors import InputError
from configs import optimizers

FILES = sorted(
    path.stem
    for path in (REPOSITORY / "configs").glob("*.py")
    if "def get_config(" in path.read_text("utf-8")
    and not path.stem.startswith("theory")
    and path.stem not in ("continued", "decay", "own_text", "optimizers")  # these take an argument
)


def source_of(name):
    return importlib.import_module(f"configs.{name}").get_config().to_dict()


def quickstart(**changes):
    """The quickstart's settings, some of them replaced by their dotted names (`__` is a dot)."""
    source = source_of("quickstart")
    for name, value in changes.items():
        *groups, last = name.split("__")
        functools.reduce(dict.__getitem__, groups, source)[last] = value
    return source


WARMUP = {"peak": 1e-2, "warmup": "0.1x", "warmup_init": 0.2}  # 40 steps of 400
DECAY = {"horizon": "1x", "floor": 0.05}


def wsd(**changes):
    schedule = {"kind": "wsd", **WARMUP, **DECAY, "shape": "linear"}
    return quickstart(schedule=schedule, **{"stop": "1x", **changes})


def refusal(source):
    with pytest.raises(InputError) as caught:
        schema.build(source)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("config")
    return message


@pytest.mark.parametrize("kind", optimizers.SETTINGS)
def test_every_optimizer_builds(kind):
    assert schema.build(optimizers.get_config(kind).to_dict()).optimizer.kind == kind
    assert set(optimizers.SETTINGS) == set(typing.get_args(schema.SETTINGS["optimizer.kind"].type))


def test_settings_of_other_kinds_are_refused():
    source = optimizers.get_config("gpa").to_dict()
    for name, value in {"interpolation": 1.0, "x_average": "nonsense", "momentum": 0.9}.items():
        changed = {**source, "optimizer": {**source["optimizer"], name: value}}
        assert f"config.optimizer.{name}" in refusal(changed)
    del source["optimizer"]["interpolation"]
    assert "interpolation is missing" in refusal(source)


def test_settings_that_are_newer_than_a_file_have_defaults():
    source = quickstart()
    del source["optimizer"]["kind"], source["average_clock"]
    assert schema.build(source) == schema.build(quickstart())


@pytest.mark.parametrize("name", FILES)
def test_every_configuration_builds(name):
    if name == "base":
        assert refusal(source_of("base")).startswith("config.schedule is missing")
        return
    given = importlib.import_module(f"configs.{name}").get_config()
    if given.branch.from_run:
        assert "multiple (the horizon" in refusal(given.to_dict())
        given.branch.multiple = 2.0
    built = schema.build(given.to_dict())
    assert built.name == name
    assert built.run_dir == f"runs/{name}" + ("_2.0x" if given.branch.from_run else "")
    horizon = built.learning_rate.horizon_steps
    assert horizon is None or built.stop_rule.step <= horizon
    assert importlib.import_module(f"configs.{name}").__doc__.count("--config=") >= 1


def test_quickstart():
    built = schema.build(quickstart())
    assert (built.clock.tokens_per_step, built.clock.chinchilla_steps) == (32 * 128, 400)
    assert built.stop_rule == Stop(1600, doubles=True)
    assert built.learning_rate == schedules.inverse_sqrt(1e-2, 800.0, warmup_steps=160)
    assert list(built.averaging_rules) == ["f6.25", "f12.5", "f25", "f50", "f100"]
    assert [built.interval_steps(section) for section in ("eval", "checkpoint", "log")] == [
        200,
        400,
        10,
    ]
    assert (built.keep_every_steps, built.eval_windows(9)) == (None, 256)
    assert built.to_dict() == quickstart()


def test_base_is_the_papers_150m():
    schedule = {"kind": "constant", "peak": 1e-3, "warmup": "5000 steps", "warmup_init": 0.1}
    built = schema.build({**source_of("base"), "schedule": schedule})
    assert (built.clock.chinchilla_steps, built.stop_rule.step) == (12_500, 400_000)
    assert built.learning_rate == schedules.constant(1e-3, warmup_steps=5000)
    model, optimizer = built.model, built.optimizer
    assert (model.layers, model.heads, model.width, model.mlp_width) == (12, 16, 1024, 4096)
    assert (model.vocab_size, model.embedding_rows, model.length) == (32_100, 32_128, 1024)
    assert (model.rope_theta, model.norm_epsilon, model.dtype) == (10_000.0, 1e-5, "bfloat16")
    assert (optimizer.b1, optimizer.epsilon) == (0.9, 1e-8)
    assert (optimizer.weight_decay, optimizer.clip_norm) == (0.0, 1.0)
    assert list(built.averaging_rules) == ["f6.25", "f12.5", "f25", "f50", "f100"]
    assert not built.data.repeat


WARM = {"warmup_steps": 40, "warmup_init": 0.2}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"kind": "constant"}, schedules.constant(1e-2, **WARM)),
        ({"kind": "inverse_sqrt", "alpha": 7}, schedules.inverse_sqrt(1e-2, 7.0, **WARM)),
        ({"kind": "power", "gamma": 1, "alpha": 7}, schedules.power(1e-2, 1.0, 7.0, **WARM)),
        ({"kind": "cosine", **DECAY}, schedules.cosine(1e-2, 400, **WARM, floor=0.05)),
        ({"kind": "linear", **DECAY}, schedules.linear(1e-2, 400, **WARM, floor=0.05)),
        (
            {"kind": "wsd", **DECAY, "shape": "1-sqrt"},
            schedules.wsd(1e-2, 360, 400, **WARM, floor=0.05, shape="1-sqrt"),
        ),
    ],
)
def test_schedule_kinds(settings, expected):
    source = quickstart(schedule={**WARMUP, **settings}, stop="1x")
    assert schema.build(source).learning_rate == expected


def test_average_forms():
    expected = {f"f{f:g}": averaging.GrowingWindow(f) for f in (6.25, 25.0, 50.0)}
    expected |= {"ema0.999": averaging.FixedDecay(0.999), "uniform": averaging.Uniform()}
    expected |= {"uniform1000": averaging.Uniform(1000)}
    for kind in (tuple, list):
        averages = kind([6.25, 25, "f50", "ema0.999", "uniform", "uniform1000"])
        built = schema.build(quickstart(averages=averages))
        assert list(built.averaging_rules.items()) == list(expected.items())
    assert schema.build(quickstart(averages=())).averaging_rules == {}


# Values that are refused in one line, which names the setting first.
BAD = {
    **dict.fromkeys(("model.layers", "model.length", "eval.batch_size"), (0,)),
    **dict.fromkeys(("average_every", "checkpoint.keep"), (0, 2.0)),
    "seed": [1.5, True, -1],
    "name": [3, " ", "a\nb"],
    "run_dir": ["", "a\0b", "~/runs"],
    "batch_size": ["32", 0, 10**5000],
    "chinchilla_tokens": [2e6, 0, 2**63],
    "averages": [
        *(25.0, ("f",), ("ema",), ("uniform1.5",), ("polyak",), (-1.0,), ("ema1",), (25.0, "f25")),
        *((None,), (np.float32(25),), ("f\u0663",)),
    ],
    "average_memory": ["disk"],
    "model": [3],
    "model.heads": [5],  # does not divide the width
    "model.dtype": ["float16"],
    "model.attention": ["cudnn"],  # in float32
    "model.embedding_rows": [1000],  # fewer than tokens
    "model.rope_theta": [math.nan],
    "data.path": [""],
    "data.repeat": [1],
    "data.builtin_megabytes": [-1, math.nan],
    "optimizer.b1": [1.0],
    "optimizer.b2": ["0.98", -0.1, 1 - 1e-9],  # the last is 1 in float32
    "optimizer.epsilon": [0.0, 1e-46],
    "optimizer.weight_decay": [-0.1],
    "optimizer.clip_norm": [0.0, math.inf],
    "guard.skip": ["all"],
    "guard.spike": [0.0, math.nan],
    "guard.limit": [0],
    "mesh.data": [0, True],
    "mesh.fsdp": [-1],
    "log.tensorboard": ["yes"],
    "log.wandb_project": ["\x1b[0m"],
    "schedule.kind": ["cubic"],
    "schedule.peak": [0.0, 1e39, 10**400],
    "schedule.alpha": [-1],
    "schedule.warmup_init": [2.0],
    # points in a run
    "stop": ["4", "0x", "never+", 4, "1e20 steps", "horizon"],
    "eval.every": ["often", "0 steps"],
    "checkpoint.every": [""],
    "checkpoint.keep_every": ["always", "0x"],
    "log.every": ["10"],
    "schedule.warmup": ["soon"],
    # rules across settings
    "microbatches": [0, 5],  # of 32
    "batch_growth": [(("2x", 48 + 1),)],
    "eval.tokens": [0, 127],  # less than one sequence
    "branch.change": [("model.width",)],
    # unknown names
    "batchsize": [32],
    "model.widht": [32],
    "schedule.gamma": [0.5],  # of another kind
    "schedule.horizon": ["1x"],
}
BAD_DECAY = {
    "schedule.horizon": ["soon", "branch"],
    "schedule.shape": ["round"],
    "schedule.floor": [2.0],
    "schedule.warmup": ["361 steps"],  # after the start of the decay
    "stop": ["4x", "never", "401 steps", "1x+"],
}
CASES = [
    *((quickstart, name, value) for name, values in BAD.items() for value in values),
    *((wsd, name, value) for name, values in BAD_DECAY.items() for value in values),
]


@pytest.mark.parametrize(("base", "name", "value"), CASES, ids=[name for _, name, _ in CASES])
def test_bad_setting_is_named_in_one_line(base, name, value):
    changes = {"microbatches": 2} if name == "batch_growth" else {}
    message = refusal(base(**changes, **{name.replace(".", "__"): value}))
    assert re.match(rf"config\.{re.escape(name)}\b", message), message


def test_unknown_name_of_any_length_is_cut():
    assert refusal(quickstart(**{"x" * 300: 1})).startswith("config: 'xxx")


@pytest.mark.parametrize(
    ("name", "allowed", "hint"),
    [
        ("model.widht", ["name", "model.width"], "did you mean model.width?"),
        ("widht", ["name", "model.width"], "did you mean model.width?"),
        ("lenght", ["layers", "length"], "did you mean length?"),
        ("zzz", ["layers", "length"], "allowed: layers, length"),
    ],
)
def test_nearest_name(name, allowed, hint):
    assert fields.nearest(name, allowed) == hint


@pytest.mark.parametrize(
    "name",
    ["seed", "model", "model.width", "eval.every", "schedule.peak", "schedule.kind", "averages"],
)
def test_missing_setting_is_named(name):
    source = quickstart()
    *groups, last = name.split(".")
    del functools.reduce(dict.__getitem__, groups, source)[last]
    assert refusal(source).startswith(f"config.{name} is missing")


def test_schedule_lists_its_settings():
    source = quickstart()
    del source["schedule"]["alpha"]
    for bad in (source, quickstart(schedule__gamma=0.5)):
        assert "kind, peak, warmup, warmup_init, alpha" in refusal(bad)


def test_decay_and_its_stop():
    assert schema.build(wsd()).learning_rate.horizon_steps == 400
    assert schema.build(wsd(stop="0.5x")).stop_rule.step == 200
    assert schema.build(wsd(stop="horizon")).stop_rule == Stop(400, doubles=False)


def test_decay_starts_after_the_warmup():
    cosine = {"kind": "cosine", **WARMUP, "horizon": "10 steps", "floor": 0.1}
    assert refusal(quickstart(schedule=cosine, stop="10 steps")).startswith("config.schedule")


def test_group_is_checked_when_constructed():
    with pytest.raises(ValueError, match="heads = 5"):
        dataclasses.replace(schema.build(quickstart()).model, heads=5)


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
    config = schema.build(quickstart(stop=stop))  # 400 steps are 1x
    assert [config.stop_rule.after(step, config.clock) for step in reached] == expected


def names_where(condition):
    return {name for name, setting in schema.SETTINGS.items() if condition(setting)}


def test_identity_leaves_out_what_may_change_between_starts():
    outside = {"name", "run_dir", "initial_weights", "stop", "averages", "microbatches"}
    outside |= {"average_memory"}
    outside |= {"data.path", "data.builtin_megabytes", "data.repeat"}
    outside |= {"model.attention", "model.layer_loop", "model.remat"}
    outside |= {"branch.from_run", "branch.data", "branch.change"}
    groups = ("mesh.", "guard.", "eval.", "checkpoint.", "log.")
    outside |= {name for name in schema.SETTINGS if name.startswith(groups)}
    assert names_where(lambda x: not x.identity) == outside
    flat = fields.flatten(quickstart())
    inside = {name: flat[name] for name in flat if name not in outside}
    assert schema.build(quickstart()).identity("abc") == {**inside, "data.fingerprint": "abc"}


def test_a_branch_inherits_all_but_the_shape_of_its_schedule():
    shape = {"kind", "horizon", "floor", "shape", "gamma", "alpha"}
    branch = {"from_run", "multiple", "step", "data", "change"}
    free = {f"schedule.{x}" for x in shape} | {f"branch.{x}" for x in branch}
    assert names_where(lambda x: x.branch == "free") == free
    named = {f"schedule.{x}" for x in ("peak", "warmup", "warmup_init")}
    method = {f"optimizer.{x}" for x in ("kind", "interpolation", "normalize_rows")}
    named |= {name for name in schema.SETTINGS if name.startswith("optimizer.")} - method
    assert names_where(lambda x: x.branch == "named") == named


def test_variants_of_a_study_differ_in_more_than_seed_and_horizon():
    assert names_where(lambda x: x.identity and not x.variant) == {
        *("seed", "data.seed", "branch.multiple", "branch.step", "schedule.kind"),
        "schedule.horizon",
    }


def test_identity_follows_settings_and_data():
    identity = schema.build(quickstart()).identity("abc")
    assert schema.build(quickstart()).identity("abd") != identity
    assert schema.build(quickstart(stop="8x", mesh__fsdp=2)).identity("abc") == identity
    assert schema.build(quickstart(schedule__alpha=961.0)).identity("abc") != identity
    grown = schema.build(quickstart(batch_growth=(("2x", 64),))).identity("abc")
    assert grown["batch_growth"] == [["2x", 64]]


def test_branch_on_other_data_reads_those():
    branch = {"branch__from_run": "trunk", "branch__step": 900, "branch__data": "other"}
    config = schema.build(quickstart(**branch))
    assert (config.data.path, config.data.builtin_megabytes) == ("other", 0.0)
    assert schema.build(config.to_dict()) == config


def test_build_leaves_its_input_alone():
    source = quickstart()
    before = copy.deepcopy(source)
    assert schema.build(source) == schema.build(source)
    assert source == before
    with pytest.raises(dataclasses.FrozenInstanceError):
        schema.build(source).seed = 1
