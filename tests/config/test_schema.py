"""Every setting is visible, checked, and refused in one line that names it."""

import copy
import dataclasses
import importlib
import math
import pathlib

import numpy as np
import pytest

from anytime_jax import averaging, schedules
from anytime_jax.config import fields, schema
from anytime_jax.config.clock import Stop
from anytime_jax.errors import InputError

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
FILES = sorted(
    path.stem
    for path in (REPOSITORY / "configs").glob("*.py")
    if "def get_config(" in path.read_text("utf-8")
    and not path.stem.startswith("theory")
    and path.stem != "continued"  # which needs a model: test_initial.py
)


def source_of(name):
    return importlib.import_module(f"configs.{name}").get_config().to_dict()


def quickstart(**changes):
    """The quickstart's settings, some of them replaced by their dotted names (`__` is a dot)."""
    source = source_of("quickstart")
    for name, value in changes.items():
        *groups, last = name.split("__")
        group = source
        for key in groups:
            group = group[key]
        group[last] = value
    return source


def wsd(**changes):
    schedule = {"kind": "wsd", "peak": 1e-2, "warmup": "10 steps", "warmup_init": 0.1}
    schedule |= {"horizon": "1x", "floor": 0.1, "shape": "linear", **changes}
    return quickstart(schedule=schedule, stop="1x")


def refusal(source):
    with pytest.raises(InputError) as caught:
        schema.build(source)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("config")
    return message


@pytest.mark.parametrize("name", FILES)
def test_every_file_builds(name):
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


def test_there_are_files():
    assert {"base", "quickstart"} <= set(FILES)


def test_the_quickstart_in_full():
    built = schema.build(quickstart())
    assert built.clock.tokens_per_step == 32 * 128
    assert built.clock.chinchilla_steps == 400
    assert built.stop_rule == Stop(1600, doubles=True)
    assert built.learning_rate == schedules.inverse_sqrt(1e-2, 800.0, warmup_steps=160)
    assert list(built.averaging_rules) == ["f6.25", "f12.5", "f25", "f50", "f100"]
    assert (built.model.layers, built.model.dtype) == (2, "float32")
    assert built.every("eval") == 200
    assert built.every("checkpoint") == 400
    assert built.every("log") == 10
    assert built.keep_every_steps is None
    assert built.eval_windows == 256
    assert built.optimizer.b2 == 0.98
    assert built.to_dict() == quickstart()


def test_the_base_is_the_papers_150m():
    source = source_of("base")
    source["schedule"] = {"kind": "constant", "peak": 1e-3, "warmup": "5000 steps"}
    source["schedule"]["warmup_init"] = 0.1
    built = schema.build(source)
    assert built.clock.chinchilla_steps == 12_500
    assert built.stop_rule.step == 400_000
    assert built.learning_rate == schedules.constant(1e-3, warmup_steps=5000)
    model = built.model
    assert (model.layers, model.heads, model.width, model.mlp_width) == (12, 16, 1024, 4096)
    assert (model.vocab_size, model.embedding_rows, model.length) == (32_100, 32_128, 1024)
    assert (model.rope_theta, model.norm_epsilon, model.dtype) == (10_000.0, 1e-5, "bfloat16")
    assert (built.optimizer.b1, built.optimizer.epsilon) == (0.9, 1e-8)
    assert (built.optimizer.weight_decay, built.optimizer.clip_norm) == (0.0, 1.0)
    assert list(built.averaging_rules) == ["f6.25", "f12.5", "f25", "f50", "f100"]
    assert not built.data.repeat


def test_every_kind_of_schedule():
    common = {"peak": 1e-2, "warmup": "0.1x", "warmup_init": 0.2}  # 40 steps of 400
    warm = {"warmup_steps": 40, "warmup_init": 0.2}
    ends = {"horizon": "2x", "floor": 0.05}
    cases = [
        ({"kind": "constant"}, schedules.constant(1e-2, **warm)),
        ({"kind": "inverse_sqrt", "alpha": 7}, schedules.inverse_sqrt(1e-2, 7.0, **warm)),
        ({"kind": "power", "gamma": 1, "alpha": 7}, schedules.power(1e-2, 1.0, 7.0, **warm)),
        ({"kind": "cosine", **ends}, schedules.cosine(1e-2, 800, **warm, floor=0.05)),
        ({"kind": "linear", **ends}, schedules.linear(1e-2, 800, **warm, floor=0.05)),
        (
            {"kind": "wsd", **ends, "shape": "1-sqrt"},
            schedules.wsd(1e-2, 720, 800, **warm, floor=0.05, shape="1-sqrt"),
        ),
    ]
    for given, expected in cases:
        source = quickstart(schedule={**common, **given}, stop="2x")
        assert schema.build(source).learning_rate == expected


def test_every_form_of_average():
    given = (6.25, 25, "f50", "ema0.999", "uniform", "uniform1000")
    expected = [averaging.GrowingWindow(f) for f in (6.25, 25.0, 50.0)]
    expected += [averaging.FixedDecay(0.999), averaging.Uniform(), averaging.Uniform(1000)]
    built = schema.build(quickstart(averages=given))
    assert list(built.averaging_rules.values()) == expected
    assert list(built.averaging_rules) == [
        "f6.25",
        "f25",
        "f50",
        "ema0.999",
        "uniform",
        "uniform1000",
    ]
    assert schema.build(quickstart(averages=list(given))).averages == built.averages
    assert schema.build(quickstart(averages=())).averaging_rules == {}


BAD = [
    # kinds
    ("seed", 1.5, "config.seed = 1.5 is not allowed: it must be a whole number"),
    ("seed", True, "config.seed = True is not allowed: it must be a whole number"),
    ("seed", -1, "config.seed = -1 is not allowed: it must be a whole number from 0"),
    ("name", 3, "config.name = 3 is not allowed: it must be text in quotes"),
    ("name", " ", "config.name = ' ' is not allowed"),
    ("run_dir", "", "config.run_dir = ''"),
    ("batch_size", "32", "config.batch_size = '32' is not allowed: it must be a whole number"),
    ("batch_size", 0, "config.batch_size = 0 is not allowed: it must be a whole number from 1"),
    ("microbatches", 0, "config.microbatches = 0"),
    ("chinchilla_tokens", 2e6, "config.chinchilla_tokens = 2000000.0"),
    ("chinchilla_tokens", 0, "config.chinchilla_tokens = 0"),
    ("averages", 25.0, "config.averages = 25.0 is not allowed: it must be a tuple such as"),
    ("model", 3, "config.model = 3 is not allowed: it must be a group of settings"),
    ("data__repeat", 1, "config.data.repeat = 1 is not allowed: it must be True or False"),
    ("log__tensorboard", "yes", "config.log.tensorboard = 'yes'"),
    ("optimizer__b2", "0.98", "config.optimizer.b2 = '0.98' is not allowed: it must be a number"),
    # values
    ("model__layers", 0, "config.model.layers = 0"),
    ("model__heads", 5, "config.model.heads = 5 is not allowed: it must be a number that splits"),
    ("model__dtype", "float16", "config.model.dtype = 'float16' is not allowed: it must be one of"),
    ("model__embedding_rows", 1000, "config.model.embedding_rows = 1000"),
    ("model__rope_theta", math.nan, "config.model.rope_theta = nan"),
    ("data__path", "", "config.data.path = '' is not allowed: it must be a directory"),
    ("data__builtin_megabytes", -1, "config.data.builtin_megabytes = -1"),
    ("data__builtin_megabytes", math.nan, "config.data.builtin_megabytes = nan"),
    ("optimizer__b1", 1.0, "config.optimizer.b1 = 1.0 is not allowed: it must be from 0 to below"),
    ("optimizer__b2", -0.1, "config.optimizer.b2 = -0.1"),
    ("optimizer__epsilon", 0.0, "config.optimizer.epsilon = 0.0"),
    ("optimizer__weight_decay", -0.1, "config.optimizer.weight_decay = -0.1"),
    ("optimizer__clip_norm", 0.0, "config.optimizer.clip_norm = 0.0"),
    ("optimizer__clip_norm", math.inf, "config.optimizer.clip_norm = inf"),
    ("mesh__data", 0, "config.mesh.data = 0"),
    ("mesh__data", True, "config.mesh.data = True is not allowed: it must be a whole number"),
    ("mesh__fsdp", -1, "config.mesh.fsdp = -1"),
    ("eval__tokens", 0, "config.eval.tokens = 0"),
    ("eval__batch_size", 0, "config.eval.batch_size = 0"),
    ("checkpoint__keep", 0, "config.checkpoint.keep = 0"),
    ("schedule__kind", "cubic", "config.schedule.kind = 'cubic' is not allowed: it must be one of"),
    ("schedule__peak", 0.0, "config.schedule.peak = 0.0"),
    ("schedule__alpha", -1, "config.schedule.alpha = -1.0"),
    # points
    ("stop", "4", "config.stop = '4' is not allowed: it must be a point in a run such as"),
    ("stop", "0x", "config.stop = '0x' is not allowed: it must be at least one update"),
    (
        "stop",
        "never+",
        "config.stop = 'never+' is not allowed: it must be a point in a run such as",
    ),
    ("stop", 4, "config.stop = 4 is not allowed: it must be text in quotes"),
    ("eval__every", "often", "config.eval.every = 'often'"),
    ("checkpoint__every", "", "config.checkpoint.every = ''"),
    ("checkpoint__keep_every", "always", "config.checkpoint.keep_every = 'always'"),
    ("log__every", "10", "config.log.every = '10'"),
    ("schedule__warmup", "soon", "config.schedule.warmup = 'soon'"),
    # averages
    (
        "average_every",
        0,
        "config.average_every = 0 is not allowed: it must be a whole number from 1",
    ),
    ("average_every", 2.0, "config.average_every = 2.0 is not allowed: it must be a whole number"),
    (
        "average_memory",
        "disk",
        "config.average_memory = 'disk' is not allowed: it must be one of d",
    ),
    ("averages", ("f",), "config.averages: 'f' is not an average: give a number f, or one of"),
    ("averages", ("ema",), "config.averages: 'ema'"),
    ("averages", ("uniform1.5",), "config.averages: 'uniform1.5'"),
    ("averages", ("polyak",), "config.averages: 'polyak'"),
    # beyond what float32 holds, or what can be shown
    (
        "optimizer__epsilon",
        1e-46,
        "config.optimizer.epsilon = 1e-46 is not allowed: it must be from",
    ),
    ("optimizer__b2", 1 - 1e-9, "config.optimizer.b2 = 0.999999999 is not allowed"),
    (
        "schedule__peak",
        1e39,
        "config.schedule.peak = 1e+39 is not allowed: it must be from 1.2e-38",
    ),
    ("chinchilla_tokens", 2**63, "config.chinchilla_tokens = 9223372036854775808"),
    ("batch_size", 10**5000, "config.batch_size = a value of type int is not allowed"),
    ("averages", (np.float32(25),), "config.averages: np.float32(25.0) is not an average"),
    ("averages", ("f٣",), "config.averages: 'f٣' is not an average"),
    ("run_dir", "a\0b", "config.run_dir = 'a\\x00b' is not allowed: it must be a directory"),
    ("run_dir", "~/runs", "config.run_dir = '~/runs' is not allowed: it must be a directory"),
    ("name", "a\nb", "config.name = 'a\\nb' is not allowed: it must be up to 200 printable"),
    ("x" * 300, 1, "config: 'xxx"),
    ("log__wandb_project", "\x1b[0m", "config.log.wandb_project = '\\x1b[0m' is not allowed"),
    # across settings
    ("microbatches", 5, "config.microbatches = 5 does not divide batch_size = 32"),
    ("eval__tokens", 127, "config.eval.tokens = 127 is less than one sequence of model.length"),
    # names
    ("batchsize", 32, "config.batchsize is not a setting: did you mean batch_size?"),
    ("model__widht", 32, "config.model.widht is not a setting: did you mean width?"),
    (
        "schedule__gamma",
        0.5,
        "config.schedule.gamma is not a setting: the schedule 'inverse_sqrt' takes",
    ),
    (
        "schedule__horizon",
        "1x",
        "config.schedule.horizon is not a setting: the schedule 'inverse_sqrt' takes",
    ),
    ("averages", ("polyak",), "config.averages"),
    ("averages", (-1.0,), "config.averages"),
    ("averages", ("ema1",), "config.averages"),
    ("averages", (25.0, "f25"), "config.averages"),
    ("averages", (None,), "config.averages"),
    ("schedule__warmup_init", 2.0, "config.schedule.warmup_init = 2.0"),
    ("schedule__peak", 10**400, "config.schedule.peak"),
    ("eval__every", "0 steps", "config.eval.every = '0 steps'"),
    ("checkpoint__keep_every", "0x", "config.checkpoint.keep_every"),
    ("stop", "1e20 steps", "config.stop"),
    ("schedule", {"peak": 1.0}, "config.schedule.kind is missing"),
    ("model__attention", "cudnn", "config.model.attention"),
]


@pytest.mark.parametrize(("name", "value", "message"), BAD, ids=[m for *_, m in BAD])
def test_a_bad_setting_is_named_in_one_line(name, value, message):
    assert refusal(quickstart(**{name: value})).startswith(message)


def test_a_missing_setting_is_named():
    for path in ("seed", "model", "model__width", "eval__every", "schedule__peak", "averages"):
        source = quickstart()
        *groups, last = path.split("__")
        group = source
        for key in groups:
            group = group[key]
        del group[last]
        name = path.replace("__", ".")
        hint = "the schedule" if "schedule" in name else "every setting is written out"
        assert refusal(source).startswith(f"config.{name} is missing: {hint}")


def test_a_schedule_names_what_it_takes():
    takes = "the schedule 'inverse_sqrt' takes kind, peak, warmup, warmup_init, alpha"
    assert takes in refusal(quickstart(schedule__gamma=0.5))
    source = quickstart()
    del source["schedule"]["alpha"]
    assert takes in refusal(source)


def test_the_nearest_name():
    assert fields.nearest("model.widht", ["name", "model.width"]) == "did you mean model.width?"
    assert fields.nearest("widht", ["name", "model.width"]) == "did you mean model.width?"
    assert fields.nearest("lenght", ["layers", "length"]) == "did you mean length?"
    assert fields.nearest("zzz", ["layers", "length"]) == "allowed: layers, length"


def test_a_decay_and_its_stop():
    assert schema.build(wsd()).learning_rate.horizon_steps == 400
    past = ("stop = '4x' is past", "stop = 'never' is past", "stop = '401 steps' is past")
    for stop, start in zip(("4x", "never", "401 steps"), past, strict=True):
        message = refusal({**wsd(), "stop": stop})
        assert message.startswith(f"config.{start} the schedule's horizon of 400 steps (1x")
    assert schema.build({**wsd(), "stop": "0.5x"}).stop_rule.step == 200
    assert schema.build({**wsd(), "stop": "horizon"}).stop_rule == Stop(400, doubles=False)
    assert "stop = 'horizon' is not allowed" in refusal(quickstart(stop="horizon"))
    assert "horizon = 'soon'" in refusal(wsd(horizon="soon"))
    assert "shape = 'round'" in refusal(wsd(shape="round"))
    assert "floor = 2.0" in refusal(wsd(floor=2.0))
    short = refusal(quickstart(schedule=_cosine("10 steps"), stop="10 steps"))
    assert short.startswith("config.schedule: the decay starts at update 192 and ends at 10")


def _cosine(horizon):
    schedule = {"kind": "cosine", "peak": 1e-2, "warmup": "192 steps", "warmup_init": 0.1}
    return {**schedule, "horizon": horizon, "floor": 0.1}


def test_a_horizon_cannot_be_doubled():
    assert "stop = '1x+'" in refusal({**wsd(), "stop": "1x+"})


def test_a_decay_begins_after_the_warmup():
    assert "warmup" in refusal(wsd(warmup="450 steps"))


def test_when_a_run_stops():
    clock = schema.build(quickstart()).clock  # 400 steps are 1x

    def stops(text, *steps):
        stop = schema.build(quickstart(stop=text)).stop_rule
        return [stop.after(step, clock) for step in steps]

    assert stops("4x", 0, 1599, 1600, 4000) == [1600, 1600, 1600, 1600]
    assert stops("4x+", 0, 1599, 1600, 3199, 3200) == [1600, 1600, 3200, 3200, 6400]
    assert stops("100 steps+", 0, 100, 400) == [100, 400, 800]
    assert stops("never", 0, 10**9) == [None, None]
    assert stops("1M tokens", 0) == [245]  # 1,000,000 / 4096, rounded up


def names_where(condition):
    return {name for name, setting in schema.SETTINGS.items() if condition(setting)}


def test_identity_leaves_out_what_may_change_between_starts():
    outside = {"name", "run_dir", "initial_weights", "stop", "averages", "microbatches"}
    outside |= {"average_every", "average_memory"}
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
    named |= {name for name in schema.SETTINGS if name.startswith("optimizer.")}
    assert names_where(lambda x: x.branch == "named") == named


def test_runs_of_a_fleet_differ_in_what_a_program_takes_as_data():
    assert names_where(lambda x: x.per_run) == {
        *("name", "run_dir", "seed", "initial_weights", "stop", "data.seed"),
        *("branch.from_run", "branch.multiple", "branch.step", "branch.change"),
        *("optimizer.b1", "optimizer.b2", "optimizer.epsilon"),
        *(name for name in schema.SETTINGS if name.startswith("schedule.")),
    }


def test_variants_of_a_study_differ_in_more_than_seed_and_horizon():
    assert names_where(lambda x: x.identity and not x.variant) == {
        *("seed", "data.seed", "branch.multiple", "branch.step", "schedule.kind"),
        "schedule.horizon",
    }


@pytest.mark.parametrize(
    ("name", "value", "same"),
    [
        ("stop", "8x", True),
        ("name", "other", True),
        ("run_dir", "elsewhere", True),
        ("averages", (25.0,), True),
        ("average_every", 7, True),
        ("average_memory", "host", True),
        ("eval__every", "1x", True),
        ("checkpoint__keep", 5, True),
        ("log__tensorboard", False, True),
        ("mesh__fsdp", 2, True),
        ("guard__skip", "nonfinite", True),
        ("microbatches", 2, True),
        ("data__path", "moved", True),
        ("data__repeat", True, True),
        ("seed", 1, False),
        ("batch_size", 64, False),
        ("data__seed", 1, False),
        ("schedule__alpha", 961.0, False),
        ("schedule__warmup", "193 steps", False),
        ("optimizer__weight_decay", 0.1, False),
        ("model__norm_epsilon", 1e-6, False),
        ("chinchilla_tokens", 2_000_000, False),
    ],
)
def test_what_is_the_same_run(name, value, same):
    one = schema.build(quickstart()).identity("abc")
    other = schema.build(quickstart(**{name: value})).identity("abc")
    assert (one == other) == same


def test_another_data_set_is_another_run():
    built = schema.build(quickstart())
    assert built.identity("abc") != built.identity("abd")


def test_building_changes_nothing_and_repeats():
    source = quickstart()
    before = copy.deepcopy(source)
    assert schema.build(source) == schema.build(source)
    assert source == before
    with pytest.raises(dataclasses.FrozenInstanceError):
        schema.build(source).seed = 1


def test_the_layout_must_divide_the_batch_and_the_heads():
    built = schema.build(quickstart(microbatches=2))  # 16 sequences at once, 4 heads
    schema.check_layout(built, devices=8, batch_shards=8, tensor=1, platform="cpu")
    schema.check_layout(built, devices=8, batch_shards=2, tensor=4, platform="cpu")
    cases = [
        ((32, 32, 1), "config.batch_size / microbatches = 16 is not divisible by the 32 parts"),
        ((3, 1, 3), "config.model.heads = 4 is not divisible by config.mesh.tensor = 3"),
    ]
    for layout, message in cases:
        with pytest.raises(InputError, match=message):
            schema.check_layout(built, *layout, platform="cpu")
    few = schema.build(quickstart(eval__batch_size=6))
    with pytest.raises(InputError, match=r"config\.eval\.batch_size = 6 is not divisible by the 8"):
        schema.check_layout(few, devices=8, batch_shards=8, tensor=1, platform="cpu")
