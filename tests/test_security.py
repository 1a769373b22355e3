"""Security of a run: no network, no secrets in its files, no code in its checkpoints."""

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

# Runs before the program, in the run and its workers.
SITECUSTOMIZE = """
import os, socket

def refuse(self, address, *rest):
    with open(os.environ["CONNECTION_LOG"], "a") as file:
        print("connect", address, file=file)
    raise OSError("no network here")

def refuse_name(*args, **kwargs):
    return refuse(None, args)

socket.socket.connect = socket.socket.connect_ex = refuse
socket.getaddrinfo = socket.gethostbyname = refuse_name
"""


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    """A run that prepares its data in an environment with secrets: its directory, its output."""
    folder = tmp_path_factory.mktemp("watched")
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(SITECUSTOMIZE)
    place = folder / "place"
    place.mkdir()
    changes = {**CHANGES, "stop": "1x", "log__tensorboard": True}
    file = write_config(folder / "config.py", place / "run", place / "data", **changes)
    settings = environment(folder) | SECRETS | {"CONNECTION_LOG": str(folder / "connections")}
    settings["PYTHONPATH"] += f"{os.pathsep}{folder / 'site'}"
    process = subprocess.run(
        [sys.executable, "-m", "anytime_jax.main", f"--config={file}"],
        cwd=place, env=settings, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    return folder, process.stdout + process.stderr


@pytest.mark.slow
def test_run_makes_no_connection(finished_run):
    assert not (finished_run[0] / "connections").exists()
    assert "prepared" in finished_run[1]


@pytest.mark.slow
def test_secrets_are_not_written_or_printed(finished_run):
    folder, output = finished_run
    files = [path for path in (folder / "place").rglob("*") if path.is_file()]
    assert {"run.json", "0000.jsonl", "metadata", "curves.png"} <= {path.name for path in files}
    for secret in SECRETS.values():
        assert secret not in output
        assert not [path for path in files if secret.encode() in path.read_bytes()]


@pytest.mark.slow
def test_run_writes_only_run_and_data_directories(finished_run):
    folder, _ = finished_run
    assert {path.name for path in (folder / "place").iterdir()} == {"run", "data"}
    names = {path.name for path in folder.iterdir()}
    assert names <= {"place", "site", "config.py", "compiled", "__pycache__"}


@pytest.mark.slow
def test_run_directory_has_no_pickle_or_zip(finished_run):
    """A pickle begins with its protocol and ends with a stop; zip files begin with PK."""
    files = (finished_run[0] / "place" / "run").rglob("*")
    for path in (path for path in files if path.is_file()):
        content = path.read_bytes()
        assert not (content[:1] == b"\x80" and content[1:2] <= b"\x05" and content[-1:] == b".")
        assert content[:2] != b"PK"


def test_connections_are_logged(tmp_path):
    """A connection would be noticed."""
    (tmp_path / "sitecustomize.py").write_text(SITECUSTOMIZE)
    code = (
        "import socket\ntry:\n    socket.create_connection(('localhost', 9))\nexcept OSError: pass"
    )
    log = tmp_path / "log"
    settings = os.environ | {"PYTHONPATH": str(tmp_path), "CONNECTION_LOG": str(log)}
    subprocess.run([sys.executable, "-c", code], env=settings, check=True)
    assert pathlib.Path(log).read_text()
