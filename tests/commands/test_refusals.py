"""Refusals of commands: a bad option, or one without effect, is named in one line.

One table for all commands. The status is 2, nothing is written, and standard output is empty; the
types of options, and options without a value, are in `test_command_line`.
"""

import sys

import pytest

from anytime_jax import commands, training, weights
from anytime_jax.commands import dispatch, evaluate

# Options by command and what they begin with, each with what the line names if that is not the
# last option. {run} is a trained run. What a command passes on is refused, and tested, where it is
# used: names of weights, addresses, kinds, settings.
PREPARE = "--train-vocabulary=400 --output=output"
OWN = f"--source=counter:Counter {PREPARE}"
REFUSED = {
    "average --inputs a b --output=output": {
        "--kernel=uniform --steps 1 2": "--steps",
        "--kernel=f25": "--steps",
        "--kernel=f25 --steps 2 1": "steps",
        "--kernel=f": None,
        "--coefficients 1 -1": "--coefficients",
        "--coefficients 1": "--coefficients",
        "--kernel=uniform --coefficients 1 1": "--kernel",
        "--kernel=uniform --inputs a": "--inputs",
        "--kernel=uniform --output=a": "--output",
    },
    "evaluate --run={run}": {
        "--tokens=0": None,
        "--max-error=nan": None,
        "--tokens=7": "tokens = 7",  # less than a window
        "--data=nowhere": "nowhere",
        "--shots=2": None,
        "--tasks=arc_easy --split=train": None,
        "--watch": None,
        "--tasks=arc_easy --watch --limit=3": "--limit",
    },
    "export --run={run} --output=output": {
        "--verify-python=python": None,
        "--verify --verify-python=/nowhere/python": None,
    },
    "generate --run={run}": {"--prompt=\udcff": None, "--temperature=0 --seed=0": None},
    "prepare": {
        "--config=150m_inv_sqrt --config.data.text=": "config.data.text",
        "--config=150m_inv_sqrt --config.data.vocabulary=": "--vocabulary",
        "--config.data.text=x": "--config",
        "--verify": "--output",
        "--verify --output=x --bos=none": None,
        "--input=text.jsonl --train-vocabulary=300": "--output",
    },
    f"prepare {PREPARE}": {
        "": "--input",
        "--source=builtin --vocabulary=x": "--train-vocabulary",
        "--source=builtin --input=x": None,
        "--source=tfds --input=gs://bucket/c4/en/3.1.0": "gs:",
        "--input=x --validation-input=y --validation-fraction=0.1": None,
        "--source=builtin --validation-fraction=2": "2.0",
        **{f"--input=text.jsonl --share={x}": f"share '{x}'" for x in ("2/2", "a/b")},
        "--source=counter": None,
    },
    f"prepare {OWN}": {
        "": "--fraction",
        "--fraction=much": None,
        "--fraction=1 --times=0": "part",
    },
    "runs": {"--run=none": None},
    "train": {
        "": "--config",
        "--config=a --config=b": "--config",
        "--config=150m_inv_sqrt": "anytime prepare",  # without its data
        "--config=quickstart --profile=5:5": None,
        "--config=quickstart --process=1": "--coordinator",
    },
}
CASES = [
    (f"{first} {options}", named or options.split()[-1].partition("=")[0])
    for first, cases in REFUSED.items()
    for options, named in cases.items()
]


@pytest.fixture
def folder(counter):
    """The working directory, with a text and a class of a source."""
    (counter / "text.jsonl").write_text('{"text": "words to prepare"}\n' * 100)
    return counter


@pytest.mark.parametrize(("words", "named"), CASES, ids=[words for words, _ in CASES])
def test_refused_option_is_named(words, named, whole, folder, rejected):
    name, *options = words.format(run=whole).split()
    assert named in rejected(dispatch.import_command(name), *options)
    left = {x.name for x in folder.iterdir()} - {"__pycache__"}
    assert left == {"text.jsonl", "counter.py"}


def test_tasks_need_the_extra(whole, rejected, monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    for package, module in (
        (commands, "task_scores"),
        (weights, "checkpoint_scorer"),
        (training, "task_evaluation"),
    ):
        monkeypatch.delitem(sys.modules, f"{package.__name__}.{module}", raising=False)
        monkeypatch.delattr(package, module, raising=False)
    line = rejected(evaluate, f"--run={whole}", "--tasks=arc_easy")
    assert "anytime_jax[tasks]" in line
