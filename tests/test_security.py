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


@pytest.mark.slow
def test_run_with_secrets_connects_nowhere_and_leaves_no_secret_or_code(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(SITECUSTOMIZE)
    place = tmp_path / "place"
    place.mkdir()
    changes = {**CHANGES, "stop": "1x", "log__trackers": {"tensorboard": {}}}
    file = write_config(tmp_path / "config.py", place / "run", place / "builtin", **changes)
    settings = environment() | SECRETS | {"CONNECTION_LOG": str(tmp_path / "connections")}
    settings["PYTHONPATH"] += f"{os.pathsep}{tmp_path / 'site'}"
    process = subprocess.run(
        [sys.executable, "-m", "anytime_jax.main", f"--config={file}"],
        cwd=place, env=settings, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    output = process.stdout + process.stderr
    assert "prepared" in output
    assert not (tmp_path / "connections").exists()

    # It writes its own two directories alone.
    assert {path.name for path in place.iterdir()} == {"run", "builtin"}
    names = {path.name for path in tmp_path.iterdir()}
    assert names <= {"place", "site", "config.py", "compiled", "__pycache__"}

    files = [path for path in place.rglob("*") if path.is_file()]
    assert {"run.json", "0000.jsonl", "metadata", "curves.png"} <= {path.name for path in files}
    for secret in SECRETS.values():
        assert secret not in output
        assert not [path for path in files if secret.encode() in path.read_bytes()]

    # A pickle begins with its protocol and ends with a stop; zip files begin with PK.
    for path in files:
        if path.is_relative_to(place / "run"):
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
