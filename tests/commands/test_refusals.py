"""Refusals of commands: a bad option, or one without effect, is named in one line.

One table for all commands. The status is 2, nothing is written, and standard output is empty; the
types of options, and options without a value, are in `test_command_line`.
"""

import sys

import pytest

from anytime_jax.commands import dispatch

# Options by command and what they begin with, each with what the line names if that is not the
# last option. {run} is a trained run, {data} its dataset.
PREPARE = "--train-vocabulary=400 --output=output"
OWN = f"--source=counter:Counter {PREPARE}"
REFUSED = {
    "evaluate --run={run}": {
        **dict.fromkeys(("--tokens=0", "--batch-size=-1", "--max-error=nan", "--checkpoints=0")),
        "--tokens=7": "tokens = 7",  # less than a window
        "--tokens=99999999": "tokens = 99999999",
        "--data=nowhere": "nowhere",
        "--weights=f26": "f26",
        **dict.fromkeys(("--split=test", "--shots=2", "--limit=2", "--vocabulary=file")),
        **dict.fromkeys(f"--tasks=arc_easy {x}" for x in ("--tokens=80", "--split=train")),
        **dict.fromkeys(
            f"--tasks=arc_easy {x}" for x in ("--data=data", "--shots=-1", "--limit=0")
        ),
        "--tasks=arc_easy --vocabulary=nowhere": "nowhere",
    },
    "export --run={run} --output=output": {
        "--weights=f30": "f30",
        "--weights=f=1": "--max-error",
        "--format=olmo2": "--format=olmo",
        **dict.fromkeys(("--format=gguf", "--dtype=float16", "--verify-python=python")),
        "--vocabulary=nowhere.model": "nowhere.model",
        "--verify --verify-python=/nowhere/python": None,
        "--verify --verify-python=/tmp": None,
        "--output=s3://bucket/model": "s3://bucket/model",
    },
    "generate --run={run}": {
        **dict.fromkeys(("--temperature=-1", "--top-p=2", "--top-k=-1", "--seed=-1", "--tokens=0")),
        "--vocabulary=nowhere": "nowhere",
        "--prompt=\udcff": None,
        "--temperature=0 --seed=0": None,
    },
    "prepare": {
        "--config=150m_inv_sqrt --config.data.text=": "config.data.text",
        "--config=150m_inv_sqrt --config.data.vocabulary=": "--vocabulary",
        "--config=nowhere": "nowhere",
        "--config.data.text=x": "--config",
        "--verify": "--output",
        "--verify --config=quickstart": None,
        "--verify --output=x --bos=none": None,
        "--verify --output=x --config.seed=1": "--config.seed",
        "--verify --output=x --source=builtin": None,
        "--verify --output=x --train-vocabulary=300": None,
        "--verify --output=s3://bucket/data": "s3:",
        "--input=text.jsonl --train-vocabulary=300": "--output",
        "--input=text.jsonl --train-vocabulary=300 --output=s3://b/c": "s3:",
        "--input=text.jsonl --output=output --vocabulary=nobody://b/t5.model": "nobody:",
    },
    f"prepare {PREPARE}": {
        "": "--source",
        "--source=builtin --vocabulary=x": "--train-vocabulary",
        "--source=files": "--input",
        "--source=builtin --input=x": None,
        "--input=x --split=train": None,
        "--source=tfds --input=x --validation-input=y": None,
        "--source=tfds --input=gs://bucket/c4/en/3.1.0": "gs:",
        "--input=/nowhere": "/nowhere",
        "--input=x --validation-input=y --validation-fraction=0.1": None,
        "--input=text.jsonl --validation-input=nobody://b/c": "nobody:",
        "--input=s3://bucket/text.jsonl": "s3:",
        **dict.fromkeys(f"--source=builtin {x}" for x in ("--length=8", "--workers=0", "--len=3")),
        "--source=builtin --validation-fraction=2": "2.0",
        "--source=builtin --times=1": None,
        **{f"--input=text.jsonl --share={x}": f"share '{x}'" for x in ("2/2", "a/b", "-1/4", "1")},
        "--source=counter": None,
        "--source=nowhere:Counter": "nowhere",
        "--source=counter:Nothing": "Nothing",
    },
    f"prepare {OWN}": {
        "": "--fraction",
        "--size=1": "size",
        "--fraction": "fraction",
        "--fraction=much": None,
        "--fraction=1 --times=0": "part",
        "--fraction=1 --input=x": None,
    },
    "runs": {
        **dict.fromkeys(("--run=none", "--run=.", "--run=text.jsonl")),
        "none": "none",
        "--verify=1": None,
    },
    "train": {
        "": "--config",
        "--config=a --config=b": "--config",
        "--config=150m_inv_sqrt": "anytime_jax prepare",  # without its data
        "--config=quickstart --config.optimizer.b2=1.5": "config.optimizer.b2",
        "--config=quickstart --profile=5:5": None,
        "--config=quickstart --profile=5:end": None,
        "--config=quickstart --process=1": "--coordinator",
    },
}
CASES = [
    (f"{first} {options}", named or options.split()[-1].partition("=")[0])
    for first, cases in REFUSED.items()
    for options, named in cases.items()
]

SOURCE = '''"""A source of one's own."""
import dataclasses
from anytime_jax.corpus.sources import Source

@dataclasses.dataclass(frozen=True)
class Counter(Source):
    fraction: float
    times: int = 1

    def parts(self):
        return []
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with a text and a class of a source; no package reads `s3://`."""
    (tmp_path / "text.jsonl").write_text('{"text": "words to prepare"}\n' * 100)
    (tmp_path / "counter.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    yield tmp_path
    sys.modules.pop("counter", None)


@pytest.mark.parametrize(("words", "named"), CASES, ids=[words for words, _ in CASES])
def test_refused_option_is_named(words, named, whole, folder, rejected):
    name, *options = words.format(run=whole).split()
    assert named in rejected(dispatch.import_command(name), *options)
    left = {x.name for x in folder.iterdir()} - {"__pycache__"}
    assert left == {"text.jsonl", "counter.py"}
