"""The command for a GPU: refused without one, and robust to parts that fail."""

import functools
import importlib
import json

import pytest
from run_command import run_command

from anytime_jax.commands import dispatch
from benchmarks import gpu


def test_machine_without_gpu_is_rejected(capsys, tmp_path):
    output = tmp_path / "gpu.json"
    assert gpu.main([f"--output={output}"]) == 2
    assert "--smoke" in capsys.readouterr().err
    assert not output.exists()


def part(module, arguments="", seconds=120.0):
    return gpu.Part(seconds, module, arguments, arguments)


def test_failing_parts_are_rows_and_the_rest_runs(monkeypatch, tmp_path):
    parts = {
        "endless": part("timeit", "-n 1000000000 pass", seconds=0.5),
        "absent": part("no_such_module"),
        "peers": part("platform", "--torch-python=TORCH"),
        "good": part("platform"),
    }
    monkeypatch.setattr(gpu, "PARTS", parts)
    monkeypatch.setattr(gpu, "_DEVICE_SECONDS", 0)
    machine = {"platform": "cpu", "devices": "1 x cpu"}
    monkeypatch.setattr(gpu, "_describe_machine", lambda: machine)
    output = tmp_path / "gpu.json"
    assert gpu.main(["--smoke", f"--output={output}"]) == 1
    contents = json.loads(output.read_text())
    measured = {row["part"]: row["measured"] for row in contents["rows"]}
    assert list(measured) == list(parts)
    assert measured["endless"].startswith("stopped: ")
    assert measured["absent"].endswith("No module named no_such_module")
    assert measured["peers"] == "skipped: it needs --torch-python"
    assert measured["good"].endswith(" s")


def test_parts_take_nine_minutes_at_most():
    assert gpu._DEVICE_SECONDS + sum(part.seconds for part in gpu.PARTS.values()) <= 540


@pytest.mark.parametrize("name", gpu.PARTS)
def test_options_of_parts_exist(name, capsys):
    """Every option is in the command's help."""
    part = gpu.PARTS[name]
    words = part.arguments.split()
    if part.module == "anytime_jax":
        main = functools.partial(run_command, dispatch.import_command(words[0]))
    else:
        main = importlib.import_module(part.module).main
    sources = [word for word in words if word.startswith("--source=")]
    with pytest.raises(SystemExit, match="0"):
        main([*sources, "--help"])
    text = capsys.readouterr().out
    options = [*words, *part.smoke_arguments.split()]
    for option in {word.partition("=")[0] for word in options if word.startswith("--")}:
        assert option in text or option.startswith("--config.")
