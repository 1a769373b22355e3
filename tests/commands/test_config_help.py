"""Help on configurations and settings."""

import re

import pytest
from paths import REPOSITORY
from run_command import run_command

from anytime_jax.commands import train
from anytime_jax.config.run_settings import all_settings


@pytest.fixture
def text(monkeypatch, capsys):
    """Prints what an option of a command prints, which must be all that the command does."""
    monkeypatch.chdir(REPOSITORY)

    def run(module, *argv):
        assert run_command(module, argv) == 0
        out, err = capsys.readouterr()
        assert err == ""
        return out

    return run


def test_settings_are_explained(text):
    printed = text(train, "--help-settings")
    entries = re.findall(r"^  (\S+) +\S", printed, re.MULTILINE)
    assert entries == list(all_settings())
    joined = " ".join(printed.split())
    for setting in all_settings().values():
        assert setting.meaning in joined
        assert setting.default_text in joined


def test_settings_are_explained_with_the_values_in_hand(text):
    words = ["--config.seed=7", "--help-settings", "--config=quickstart"]
    printed = " ".join(text(train, *words, '--config.eval.sets={"a": "data/a"}').split())
    for fact in ("default 0; now 7]", "default 256; now 32]", 'default {}; now {"a": "data/a"}]'):
        assert fact in printed
    assert "now" not in re.search(r"model\.head_norm .*?\]", printed)[0]  # of another kind
