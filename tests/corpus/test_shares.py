"""Shares of a preparation: several processes at once, killed, repeated, and their dataset."""

import contextlib
import json
import shutil
import subprocess
import sys

import pytest
from paths import REPOSITORY
from run_command import run_command
from source_documents import read_files

from anytime_jax.commands import prepare
from anytime_jax.corpus import preparation
from anytime_jax.corpus.file_source import FileSource
from anytime_jax.corpus.preparation import Share
from anytime_jax.errors import InputError, InUseError
from anytime_jax.storage import locks

PARTS, PIECES = 8, 300

# Runs the command with a part per file. Started with "hang", it stops in the middle of a part, once
# an array is written.
PROCESS = """
import sys, time
from anytime_jax.commands import dispatch
from anytime_jax.corpus import file_source, part_tokenization
file_source.PART_BYTES = 1
write_part = part_tokenization.write_part
def hang(*arguments):
    write_part(*arguments)
    print("hangs", flush=True)
    time.sleep(600)
if sys.argv[1] == "hang":
    part_tokenization.write_part = hang
sys.exit(dispatch.run_command("prepare", "anytime prepare", sys.argv[2:]))
"""

pytestmark = pytest.mark.usefixtures("part_per_file")


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
        *(f"--input={text}/*.jsonl", "--validation-fraction=0.1"),
        *(f"--train-vocabulary={PIECES}", "--workers=1"),
        *(f"--output={output}", *more),
    ]


@pytest.fixture
def start(text, tmp_path):
    """Starts a share in a process; none outlives the test."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with contextlib.ExitStack() as stack:

        def start(share, mode="run"):
            arguments = options(text, tmp_path / "output", f"--share={share}")
            command = [sys.executable, "-c", PROCESS, mode, *arguments]
            process = stack.enter_context(subprocess.Popen(command, cwd=REPOSITORY, **pipes))
            stack.callback(process.kill)  # does nothing to a process that has ended
            return process

        yield start


def end(process):
    printed, message = process.communicate(timeout=300)
    assert process.returncode == 0, message
    (line,) = printed.splitlines()
    return line


def prepare_part(text, output, share, **more):
    source = FileSource(f"{text}/*.jsonl", validation_fraction=0.1)
    settings = {"vocabulary": PIECES, "workers": 1, **more}
    return preparation.prepare(source, output, share=share, **settings)


def finished_parts(output):
    return list(output.glob(".preparing/parts/*.json"))


def test_three_shares_at_once_and_one_killed(text, tmp_path, start):
    output = tmp_path / "output"
    hung = start("1/3", "hang")
    assert hung.stdout is not None
    assert hung.stdout.readline() == "hangs\n"
    for other in [start(share) for share in ("0/3", "2/3")]:
        end(other)
    assert len(finished_parts(output)) == PARTS - 3
    assert (output / "train" / "00001" / "c" / "0").exists()  # others leave it alone
    hung.kill()
    hung.communicate()

    end(start("1/3"))
    assert len(finished_parts(output)) == PARTS
    assert not (output / "anytime_jax.json").exists()

    assert run_command(prepare, options(text, output)) == 0
    assert run_command(prepare, options(text, output, "--share=0/3")) == 0
    prepare_part(text, tmp_path / "whole", None)
    assert read_files(output) == read_files(tmp_path / "whole")


def test_share_and_whole_may_run_at_the_same_time(text, tmp_path, start):
    """Both do the part that the share has in hand; it has the same bytes."""
    output = tmp_path / "output"
    hung = start("1/3", "hang")
    assert hung.stdout is not None
    assert hung.stdout.readline() == "hangs\n"
    prepare_part(text, output, None)
    prepare_part(text, tmp_path / "whole", None)
    assert read_files(output) == read_files(tmp_path / "whole")


def test_share_with_other_settings_is_refused(text, tmp_path):
    output = tmp_path / "output"
    prepare_part(text, output, Share(0, 2))
    before = read_files(output)
    for settings in ({"bos": "none"}, {"vocabulary": PIECES + 1}):
        with pytest.raises(InputError, match=next(iter(settings))):
            prepare_part(text, output, Share(1, 2), **settings)
    assert before.items() <= read_files(output).items()
    assert prepare_part(text, output, Share(1, 2)) is None
    assert len(finished_parts(output)) == PARTS


def test_settings_may_change_before_a_part_is_finished(text, tmp_path):
    """The vocabulary of the first settings is not used for the second ones."""
    output = tmp_path / "output"
    with pytest.raises(InputError, match="bos"):
        prepare_part(text, output, Share(1, 2), vocabulary=PIECES + 1, bos="document")
    assert (output / "vocabulary.model").exists()
    prepare_part(text, output, Share(1, 2))
    prepare_part(text, output, None)
    prepare_part(text, tmp_path / "whole", None)
    assert read_files(output) == read_files(tmp_path / "whole")


def test_second_preparation_at_the_same_time_is_refused(text, tmp_path):
    output = tmp_path / "output"
    (output / ".preparing").mkdir(parents=True)
    with (
        locks.hold(output / ".preparing" / "lock", "the first"),
        pytest.raises(InUseError, match=str(output)),
    ):
        prepare_part(text, output, None)


def test_dataset_that_another_process_completes_meanwhile_is_returned(text, tmp_path, monkeypatch):
    source, output = FileSource(str(text), validation_fraction=0.3), tmp_path / "output"
    other = preparation.prepare(source, tmp_path / "other", vocabulary=PIECES, workers=1)
    hold = locks.hold

    def hold_late(*arguments):
        shutil.rmtree(output)
        shutil.copytree(other.path, output)
        return hold(*arguments)

    monkeypatch.setattr(locks, "hold", hold_late)
    assert preparation.prepare(source, output, vocabulary=PIECES, workers=1).parts == other.parts


def test_other_files_are_left_alone(text, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "thesis.tex").write_text("precious")
    for output in (folder, folder / "thesis.tex"):
        with pytest.raises(InputError, match=str(output)):
            prepare_part(text, output, Share(0, 1))
    assert [path.name for path in folder.iterdir()] == ["thesis.tex"]
