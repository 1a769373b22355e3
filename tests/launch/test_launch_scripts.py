"""launch/: processes on one machine, a TPU slice, pods and the image."""

import contextlib
import math
import os
import pathlib
import re
import signal
import time

import pytest
import yaml
from fake_commands import (
    LAUNCH,
    RECORDS,
    bin_path_fixture,  # noqa: F401
    end,
    read_calls,
    start_fixture,  # noqa: F401
    wait_for,
    wait_until,
    write_command,
)
from paths import REPOSITORY

from anytime_jax.commands import config_file
from anytime_jax.config import run_config
from anytime_jax.config.kinds import NOBODY
from anytime_jax.storage import paths

# Several processes on one machine


def test_each_process_gets_arguments_index_and_gpus(start, tmp_path):
    gpus = {"CUDA_VISIBLE_DEVICES": "3,5,6,7"}
    status, output = end(start("local.sh", "2", "--", "--config=a b", HOW="ends 0", **gpus))
    assert status == 0
    assert "process 0 prints" in output
    assert "process 1 prints" not in output
    assert (tmp_path / "logs" / "process-1.log").read_text() == "process 1 prints\n"
    lines = [(tmp_path / f"process-{i}.txt").read_text().strip() for i in range(2)]
    port = re.search(r"localhost:(\d+)", lines[0])[1]
    assert 20000 <= int(port) < 32768
    for i, shown in enumerate(["3,5", "6,7"]):
        assert lines[i] == (
            f"CUDA={shown} XLA= -m anytime_jax.main --config=a b --coordinator=localhost:{port} "
            f"--processes=2 --process={i}"
        )


@pytest.mark.parametrize(
    ("arguments", "variables", "message"),
    [
        (["0", "--"], {}, "number of processes"),
        (["2", "--"], {"CUDA_VISIBLE_DEVICES": "0,1,2"}, "3 GPUs"),
        (["2", "--"], {"RESTARTS": "ever"}, "RESTARTS=ever"),
    ],
)
def test_bad_input_is_one_line(arguments, variables, message, start, tmp_path):
    status, output = end(start("local.sh", *arguments, **variables))
    assert (status, output.count("\n")) == (2, 1)
    assert output.startswith("error: ")
    assert message in output
    assert not list(tmp_path.glob("process-*"))


def check_none_runs_in(folder):
    """No process works in a folder, once the kernel has removed the dead."""

    def command_lines():
        for link in pathlib.Path("/proc").glob("[0-9]*/cwd"):
            with contextlib.suppress(OSError):  # ended, or another's
                if link.readlink() == folder:
                    yield (link.parent / "cmdline").read_text().replace("\0", " ")

    wait_until(lambda: not list(command_lines()))


def test_failure_of_one_kills_the_others_after_a_grace_period(start, tmp_path):
    status, output = end(start("local.sh", "3", "--", HOW="fails 1", GRACE="1"))
    assert status == 3
    assert "process 1 prints" in output  # of the one that failed, the end of its log
    check_none_runs_in(tmp_path)
    assert "terminated" not in (tmp_path / "process-0.txt").read_text()


@pytest.mark.parametrize(
    ("how", "status", "starts"),
    [("loses 1", 137, 3), ("ends 75", 75, 3), ("loses 1 once", 0, 2)],
)
def test_lost_process_starts_all_again(how, status, starts, start, tmp_path):
    variables = {"HOW": how, "RESTARTS": "2", "GRACE": "0"}
    ended, output = end(start("local.sh", "2", "--", **variables))
    assert ended == status
    assert output.count("all 2 are started again") == starts - 1
    assert (tmp_path / "logs" / "process-1.log").read_text().count("prints") == starts


def test_signal_reaches_each_process_once(start, tmp_path):
    process = start("local.sh", "2", "--", ANSWER="5")
    wait_for(tmp_path, "ready-0", "ready-1")
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    assert end(process)[0] == 5
    for i in range(2):
        assert (tmp_path / f"process-{i}.txt").read_text().count("terminated") == 1


def test_second_interrupt_kills(start, tmp_path):
    process = start("local.sh", "2", "--")
    wait_for(tmp_path, "ready-0", "ready-1")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    texts = [tmp_path / f"process-{i}.txt" for i in range(2)]
    wait_until(lambda: all("interrupted" in x.read_text() for x in texts))
    time.sleep(0.5)  # a second signal would arrive by now
    assert process.poll() is None
    assert [text.read_text().count("interrupted") for text in texts] == [1, 1]
    os.killpg(process.pid, signal.SIGINT)
    assert end(process)[0] == 130
    check_none_runs_in(tmp_path)


# A TPU slice

# Runs the commands for the workers, each in a home directory of its own.
GCLOUD = (
    RECORDS.replace("$*", "${*%%--command=*}")
    + """
command=${*: -1}
workers=(0 1)
if [[ " $* " == *" --worker=0 "* ]]; then workers=(0); fi
for worker in "${workers[@]}"; do
  mkdir -p "host-$worker/anytime_jax/.venv/bin"
  if [[ $4 == scp ]]; then
    cp "$5" "host-$worker"
    continue
  fi
  ln -sf "$WORKER_PYTHON" "host-$worker/anytime_jax/.venv/bin/python"
  ln -sfn "$SCRIPTS" "host-$worker/anytime_jax/launch"
  (cd "host-$worker" && bash -c "${command#--command=}") || exit
done
"""
)


@pytest.fixture
def tpu_vm(start, bin_path):
    """Runs tpu_vm.sh with two workers on this machine."""
    write_command(bin_path / "gcloud", GCLOUD)
    place = {"NAME": "mine", "ZONE": "here-a"}
    place |= {"WORKER_PYTHON": str(bin_path / "python"), "SCRIPTS": str(LAUNCH)}
    return lambda *arguments, **variables: end(start("tpu_vm.sh", *arguments, **place, **variables))


def test_slice_trains_saves_and_resumes(tpu_vm, tmp_path):
    hosts = [tmp_path / f"host-{i}" / "anytime_jax" for i in range(2)]
    words = ["--config=c.py", "--config.run_dir=gs://mine/run", "--config.name=a $b 'c'"]
    for _ in range(2):
        assert tpu_vm("run", *words, RESTARTS="25")[0] == 0
        for host in hosts:
            wait_for(host, "ready-0")
            (host / "ready-0").unlink()
            line = (host / "process-0.txt").read_text()
            assert line.endswith(f"-m anytime_jax.main --cluster {' '.join(words)}\n")
            assert (host / "restarts-0.txt").read_text() == "25\n"
        assert tpu_vm("run", "--config=c.py")[0] == 2  # a run is in progress
        assert tpu_vm("stop")[0] == 0
        for host in hosts:
            assert (host / "process-0.txt").read_text().count("terminated") == 1
    assert tpu_vm("walk")[0] == 2
    ssh = "gcloud compute tpus tpu-vm ssh mine --zone=here-a --worker=all "
    assert set(read_calls(tmp_path)) == {ssh}


@pytest.mark.parametrize(("how", "status", "starts"), [("ends 75", 75, 3), ("ends 2", 2, 1)])
def test_host_of_a_slice_starts_a_lost_process_again(
    how, status, starts, start, bin_path, tmp_path
):
    (tmp_path / ".venv").symlink_to(tmp_path)  # with the fake python in bin
    host = start("tpu_vm_host.sh", "--config=c.py", HOW=how, RESTARTS="2", PAUSE="0")
    ended, output = end(host)
    assert (ended, output.count("process 0 prints")) == (status, starts)


# Makes a pip that records its arguments, and an archive of one file.
VENV_PYTHON = """
if [[ $1 == -c ]]; then exit; fi
echo "$*" >>venv.txt
rm -f .venv/bin/*
printf '#!/bin/sh\\necho "$*" >>pip.txt' >.venv/bin/pip
chmod +x .venv/bin/pip
"""
GIT = """
for word; do
  if [[ $word == --output=* ]]; then tar -czf "${word#--output=}" -C "$2" pyproject.toml; fi
done
"""


def test_slice_is_set_up_from_committed_files(tpu_vm, bin_path, tmp_path):
    write_command(bin_path / "python3.99", VENV_PYTHON)
    write_command(bin_path / "git", GIT)
    status, output = tpu_vm("setup", PYTHON="python3.99")
    assert status == 0, output
    for i in range(2):
        host = tmp_path / f"host-{i}" / "anytime_jax"
        assert (host / "pyproject.toml").exists()
        assert (host / "venv.txt").read_text() == "-m venv .venv\n"
        assert (host / "pip.txt").read_text() == (
            "install --quiet -c constraints.txt -e .[tpu,gcs]\n"
        )


# A cluster of pods


def test_pod_has_the_exit_status_of_its_run(start, tmp_path):
    assert end(start("jobset_pod.sh", "--config=a b", HOW="ends 75"))[0] == 75
    line = (tmp_path / "process-0.txt").read_text()
    assert line.endswith(" -m anytime_jax.main --config=a b\n")


def test_evicted_pod_counts_as_failed(start, tmp_path):
    process = start("jobset_pod.sh", "--config=c.py", ANSWER="0")
    wait_for(tmp_path, "ready-0")
    process.send_signal(signal.SIGTERM)
    assert end(process)[0] == 143
    assert (tmp_path / "process-0.txt").read_text().count("terminated") == 1


@pytest.mark.parametrize("index", [0, 1], ids=["tpu", "gpu"])
def test_job_set_starts_a_process_on_each_host(index, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    document = list(yaml.safe_load_all((LAUNCH / "jobset.yaml").read_text()))[index]
    (hosts,) = document["spec"]["replicatedJobs"]
    job = hosts["template"]["spec"]
    assert job["parallelism"] == job["completions"] > 1
    (rule,) = job["podFailurePolicy"]["rules"]
    assert (rule["action"], rule["onExitCodes"]["values"]) == ("FailJob", [1, 2])
    (container,) = job["template"]["spec"]["containers"]
    assert (REPOSITORY / container["command"][-1]).exists()
    line = container["args"]
    files = [word.removeprefix("--config=") for word in line if word.startswith("--config=")]
    run_config.build(
        config_file.read(files[0], [x for x in line if x.startswith("--config.")]), trust=NOBODY
    )
    settings = dict(x.removeprefix("--").split("=", 1) for x in line if "=" in x)
    for name in ("config.run_dir", "config.data.path"):
        address = settings[name].replace("BUCKET", "bucket")
        assert paths.is_address(address)
        assert str(paths.storage_path(address)) == address
    chips = next(iter(container["resources"]["limits"].values()))
    if "--cluster" in line:
        node = job["template"]["spec"]["nodeSelector"]
        shape = node["cloud.google.com/gke-tpu-topology"]
        assert math.prod(map(int, shape.split("x"))) == chips * job["completions"]
    else:
        name = document["metadata"]["name"]
        host = f"{name}-{hosts['name']}-0-0.{name}"
        assert re.fullmatch(rf"{host}:\d+", settings["coordinator"])
        assert int(settings["processes"]) == job["completions"]
        assert settings["process"] == "$(JOB_COMPLETION_INDEX)"


def test_image_has_the_files_of_a_run():
    text = (LAUNCH / "Dockerfile").read_text()
    copied = " ".join(re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE)).split()
    sent = (LAUNCH / "Dockerfile.dockerignore").read_text().splitlines()
    assert {f"!{name}" for name in copied} == {line for line in sent if line.startswith("!")}
    assert {"anytime_jax", "configs", "launch"} <= set(copied)
    assert all((REPOSITORY / name).exists() for name in copied)
