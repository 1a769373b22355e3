"""Shares of a preparation: real processes at once, killed, refused, and what they make together."""

import contextlib
import itertools
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from run_command import run_command

from anytime_jax.commands import prepare
from anytime_jax.data import preparation, sources
from anytime_jax.data.preparation import prepare_share
from anytime_jax.data.preparation_lock import Share, claimed
from anytime_jax.data.sources import FileSource
from anytime_jax.errors import InputError

REPOSITORY = Path(__file__).parents[2]
PARTS, LENGTH, PIECES = 8, 32, 300

# A process of its own does what `python -m` would, with a part per file and small shards. Where it
# is told to hang, it says so and hangs in the middle of a part, as one that is about to be killed.
PROCESS = f"""
import sys, time
from anytime_jax.commands import dispatch
from anytime_jax.data import preparation, preparation_jobs, sources
sources.PART_BYTES, preparation._SHARD_BYTES = 1, {66 * 25}
batches = preparation_jobs._batches
def hang(texts, size):
    yield next(batches(texts, size))
    print("hangs", flush=True)
    time.sleep(100)
if sys.argv[1] == "hang":
    preparation_jobs._batches = hang
sys.exit(dispatch.run("prepare", "python -m anytime_jax prepare", sys.argv[2:]))
"""


@pytest.fixture
def small(monkeypatch):
    """A part per file and a shard per few windows, so that small texts have many of both."""
    monkeypatch.setattr(sources, "PART_BYTES", 1)
    monkeypatch.setattr(preparation, "_SHARD_BYTES", 66 * 25)


@pytest.fixture
def text(tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    for part in range(PARTS):
        lines = [json.dumps({"text": f"{part}.{i} " + "words " * (i % 13)}) for i in range(400)]
        (folder / f"{part}.jsonl").write_text("\n".join(lines))
    return folder


def options(text, output, *more):
    return [
        *("--source=json", f"--input={text}/*.jsonl", "--validation-fraction=0.1"),
        *(f"--train-vocabulary={PIECES}", f"--length={LENGTH}", "--workers=1"),
        *(f"--output={output}", *more),
    ]


@pytest.fixture
def start(text, tmp_path):
    """Starts a share in a process; none outlives the test."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with contextlib.ExitStack() as stack:

        def start(share, how="go"):
            given = options(text, tmp_path / "output", f"--share={share}")
            command = [sys.executable, "-c", PROCESS, how, *given]
            process = stack.enter_context(subprocess.Popen(command, cwd=REPOSITORY, **pipes))
            stack.callback(process.kill)  # nothing to a process that has ended
            return process

        yield start


def end(process):
    printed, message = process.communicate(timeout=60)
    assert process.returncode == 0, message
    (line,) = printed.splitlines()
    return line


def do(text, output, share, **more):
    source = FileSource("json", f"{text}/*.jsonl", validation_fraction=0.1)
    settings = {"length": LENGTH, "vocabulary": PIECES, "workers": 1, **more}
    return prepare_share(source, output, share=share, **settings)


def files_of(output):
    return {path.name: path.read_bytes() for path in output.iterdir()}


def test_three_at_once_and_one_killed_make_the_dataset(text, tmp_path, small, start, capfd):
    output = tmp_path / "output"
    hung = start("1/3", "hang")
    assert hung.stdout is not None
    assert hung.stdout.readline() == "hangs\n"
    others = [start(share) for share in ("0/3", "2/3")]
    assert run_command(prepare, options(text, output, "--share=1/3")) == 2
    assert run_command(prepare, options(text, output)) == 2
    for line in capfd.readouterr().err.splitlines():
        assert "is being prepared by another process; wait for it or stop it" in line
    lines = [end(other) for other in others]
    assert any("its parts are tokenised, 3 of 8 are left to others" in line for line in lines)
    assert len(list(output.glob(".preparing/tokens/*.json"))) == PARTS - 3
    written = list((output / ".preparing" / "share-1-of-3").glob("*.tmp"))
    assert len(written) == 2  # nobody has removed what the live one writes
    hung.kill()
    hung.communicate()

    again = [start(f"{index}/3") for index in range(3)]
    lines = [end(process) for process in again]
    assert not any(path.exists() for path in written)
    assert len(list(output.glob(".preparing/tokens/*.json"))) == PARTS
    assert any("files of windows are written" in line for line in lines)
    assert not (output / "anytime_jax.json").exists()

    assert run_command(prepare, options(text, output)) == 0
    assert run_command(prepare, options(text, output, "--share=0/3")) == 0
    assert "already prepared" in capfd.readouterr().out
    assert run_command(prepare, options(text, tmp_path / "whole")) == 0
    assert files_of(output) == files_of(tmp_path / "whole")


@pytest.mark.slow
def test_kills_at_any_moment_cost_nothing(text, tmp_path, small, start):
    """Twelve rounds of three shares, one of them killed later and later, in any phase."""
    killed = 0
    for round_ in range(12):
        shares = [start(f"{index}/3") for index in range(3)]
        victim = shares[round_ % 3]
        time.sleep(0.8 + 0.15 * round_)
        victim.kill()
        victim.communicate()
        killed += victim.returncode == -signal.SIGKILL
        for share in shares:
            if share is not victim:
                end(share)
        for file in list(tmp_path.glob("output/.preparing/tokens/*.json"))[round_ % 3 :: 3]:
            file.unlink()  # so that the next round has something to do
    assert killed > 3
    for output in ("output", "whole"):
        assert run_command(prepare, options(text, tmp_path / output)) == 0
    assert files_of(tmp_path / "output") == files_of(tmp_path / "whole")


def test_shares_divide_the_work_and_write_the_windows(text, tmp_path, small):
    output = tmp_path / "output"
    tokens, shards = output / ".preparing" / "tokens", output / ".preparing" / "shards"
    left = [do(text, output, Share(index, 3)) for index in range(3)]
    assert [(each.parts, each.parts_left) for each in left[:2]] == [(8, 5), (8, 2)]
    once = [*tokens.iterdir(), output / "vocabulary.model"]
    done = [path.stat().st_mtime_ns for path in once]
    assert left[2].parts_left == 0
    count = left[2].shards
    assert left[2].shards_left == count - len(range(2, count, 3)) > 0
    assert len(list(shards.glob("token*.json"))) == len(range(2, count, 3))
    assert do(text, output, Share(1, 3)).shards_left == len(range(0, count, 3))
    assert do(text, output, Share(0, 3)).shards_left == 0
    assert [path.stat().st_mtime_ns for path in once] == done  # no file was written twice


def test_shares_of_other_counts_agree(text, tmp_path, small):
    for share in [Share(0, 2), Share(1, 3), Share(2, 3), Share(0, 3)]:
        left = do(text, tmp_path / "output", share)
    assert (left.parts_left, left.shards_left > 0) == (0, True)
    for output in ("output", "whole"):
        assert run_command(prepare, options(text, tmp_path / output)) == 0
    assert files_of(tmp_path / "output") == files_of(tmp_path / "whole")


def test_other_settings_and_other_input_are_refused(text, tmp_path, small):
    output = tmp_path / "output"
    do(text, output, Share(0, 2))
    plan = json.loads((output / ".preparing" / "plan.json").read_text())
    before = sorted(output.rglob("*"))
    with pytest.raises(InputError, match=r"length 32 \(asked: 16\)"):
        do(text, output, Share(1, 2), length=16)
    (text / "9.jsonl").write_text('{"text": "one more"}')
    with (
        claimed(output, plan, Share(0, 2)),
        pytest.raises(InputError, match="other files, or files of other sizes"),
    ):
        do(text, output, Share(1, 2))
    assert set(before) <= set(output.rglob("*"))
    joined = []

    def join(progress):
        if not joined:
            joined.append(do(text, output, Share(0, 2)))

    # Nobody else is at work now: what this share sees is what others must see who join it.
    assert do(text, output, Share(1, 2), progress=join).parts_left == 0
    assert joined[0].parts == PARTS + 1


def test_bad_text_leaves_the_work_of_others(text, tmp_path, small):
    output = tmp_path / "output"
    bad = text / "1.jsonl"
    good = bad.read_text()
    bad.write_text("no record")
    source = FileSource("json", f"{text}/*.jsonl", validation_fraction=0.1)
    plan = {"length": LENGTH, "vocabulary": f"trained, {PIECES} pieces", **source.settings()}
    with claimed(output, plan, Share(0, 2)) as claim:  # at work, with nothing done yet
        with pytest.raises(InputError, match=r"1\.jsonl line 1"):
            do(text, output, Share(1, 2))
        assert (claim.work / "plan.json").exists()
    with pytest.raises(InputError, match=r"1\.jsonl line 1"):
        do(text, output, Share(1, 2))
    assert not output.exists() or not any(output.iterdir())
    bad.write_text(good)
    do(text, output, Share(1, 2))


@pytest.mark.parametrize("share", ["3/2", "2/2", "a/b", "-1/4", "0/0", "", "1", "1/2/3", "1 /2"])
def test_what_is_no_share_is_one_line_and_status_2(text, tmp_path, capsys, share):
    assert run_command(prepare, options(text, tmp_path / "output", f"--share={share}")) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"error: share {share} is none; give I/N with I from 0 to N - 1, such as 0/64"
    assert not (tmp_path / "output").exists()


def test_a_share_is_nothing_to_verify(tmp_path, capsys):
    assert run_command(prepare, ["--verify", "--share=0/2", f"--output={tmp_path}"]) == 2
    assert "--share means nothing to --verify" in capsys.readouterr().err


def test_every_job_is_in_one_share():
    for count, jobs in itertools.product(range(1, 6), range(12)):
        shares = [Share(index, count).of(range(jobs)) for index in range(count)]
        assert sorted(itertools.chain(*shares)) == list(range(jobs))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
