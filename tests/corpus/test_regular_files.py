"""Pipes and other things that are no files: refused, rather than read for ever."""

import os
import socket
import threading

import pytest

from anytime_jax.corpus.regular_files import read_file
from anytime_jax.corpus.sources import FileSource
from anytime_jax.corpus.tfds_source import TfdsSource
from anytime_jax.corpus.vocabulary import load_vocabulary
from anytime_jax.errors import InputError


@pytest.fixture
def make_pipe():
    """Makes a named pipe with a writer, so that a reader fails instead of waiting for ever."""
    pipes = []

    def make(path):
        os.mkfifo(path)
        threading.Thread(target=lambda: open(path, "wb").close(), daemon=True).start()
        pipes.append(path)
        return path

    yield make
    for path in pipes:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))  # ends the writer


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("a.txt", lambda path: FileSource("folder", str(path.parent)).parts()),
        ("a.jsonl", lambda path: FileSource("json", str(path)).parts()),
        ("a.json.gz", lambda path: FileSource("json", f"{path.parent}/*.gz").parts()),
        ("dataset_info.json", lambda path: TfdsSource(str(path.parent)).parts()),
        ("v.model", load_vocabulary),
        ("tokenizer.json", load_vocabulary),
    ],
)
def test_named_pipe_is_refused(name, read, tmp_path, make_pipe):
    path = make_pipe(tmp_path / name)
    with pytest.raises(InputError, match=f"{path} is a named pipe"):
        read(path)


def test_socket_device_and_directory_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        for path, kind in (("socket", "a socket"), ("/dev/zero", "a device"), (".", "a directory")):
            with pytest.raises(InputError, match=f"{path} is {kind} where a file is expected"):
                read_file(path)


def test_empty_path_is_refused(tmp_path, monkeypatch):
    """It would be the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(InputError, match="input is empty"):
        FileSource("folder", "").parts()
