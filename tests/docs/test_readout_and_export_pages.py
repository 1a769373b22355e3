"""What the pages on reading runs out tell one to type is understood, and their links exist."""

import json
import pathlib
import re
import shlex

import pytest
from ml_collections import ConfigDict

from anytime_jax.commands import command_line, dispatch
from configs import quickstart

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = REPOSITORY / "docs/examples/lm_eval"
PAGE = (REPOSITORY / "docs/export.md").read_text(encoding="utf-8")
READOUT = (REPOSITORY / "docs/readout.md").read_text(encoding="utf-8")
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
LINKS = re.findall(r"\]\(([^)#:]+)[^)]*\)", PAGE + READOUT)


def read_commands(text):
    """(module, options) of every line that starts one of the doors, in shell blocks."""
    blocks = re.findall(r"```(?:sh|bash)\n(.*?)```", text, re.S)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    started = (re.match(r"\s*python -m anytime_jax[. ](\w+) (.*)", line) for line in lines)
    return [(x[1], shlex.split(x[2], comments=True)) for x in started if x]


COMMANDS = read_commands(PAGE) + read_commands(READOUT)
# Of the README, the part that is about the same.
COMMANDS += read_commands(README.split("## Use the weights\n")[1].split("\n## ")[0])


def holds(config, name):
    """Whether a configuration has a setting of this dotted name."""
    for part in name.split("."):
        if not isinstance(config, ConfigDict) or part not in config:
            return False
        config = config[part]
    return True


def test_the_page_is_read():
    doors = {"main", "export", "prepare", "evaluate", "readout", "generate"}
    assert {module for module, _ in COMMANDS} == doors
    assert len(COMMANDS) >= 16
    assert len(LINKS) >= 6
    assert len(PAGE.splitlines()) < 220
    assert "(docs/export.md)" in README


@pytest.mark.parametrize(("module", "options"), COMMANDS)
def test_every_option_exists(module, options):
    if module != "main":
        command_line.parse(dispatch.load(module), module, options)
        return
    file, *settings = (option.partition("=")[0::2] for option in options)
    assert file[0] == "--config"
    assert (REPOSITORY / file[1].partition(":")[0]).is_file()
    for name, value in settings:
        assert value, name
        assert holds(quickstart.get_config(), name.removeprefix("--config.")), name


@pytest.mark.parametrize("link", sorted(set(LINKS)))
def test_every_linked_file_exists(link):
    assert (REPOSITORY / "docs" / link).exists()


def test_the_task_reads_the_documents_beside_it():
    yaml = pytest.importorskip("yaml")
    task = yaml.safe_load((EXAMPLE / "anytime_python.yaml").read_text(encoding="utf-8"))
    assert f"--tasks {task['task']}" in PAGE
    file = REPOSITORY / task["dataset_kwargs"]["data_files"][task["test_split"]]
    assert file == EXAMPLE / "functions.jsonl"
    texts = [json.loads(line)["text"] for line in file.read_text(encoding="utf-8").splitlines()]
    assert len(set(texts)) == len(texts) == 30  # as the page says
    assert max(map(len, texts)) < 200  # so none has more than 128 tokens in a vocabulary of 512
