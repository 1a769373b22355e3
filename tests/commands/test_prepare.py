"""The command line: what it prepares, what it refuses, and that a kill costs nothing."""

import inspect
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from run_command import run_command

from anytime_jax.commands import prepare
from anytime_jax.data.dataset import load_dataset

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def text(tmp_path):
    lines = [json.dumps({"text": f"{i} " + "words to prepare " * 20}) for i in range(100)]
    path = tmp_path / "text.jsonl"
    path.write_text("\n".join(lines))
    return path


def test_prepares_and_says_so(text, tmp_path, capsys):
    output = tmp_path / "output"
    command = [
        "--source=json",
        f"--input={text}",
        "--validation-fraction=0.2",
        "--train-vocabulary=300",
        "--length=32",
        f"--output={output}",
    ]
    assert run_command(prepare, command) == 0
    info = load_dataset(output)
    printed = capsys.readouterr()
    assert "tokenising: 1/1 done" in printed.err
    summary = printed.out.splitlines()
    assert len(summary) == 3
    for line, (split, counts) in zip(summary, info.splits.items(), strict=False):
        assert line.startswith(f"{split}: {counts.documents} documents, {counts.tokens:,} tokens")
    assert summary[-1].startswith("ready in ")
    assert run_command(prepare, command) == 0
    assert f"already prepared: {output}" in capsys.readouterr().out


def test_builtin_is_the_shortest_command(tmp_path):
    output = tmp_path / "output"
    command = ["--source=builtin", "--megabytes=0.5", "--train-vocabulary=400"]
    assert run_command(prepare, [*command, "--length=64", f"--output={output}"]) == 0
    assert load_dataset(output).settings["validation_fraction"] == 0.05


def test_c4_with_the_vocabulary_of_t5(c4_data, tmp_path):
    vocabulary = c4_data / "t5_cc_all_32000_100extra.model"
    documents = c4_data / "c4-sample.*.json.gz"
    command = ["--source=json", f"--input={documents}", f"--vocabulary={vocabulary}"]
    rest = ["--validation-fraction=0.2", "--length=128", f"--output={tmp_path / 'c4'}"]
    assert run_command(prepare, [*command, *rest]) == 0
    info = load_dataset(tmp_path / "c4")
    assert (info.vocab_size, info.token_dtype) == (32_100, "uint16")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--source=json"], "--source=json needs --input"),
        (["--source=builtin", "--input=x"], "--input means nothing to --source=builtin"),
        (["--source=json", "--input=x", "--split=train"], "--split means nothing"),
        (["--source=tfds", "--input=x", "--validation-input=y"], "means nothing to --source=tfds"),
        (["--source=folder", "--input=/nowhere"], "/nowhere names no file"),
        (
            ["--source=json", "--input=x", "--validation-input=y", "--validation-fraction=0.1"],
            "exclude each other",
        ),
        (["--source=builtin", "--validation-fraction=2"], "fraction 2.0"),
        (["--source=builtin", "--length=0"], "length 0"),
        (["--source=builtin", "--workers=0"], "0 workers"),
    ],
)
def test_bad_input_is_one_line_and_status_2(tmp_path, capsys, options, message):
    command = [*options, "--train-vocabulary=400", f"--output={tmp_path / 'output'}"]
    assert run_command(prepare, command) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
    assert run_command(prepare, [*command, "--debug"]) == 2
    assert capsys.readouterr().err.startswith("Traceback")


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        (["--source=json", "--input=gs://bucket/c4/*.json.gz"], "gs:// with gcsfuse"),
        (["--source=folder", "--input=text.jsonl", "--validation-input=s3://b/c"], "mountpoint-s3"),
        (["--source=tfds", "--input=gs://bucket/c4/en/3.1.0"], "gs:// with gcsfuse"),
        (["--source=json", "--input=text.jsonl", "--vocabulary=gs://b/t5.model"], "copy the file"),
        (["--source=json", "--input=text.jsonl", "--output=gs://b/c"], "prepare on a disk, then"),
    ],
)
def test_a_bucket_is_no_path(text, tmp_path, capsys, monkeypatch, options, remedy):
    monkeypatch.chdir(tmp_path)
    trains = not any(option.startswith("--vocabulary") for option in options)
    given = ["--output=output", *["--train-vocabulary=300"] * trains, *options]
    assert run_command(prepare, given) == 2
    (line,) = capsys.readouterr().err.splitlines()
    address = next(option.partition("=")[2] for option in options if "://" in option)
    assert line.startswith(f"error: {address} is an address, not a local path; ")
    assert remedy in line
    assert list(tmp_path.iterdir()) == [text]


def test_a_bucket_is_nothing_to_verify(capsys):
    assert run_command(prepare, ["--verify", "--output=s3://bucket/data"]) == 2
    assert "error: s3://bucket/data is an address" in capsys.readouterr().err


def test_usage_errors_are_status_2_too(capsys):
    words = ["--source=builtin", "--output=x", "--len=3", "--train-vocabulary=400"]
    assert run_command(prepare, words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--len=3" in line


def start(source: Path, output: Path, workers: int) -> subprocess.Popen:
    command = [
        *(sys.executable, "-m", "anytime_jax", "prepare", "--source=folder", f"--input={source}"),
        *("--train-vocabulary=400", "--validation-fraction=0.3", "--length=1024"),
        *(f"--output={output}", f"--workers={workers}"),
    ]
    # A process group of its own: a signal to it is what Ctrl-C or a kill of the job sends.
    return subprocess.Popen(
        command,
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(pattern: str, output: Path, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 60
    while not any((output / ".preparing").glob(pattern)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)


def files_of(output: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in output.iterdir()}


@pytest.mark.slow
def test_kills_cost_nothing(tmp_path):
    """Real processes, killed while tokenising and at its end, by SIGKILL and by Ctrl-C."""
    source, output = tmp_path / "text", tmp_path / "output"
    source.mkdir()
    page = inspect.getsource(inspect)
    for number in range(4):  # each file is a part
        lines = [json.dumps({"text": f"{number} {i}\n{page}"}) for i in range(33)]
        (source / f"{number}.jsonl").write_text("\n".join(lines))

    killed = start(source, output, workers=2)
    wait_for("parts/*.json", output, killed)
    killed.kill()  # the parent alone: its workers must notice
    killed.communicate()
    time.sleep(0.5)
    assert len(list(output.glob(".preparing/parts/*.json"))) < 4

    interrupted = start(source, output, workers=2)
    assert interrupted.stderr is not None
    assert "tokenising" in interrupted.stderr.readline()  # workers are about to start
    os.killpg(interrupted.pid, signal.SIGINT)
    _, message = interrupted.communicate(timeout=60)
    assert interrupted.returncode == 130, message
    assert "Traceback" not in message

    killed = start(source, output, workers=1)
    wait_for("parts/000002.json", output, killed)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()

    last = start(source, output, workers=3)
    printed, message = last.communicate(timeout=60)
    assert last.returncode == 0, message
    assert "tokenising: 4/4" in message
    assert "ready in" in printed

    whole = start(source, tmp_path / "whole", workers=1)
    whole.communicate(timeout=60)
    assert files_of(output) == files_of(tmp_path / "whole")
