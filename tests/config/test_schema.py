"""Tests of the settings of a run: reading, rules, identity."""

import copy
import dataclasses
import functools
import importlib

import pytest
from paths import REPOSITORY

from anytime_jax import averaging, schedules
from anytime_jax.config import fields, other_names, schema
from anytime_jax.config.clock import Stop
from anytime_jax.errors import InputError
from configs import optimizers

FILES = sorted(
    path.stem
    for path in (REPOSITORY / "configs").glob("*.py")
    if "def get_config(" in path.read_text("utf-8")
    and not path.stem.startswith("theory")
    and path.stem not in ("continued", "decay", "own_text", "optimizers")  # these take an argument
    and path.stem != "base"  # it has no name
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


def decay(**changes):
    schedule = {"kind": "constant", **WARMUP}
    return quickstart(schedule=schedule, decay=dict(DECAY), **{"stop": "1x", **changes})


@pytest.mark.parametrize("kind", schema.OPTIMIZERS.classes)
def test_every_optimizer_builds(kind):
    built = schema.build(optimizers.get_config(kind).to_dict())
    assert (built.optimizer.kind, built.name) == (kind, f"quickstart_{kind}")


def test_a_file_names_what_it_changes():
    source = quickstart()
    built = schema.build(source)
    assert "clip_norm" not in source
    assert (built.clip_norm, built.optimizer.b1) == (1.0, 0.9)
    assert schema.build(built.to_dict()) == built


@pytest.mark.parametrize("name", FILES)
def test_every_configuration_builds(name):
    built = schema.build(source_of(name))
    assert built.name == name
    assert built.run_dir == f"runs/{name}" + ("_1x" if built.branch.from_run else "")
    assert built.horizon is None or built.stop_rule.step <= built.horizon
    assert importlib.import_module(f"configs.{name}").__doc__.count("--config=") >= 1


def test_quickstart():
    built = schema.build(quickstart())
    assert (built.clock.tokens_per_step, built.clock.chinchilla_steps) == (32 * 128, 400)
    assert built.stop_rule == Stop(1600, doubles=True)
    assert built.learning_rate == schedules.inverse_sqrt(1e-2, 800.0, warmup=160)
    assert list(built.averaging_rules) == ["f6.25", "f12.5", "f25", "f50", "f100"]
    assert (built.eval_steps, built.checkpoint_steps, built.log_steps) == (200, 400, 10)
    assert (built.keep_steps, built.eval_windows(9999)) == (None, 256)
    assert (built.horizon, built.branch_step) == (None, None)
    assert [built.rate_at(step) for step in (0, 160)] == pytest.approx([1e-3, 1e-2])


def test_base_is_the_papers_150m():
    schedule = {"kind": "constant", "peak": 1e-3, "warmup": "5000 steps"}
    built = schema.build({**source_of("base"), "name": "base", "schedule": schedule})
    assert (built.clock.chinchilla_steps, built.stop_rule.step) == (12_500, 400_000)
    assert built.learning_rate == schedules.constant(1e-3, warmup=5000)
    model, optimizer = built.model, built.optimizer
    assert (model.layers, model.heads, model.width, model.mlp_width) == (12, 16, 1024, 4096)
    assert (model.vocab_size, model.embedding_rows, model.length) == (32_100, 32_128, 1024)
    assert (model.rope_theta, model.norm_epsilon, model.dtype) == (10_000.0, 1e-5, "bfloat16")
    assert (optimizer.b1, optimizer.epsilon) == (0.9, 1e-8)
    assert (optimizer.weight_decay, built.clip_norm) == (0.0, 1.0)
    assert list(built.averaging_rules) == ["f6.25", "f12.5", "f25", "f50", "f100"]
    assert not built.data.repeat


WARM = {"warmup": 40, "warmup_init": 0.2}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"kind": "constant"}, schedules.constant(1e-2, **WARM)),
        ({"kind": "inverse_sqrt", "alpha": 7}, schedules.inverse_sqrt(1e-2, 7.0, **WARM)),
        ({"kind": "power", "gamma": 1, "alpha": 7}, schedules.Power(1e-2, 1.0, 7.0, **WARM)),
        ({"kind": "cosine", **DECAY}, schedules.cosine(1e-2, 400, **WARM, floor=0.05)),
        ({"kind": "linear", **DECAY}, schedules.linear(1e-2, 400, **WARM, floor=0.05)),
        (
            {"kind": "wsd", **DECAY, "shape": "1-sqrt"},
            schedules.wsd(1e-2, 400, **WARM, floor=0.05, shape="1-sqrt"),
        ),
    ],
)
def test_schedule_kinds(settings, expected):
    source = quickstart(schedule={**WARMUP, **settings}, stop="1x")
    assert schema.build(source).learning_rate == expected


def test_average_forms():
    labels = ["f6.25", "f25", "f50", "ema0.999", "uniform", "uniform1000"]
    expected = {f"f{f:g}": averaging.GrowingWindow(f) for f in (6.25, 25.0, 50.0)}
    expected |= {"ema0.999": averaging.FixedDecay(0.999), "uniform": averaging.Uniform()}
    expected |= {"uniform1000": averaging.Uniform(1000)}
    for kind in (tuple, list):
        built = schema.build(quickstart(averages=kind(labels)))
        assert list(built.averaging_rules.items()) == list(expected.items())
    assert schema.build(quickstart(averages=())).averaging_rules == {}


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
    ("name", "answer"),
    [
        ("training.Learning_Rate", "schedule.peak"),
        ("model.arch", "model.kind"),
        ("num_epochs", "data.repeat"),
        ("schedule.weight_decay", "optimizer.weight_decay"),
        ("model.dropout", "dropout"),
        ("optimizer.momentum", "muon"),  # the kind that has it
        ("optimizer.weigth_decay", "optimizer.weight_decay"),
    ],
)
def test_word_of_another_trainer_is_answered(name, answer):
    with pytest.raises(InputError, match=rf"^config\.{name}\b.*: .*\b{answer}\b"):
        fields.change(schema.Settings, quickstart(), {name: fields.Text("1")}, ())


def test_answers_to_words_of_other_trainers_are_settings():
    settings = schema.all_settings()
    assert set(other_names.NAMES) <= set(settings)
    words = [x for text in other_names.NAMES.values() for x in text.split()]
    absent = [x for text in other_names.ABSENT.values() for x in text.split()]
    assert not set(absent) & {*words, *(x.rpartition(".")[2] for x in settings)}
    assert all(word == word.lower() and word not in settings for word in words)


def test_decay_and_its_stop():
    assert schema.build(decay()).horizon == 400
    assert schema.build(decay()).learning_rate.start == 360
    assert schema.build(decay(stop="0.5x")).stop_rule.step == 200
    assert schema.build(decay(stop="horizon")).stop_rule == Stop(400, doubles=False)


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
    return {name for name, x in schema.all_settings().items() if condition(x.facts)}


def test_identity_leaves_out_what_may_change_between_starts():
    outside = {"name", "run_dir", "initial_weights", "stop", "averages", "microbatches"}
    outside |= {
        "data.path",
        "data.mixture",
        "data.surplus",
        "data.builtin_megabytes",
        "data.repeat",
    }
    outside |= {"accumulation", "model.attention", "model.layer_loop", "model.remat"}
    outside |= {"data.text", "data.validation_text", "data.vocabulary"}
    outside |= {"branch.from_run", "branch.data", "branch.change"}
    groups = ("mesh.", "guard.", "eval.", "checkpoint.", "log.")
    outside |= {name for name in schema.all_settings() if name.startswith(groups)}
    assert names_where(lambda x: not x.identity) == outside
    built = schema.build(quickstart())
    flat = fields.flatten(built.to_dict())
    inside = {name: flat[name] for name in flat if name not in outside}
    assert built.identity("abc") == {**inside, "data.fingerprint": "abc"}


def test_a_branch_inherits_all_but_its_decay():
    free = {f"decay.{x}" for x in ("horizon", "floor", "shape")}
    free |= {f"branch.{x}" for x in ("from_run", "at", "data", "change")}
    assert names_where(lambda x: x.branch == "free") == free
    method = [x for x in schema.all_settings() if x.startswith(("optimizer.", "schedule."))]
    named = {"clip_norm", "data.documents", "data.boundary_loss", "data.most_documents", *method}
    named -= {"optimizer.kind", "optimizer.interpolation"}
    assert names_where(lambda x: x.branch == "named") == named


def test_kinds_have_the_default_of_their_group():
    declared = schema.all_settings()
    defaults = {x: declared[f"{x}.kind"].default for x in ("model", "optimizer", "schedule")}
    assert defaults == {"model": "olmo", "optimizer": "adamw", "schedule": dataclasses.MISSING}


def test_facts_of_a_run_are_those_of_its_kinds():
    declared = schema.all_settings()
    for kind in schema.OPTIMIZERS.classes:
        facts = schema.build(optimizers.get_config(kind).to_dict()).facts()
        assert facts == {name: declared[name].facts for name in facts}


def test_identity_follows_settings_and_data():
    identity = schema.build(quickstart()).identity("abc")
    assert schema.build(quickstart()).identity("abd") != identity
    assert schema.build(quickstart(stop="8x", mesh__fsdp=2)).identity("abc") == identity
    assert schema.build(quickstart(schedule__alpha=961.0)).identity("abc") != identity
    grown = schema.build(quickstart(batch_growth=(("2x", 64),))).identity("abc")
    assert grown["batch_growth"] == [["2x", 64]]


def test_branch_on_other_data_reads_those():
    branch = {"branch__from_run": "trunk", "branch__at": "900 steps", "branch__data": "other"}
    config = schema.build(quickstart(**branch))
    assert config.stages[-1].step == 900
    assert config.stages[-1].weights == (("other", 1),)
    assert config.sources["other"] == "other"
    assert schema.build(config.to_dict()) == config


def test_build_leaves_its_input_alone():
    source = quickstart()
    before = copy.deepcopy(source)
    assert schema.build(source) == schema.build(source)
    assert source == before
    with pytest.raises(dataclasses.FrozenInstanceError):
        schema.build(source).seed = 1


def test_directory_that_follows_from_the_name_is_no_setting():
    built = schema.build(quickstart())
    assert (built.run_dir, built.to_dict()["run_dir"]) == ("runs/quickstart", "")
    assert built.replace(name="other").run_dir == "runs/other"
    assert built.replace(run_dir="mine").to_dict()["run_dir"] == "mine"


# What follows from a branch


def branch(**changes):
    return schema.build(quickstart(branch__from_run="folder/trunk", **changes))


def test_branch_leaves_its_trunk_at_a_point_or_at_90_percent_of_its_horizon():
    config = branch(decay={"horizon": "2x"}, stop="horizon")
    assert (config.branch_step, config.horizon, config.stop_rule.step) == (720, 800, 800)
    assert config.run_dir == "folder/quickstart_2x"
    assert config.learning_rate == schedules.Decay(
        schedules.inverse_sqrt(1e-2, 800.0, 160), 720, 800, 0.0
    )
    config = branch(decay={"horizon": "2x"}, branch__at="500 steps", stop="horizon")
    assert (config.branch_step, config.learning_rate.start) == (500, 500)
    config = branch(branch__at="500 steps", stop="1000 steps")
    assert (config.branch_step, config.horizon) == (500, None)
    assert config.run_dir == "folder/quickstart_500_steps"
    assert branch(branch__at="1x", run_dir="mine").run_dir == "mine"
