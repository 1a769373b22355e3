"""Fake commands for the scripts of launch/, which run in a real bash.

Test files import the fixtures they use.
"""

import os
import signal
import subprocess
import time

import pytest
from paths import REPOSITORY

LAUNCH = REPOSITORY / "launch"

# Each appends its arguments to a file and behaves as the variable HOW specifies.
RECORDS = 'echo "$(basename "$0") $*" >>"$CALLS"\n'
PYTHON = """
index=0
for given; do
  if [[ $given == --process=* ]]; then index=${given#*=}; fi
done
echo "CUDA=${CUDA_VISIBLE_DEVICES-none} XLA=${XLA_FLAGS-} $*" >"process-$index.txt"
printenv RESTARTS >"restarts-$index.txt"
echo "process $index prints"
sleep 300 >/dev/null 2>&1 & # a worker, which must not be left behind
trap "kill $!" EXIT
trap 'echo terminated >>"process-$index.txt"; exit "${ANSWER:-0}"' TERM
trap 'echo interrupted >>"process-$index.txt"' INT
touch "ready-$index"
case "$HOW" in
  "fails $index") sleep 0.1; exit 3 ;;
  "loses $index once") [[ -e lost ]] && exit 0; touch lost; kill %1; kill -KILL $$ ;;
  "loses $index") kill %1; kill -KILL $$ ;;
  "loses "*" once") [[ -e lost ]] && exit 0 ;;
  "ends "*) exit "${HOW#ends }" ;;
esac
for _ in {1..5000}; do sleep 0.05; done
"""
SRUN = """
touch ready-0
case "$HOW" in
  "ends "*) exit "${HOW#ends }" ;;
  "loses "*) [[ -e lost ]] && exit 0; touch lost; exit "${HOW#loses }" ;;
esac
trap 'echo "killed the tasks" >>"$CALLS"; exit 137' TERM
for _ in {1..5000}; do
  sleep 0.05
  if [[ -e asked ]]; then exit "${ANSWER:-0}"; fi
done
"""
SBATCH = """
count=$(grep -c '^sbatch' "$CALLS")
echo "$((100 * count));cluster"
"""
COMMANDS = {
    "python": PYTHON,
    "srun": RECORDS + SRUN,
    "scancel": RECORDS + "touch asked\n",
    "scontrol": RECORDS,
    "sbatch": RECORDS + SBATCH,
}


def write_command(path, text):
    path.write_text(f"#!/usr/bin/env bash\n{text}")
    path.chmod(0o755)


@pytest.fixture(name="bin_path")
def bin_path_fixture(tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in COMMANDS.items():
        write_command(folder / name, text)
    return folder


@pytest.fixture(name="start")
def start_fixture(bin_path, tmp_path):
    """Starts a script in its own folder, and ends it with the test."""
    started = []

    # A shell that starts the tests in the background makes their processes ignore Ctrl-C.
    heard = signal.signal(signal.SIGINT, signal.default_int_handler)

    def start(script, *arguments, **variables):
        others = ("SLURM_", "CUDA_", "ANYTIME_JAX_")
        clean = {k: v for k, v in os.environ.items() if not k.startswith(others)}
        changes = {
            "PATH": f"{bin_path}:{os.environ['PATH']}",
            "JAX_PLATFORMS": "",
            "XLA_FLAGS": "",
            "HOW": "waits",
            "LOGS": str(tmp_path / "logs"),
            "CALLS": str(tmp_path / "calls.txt"),
        }
        process = subprocess.Popen(
            ["bash", str(LAUNCH / script), *arguments],
            cwd=tmp_path, env=clean | changes | variables, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
    signal.signal(signal.SIGINT, heard)


def end(process):
    output, _ = process.communicate(timeout=240)  # by themselves the fake commands take longer
    return process.returncode, output


def wait_until(condition, seconds=240):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def wait_for(folder, *names):
    wait_until(lambda: all((folder / name).exists() for name in names))
    time.sleep(0.05)


def read_calls(folder):
    file = folder / "calls.txt"
    return file.read_text().splitlines() if file.exists() else []
