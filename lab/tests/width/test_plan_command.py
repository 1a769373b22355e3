"""What a larger configuration takes from a small run."""

import re

import pytest
import small_run
from run_command import run_command
from run_files import run_file

from anytime_jax.checkpoints import run_json
from anytime_jax.commands import config_file
from anytime_jax.errors import InputError
from anytime_lab.width import plan_command
from anytime_lab.width.plan_command import plan

WIDE = {"model__width": 64, "model__heads": 4, "model__mlp_width": 100}


def taken(small, large):
    return {x.name: x.value for x in plan(small, large)}


def configurations(folder, small=None, **changes):
    return small_run.config(folder / "a", **(small or {})), small_run.config(
        folder / "b", **{**WIDE, **changes}
    )


def test_shape_follows_the_width_and_the_rest_is_copied(tmp_path):
    tuned = {"optimizer__b2": 0.95, "schedule__peak": 0.02, "clip_norm": 2.0}
    small, large = configurations(tmp_path, tuned)
    settings = taken(small, large)
    assert settings["model.parametrization"] == "mup"
    assert settings["model.base_width"] == 16
    assert settings["model.heads"] == 16  # of 4 channels, as in the small run
    assert settings["model.mlp_width"] == 128
    assert (settings["schedule.peak"], settings["optimizer.b2"]) == (0.02, 0.95)
    assert settings["clip_norm"] == 2.0


def test_configuration_with_the_settings_can_be_built(tmp_path):
    small, large = configurations(tmp_path)
    settings = {x.replace(".", "__"): y for x, y in taken(small, large).items()}
    built = small_run.config(tmp_path / "c", **{**WIDE, **settings})
    assert built.model.width_growth == 4
    assert built.model.head_width == small.model.head_width
    assert not [x for x in plan(small, built) if x.value != x.now]


def test_base_of_a_run_with_a_base_is_kept(tmp_path):
    small = {"model__parametrization": "mup", "model__base_width": 8}
    settings = taken(*configurations(tmp_path, small))
    assert settings["model.base_width"] == 8


def test_grouped_queries_keep_their_groups(tmp_path):
    small = {"model__kind": "llama", "model__kv_heads": 2}
    assert taken(*configurations(tmp_path, small, model__kind="llama"))["model.kv_heads"] == 8


def test_heads_of_a_size_of_their_own_keep_it(tmp_path):
    settings = taken(*configurations(tmp_path, {"model__head_size": 6}))
    assert (settings["model.heads"], settings["model.head_size"]) == (16, 6)
    built = small_run.config(
        tmp_path / "c", **{**WIDE, **{x.replace(".", "__"): y for x, y in settings.items()}}
    )
    assert built.model.head_width == 6


def test_schedule_with_an_end_is_trained_to_it(tmp_path):
    cosine = {"schedule": {"kind": "cosine", "peak": 0.1, "warmup": "3 steps", "horizon": "1x"}}
    small = small_run.config(tmp_path / "a", **cosine, stop="horizon")
    large = small_run.config(tmp_path / "b", **WIDE, stop="4x")
    settings = {x.name: x.value for x in plan(small, large)}
    assert (settings["stop"], settings["schedule.horizon"]) == ("horizon", "1x")


@pytest.mark.parametrize(
    ("small", "large", "named"),
    [
        ({"model__kind": "llama"}, {}, "model.kind"),
        ({"optimizer__kind": "anytime_lab.optimizers:AMUSE"}, {}, "AMUSE"),
        (
            {"model__width": 24, "model__heads": 3},
            {"model__width": 36, "model__heads": 2},
            "a multiple of 8",
        ),
        ({}, {"initial_weights": "elsewhere"}, "initial_weights"),
    ],
)
def test_runs_to_which_the_rules_do_not_apply_are_refused(small, large, named, tmp_path):
    with pytest.raises(InputError, match=re.escape(named)):
        list(plan(*configurations(tmp_path, small, **large)))


@pytest.fixture(name="printed")
def printed_fixture(tmp_path, monkeypatch, capsys):
    """What the command prints of a small run and a wide configuration, given their changes."""

    def run(small, large):
        run_dir = tmp_path / "small"
        config = small_run.config(run_dir, **small).to_dict()
        run_json.write_run_file(run_dir, run_file(config=config))
        wide = small_run.config(tmp_path / "large", **{**WIDE, **large})
        monkeypatch.setattr(config_file, "load", lambda arguments: wide)
        assert run_command(plan_command, [f"--from={run_dir}"]) == 0
        return " ".join(capsys.readouterr().out.split())

    return run


def test_command_prints_options_and_what_does_not_transfer(printed):
    output = printed({"schedule__warmup": "6 steps"}, {"model__layers": 3, "batch_size": 16})
    for words in (
        "--config.model.parametrization=mup",
        "--config.model.base_width=16",
        "--config.schedule.warmup='6 steps'",
        "not transferred: the depth, 2 to 3 layers",
        "not transferred: the batch, 64 to 128 tokens",
        "0.01 over 4 for attn_out, mlp_in, mlp_out, qkv",
    ):
        assert words in output


def test_muon_is_told_which_scale_transfers(printed):
    assert "optimizer.scale = 'fans'" in printed({"optimizer__kind": "muon"}, {})
