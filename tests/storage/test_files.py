"""Files and directories on a disk; `test_paths.py` has those in buckets."""

import socket
from pathlib import Path

import pytest

from anytime_jax.errors import InputError
from anytime_jax.storage.files import free_bytes, read_file


def test_socket_device_and_directory_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        for path, kind in (("socket", "a socket"), ("/dev/zero", "a device"), (".", "a directory")):
            with pytest.raises(InputError, match=f"{path} is {kind} where a file is expected"):
                read_file(Path(path))


def test_free_bytes_accepts_directories_that_do_not_exist(tmp_path):
    assert free_bytes(tmp_path / "not" / "there") == pytest.approx(free_bytes(tmp_path), rel=0.01)
    assert free_bytes(Path("/")) > 0
