"""Configurations on the command line: overrides, `--print-config`, and what is trusted."""

import ast
import importlib.util
import json
import re

import pytest
import small_run
from run_command import run_command

from anytime_jax.commands import config_file, train
from anytime_jax.config import run_config
from anytime_jax.config.kinds import NOBODY


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return small_run.write_config(tmp_path / "run.py", "run", "data")


def printed_config(capsys, *argv):
    """The settings of the file that `--print-config` prints, and the file's text."""
    assert run_command(train, [*argv, "--print-config"]) == 0
    text = capsys.readouterr().out
    spec = importlib.util.spec_from_loader("printed", loader=None)
    module = importlib.util.module_from_spec(spec)
    exec(compile(ast.parse(text), "printed", "exec"), module.__dict__)
    return module.get_config().to_dict(), text


def test_printed_configuration_is_the_run_and_prints_itself(file, tmp_path, capsys):
    overrides = ["--config.stop=2x", "--config.schedule.kind=wsd", "--config.schedule.horizon=2x"]
    settings, text = printed_config(capsys, f"--config={file}", *overrides)
    built = run_config.build(settings, trust=NOBODY)
    assert built.to_dict() == settings
    assert built == run_config.build(config_file.read(str(file), overrides), trust=NOBODY)
    assert (built.schedule.name, built.horizon, built.model.attention) == ("wsd", 20, "auto")
    (tmp_path / "printed.py").write_text(text)
    again, text_again = printed_config(capsys, "--config=printed.py")
    assert again == settings
    assert re.sub("  # .*", "", text_again) == re.sub("  # .*", "", text)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["printed.py", "run.py"]


def test_printed_configuration_says_where_values_come_from(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from configs import quickstart\n\n\ndef get_config():\n"
        "    config = quickstart.get_config()\n"
        "    config.stages = {'0.5x': {'length': 256}}\n"
        "    return config\n"
    )
    options = ["--config.seed=3", "--config.schedule.peak=0.5"]
    _, text = printed_config(capsys, "--config=mine.py", *options)
    origins = dict(re.findall(r"^ +'(\w+)': .*,  # (.*)$", text, re.MULTILINE))
    assert {origins.pop(x) for x in ("seed", "peak")} == {"from the command line"}
    assert {"batch_size", "alpha", "stages"} <= set(origins)
    assert set(origins.values()) == {"from 'mine.py'"}
    assert not {"clip_norm", "b2", "trackers"} & set(origins)


def test_dictionary_whose_keys_have_dots_is_given_in_each_way(tmp_path, monkeypatch, capsys):
    """In a file, on the command line, and as it is printed."""
    monkeypatch.chdir(tmp_path)
    sets, stages = {"py-v1.2": "data/python"}, {"0.5x": {"length": 256}}
    (tmp_path / "mine.py").write_text(
        "from configs import quickstart\n\n\ndef get_config():\n"
        "    config = quickstart.get_config()\n"
        f"    config.eval.sets = {sets}\n    config.stages = {stages}\n"
        "    return config\n"
    )
    options = [f"--config.eval.sets={sets}", f"--config.stages={stages}"]
    settings, _ = printed_config(capsys, "--config=mine.py")
    assert printed_config(capsys, "--config=quickstart", *options)[0] == settings
    built = run_config.build(settings, trust=NOBODY)
    assert built.sets == sets
    assert [x.model.length for x in built.run_stages] == [128, 256]
    assert hash(built.eval)
    assert run_config.build(json.loads(json.dumps(settings)), trust=NOBODY) == built


def test_last_of_several_values_counts(file):
    config = run_config.build(
        config_file.read(str(file), ["--config.seed=1", "--config.seed=2"]), trust=NOBODY
    )
    assert config.seed == 2


def test_each_wrong_setting_is_a_line(file, command):
    status, out, err = command(train, f"--config={file}", "--config.seed=x", "--config.wrong=1")
    assert (status, out) == (2, "")
    assert [line.split(":")[0] for line in err.splitlines()] == ["error"] * 2
    assert "config.seed = 'x'" in err
    assert "config.wrong" in err
