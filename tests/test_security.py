"""What a run must not do: reach for the network, write down secrets, run what data or files say."""

import os
import pathlib
import subprocess
import sys

import pytest
from forked_starts import environment
from small_run import CHANGES, write_config

SECRETS = {
    "WANDB_API_KEY": "secret-of-wandb-0123456789",
    "AWS_SECRET_ACCESS_KEY": "secret-of-a-cloud-0123456789",
    "HF_TOKEN": "secret-of-a-hub-0123456789",
}

# Python runs this before the program, in the run and in the workers that it starts.
WATCH = """
import os, socket

def refuse(self, address, *rest):
    with open(os.environ["WATCHED"], "a") as file:
        print("connect", address, file=file)
    raise OSError("no network here")

def refuse_name(*given, **named):
    return refuse(None, given)

socket.socket.connect = socket.socket.connect_ex = refuse
socket.getaddrinfo = socket.gethostbyname = refuse_name
"""


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A run with data of its own, in an environment of secrets: its folder, and what it said."""
    folder = tmp_path_factory.mktemp("watched")
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(WATCH)
    place = folder / "place"
    place.mkdir()
    changes = {**CHANGES, "stop": "1x", "log__tensorboard": True}
    file = write_config(folder / "config.py", place / "run", place / "data", **changes)
    settings = environment(folder) | SECRETS | {"WATCHED": str(folder / "connections")}
    settings["PYTHONPATH"] += f"{os.pathsep}{folder / 'site'}"
    ended = subprocess.run(
        [sys.executable, "-m", "anytime_jax.main", f"--config={file}"],
        cwd=place, env=settings, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return folder, ended.stdout + ended.stderr


@pytest.mark.slow
def test_nothing_is_fetched(watched):
    assert not (watched[0] / "connections").exists()
    assert "prepared" in watched[1]


@pytest.mark.slow
def test_no_secret_is_written_or_said(watched):
    folder, said = watched
    files = [path for path in (folder / "place").rglob("*") if path.is_file()]
    assert {"run.json", "0000.jsonl", "metadata", "curves.png"} <= {path.name for path in files}
    for secret in SECRETS.values():
        assert secret not in said
        assert not [path for path in files if secret.encode() in path.read_bytes()]


@pytest.mark.slow
def test_nothing_is_written_outside_the_run_and_the_data(watched):
    folder, _ = watched
    assert {path.name for path in (folder / "place").iterdir()} == {"run", "data"}
    names = {path.name for path in folder.iterdir()}
    assert names <= {"place", "site", "config.py", "compiled", "__pycache__"}


@pytest.mark.slow
def test_what_a_checkpoint_holds_is_no_code(watched):
    """A pickle begins with its protocol and ends with a stop; zipped ones with PK."""
    files = (watched[0] / "place" / "run").rglob("*")
    for path in (path for path in files if path.is_file()):
        content = path.read_bytes()
        assert not (content[:1] == b"\x80" and content[1:2] <= b"\x05" and content[-1:] == b".")
        assert content[:2] != b"PK"


def test_the_watch_sees(tmp_path):
    """The test above would notice: a connection is written down."""
    (tmp_path / "sitecustomize.py").write_text(WATCH)
    code = (
        "import socket\ntry:\n    socket.create_connection(('localhost', 9))\nexcept OSError: pass"
    )
    log = tmp_path / "log"
    settings = os.environ | {"PYTHONPATH": str(tmp_path), "WATCHED": str(log)}
    subprocess.run([sys.executable, "-c", code], env=settings, check=True)
    assert pathlib.Path(log).read_text()
