"""The scripts of launch/, run for real under bash with commands that pretend, and --slurm."""

import contextlib
import math
import os
import pathlib
import re
import signal
import subprocess
import time

import pytest
import yaml
from test_sweep import BRANCHES, study_fixture  # noqa: F401

from anytime_jax import config_file, sweep
from anytime_jax.data.dataset import RECORD_NAME

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
LAUNCH = REPOSITORY / "launch"

# Each writes what it was given into a file of the folder it works in, and does what HOW says.
RECORDS = 'echo "$(basename "$0") $*" >>"$TOLD"\n'
PYTHON = """
index=0
for given; do
  if [[ $given == --process=* ]]; then index=${given#*=}; fi
done
echo "CUDA=${CUDA_VISIBLE_DEVICES-none} XLA=${XLA_FLAGS-} $*" >"process-$index.txt"
echo "process $index speaks"
sleep 20 >/dev/null 2>&1 & # a worker, which must not be left behind
trap "kill $!" EXIT
trap 'echo told >>"process-$index.txt"; exit "${ANSWER:-0}"' TERM
trap 'echo interrupted >>"process-$index.txt"' INT
touch "ready-$index"
case "$HOW" in
  "fails $index") sleep 0.1; exit 3 ;;
  "ends "*) exit "${HOW#ends }" ;;
esac
for _ in {1..200}; do sleep 0.05; done
"""
SRUN = """
touch ready-0
case "$HOW" in
  "ends "*) exit "${HOW#ends }" ;;
esac
trap 'echo "killed the tasks" >>"$TOLD"; exit 137' TERM
for _ in {1..200}; do
  sleep 0.02
  if [[ -e asked ]]; then exit "${ANSWER:-0}"; fi
done
"""
SBATCH = """
count=$(grep -c '^sbatch' "$TOLD")
echo "$((100 * count));cluster"
"""
COMMANDS = {
    "python": PYTHON,
    "srun": RECORDS + SRUN,
    "scancel": RECORDS + "touch asked\n",
    "scontrol": RECORDS,
    "sbatch": RECORDS + SBATCH,
}


@pytest.fixture(name="bin_path")
def bin_path_fixture(tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in COMMANDS.items():
        (folder / name).write_text(f"#!/usr/bin/env bash\n{text}")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture(name="start")
def start_fixture(bin_path, tmp_path):
    """Starts a script in a folder of its own; what is left of it ends with the test."""
    started = []

    def start(script, *arguments, **variables):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "CUDA_"))}
        changes = {
            "PATH": f"{bin_path}:{os.environ['PATH']}",
            "JAX_PLATFORMS": "",
            "XLA_FLAGS": "",
            "HOW": "waits",
            "LOGS": str(tmp_path / "logs"),
            "TOLD": str(tmp_path / "told.txt"),
        }
        process = subprocess.Popen(
            ["bash", str(LAUNCH / script), *arguments],
            cwd=tmp_path,
            env=clean | changes | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def end(process):
    said, _ = process.communicate(timeout=20)
    return process.returncode, said


def wait_for(folder, *names):
    deadline = time.monotonic() + 10
    while not all((folder / name).exists() for name in names):
        assert time.monotonic() < deadline, names
        time.sleep(0.02)
    time.sleep(0.05)


def told(folder):
    file = folder / "told.txt"
    return file.read_text().splitlines() if file.exists() else []


# Several processes on one machine


def test_each_process_gets_the_line_its_number_and_its_gpus(start, tmp_path):
    gpus = {"CUDA_VISIBLE_DEVICES": "3,5,6,7"}
    status, said = end(start("local.sh", "2", "--", "--config=a b", HOW="ends 0", **gpus))
    assert status == 0
    assert "process 0 speaks" in said
    assert "process 1 speaks" not in said
    assert (tmp_path / "logs" / "process-1.log").read_text() == "process 1 speaks\n"
    lines = [(tmp_path / f"process-{i}.txt").read_text().strip() for i in range(2)]
    port = re.search(r"localhost:(\d+)", lines[0])[1]
    assert 20000 <= int(port) < 32768
    for i, shown in enumerate(["3,5", "6,7"]):
        assert lines[i] == (
            f"CUDA={shown} XLA= -m anytime_jax.main --config=a b --coordinator=localhost:{port} "
            f"--processes=2 --process={i}"
        )


def test_fake_devices_need_no_gpu(start, tmp_path):
    variables = {"DEVICES": "4", "CUDA_VISIBLE_DEVICES": "0,1,2", "HOW": "ends 0"}
    assert end(start("local.sh", "2", "--", **variables))[0] == 0
    line = (tmp_path / "process-1.txt").read_text()
    assert line.startswith("CUDA=0,1,2 XLA= --xla_force_host_platform_device_count=4 -m ")


@pytest.mark.parametrize(
    ("arguments", "variables", "message"),
    [
        (["2"], {}, "give a number of processes, --, and the run"),
        (["0", "--"], {}, "give a number of processes"),
        (["2", "--"], {"CUDA_VISIBLE_DEVICES": "0,1,2"}, "3 GPUs cannot be shared out to 2"),
        (["2", "--"], {"DEVICES": "many"}, "DEVICES=many: give a number"),
        (["2", "--"], {"GRACE": "-1"}, "GRACE=-1: give seconds"),
        (["2", "--"], {"PYTHON": "no-such"}, "there is no no-such here: set PYTHON"),
    ],
)
def test_what_cannot_be_started_is_said(arguments, variables, message, start, tmp_path):
    status, said = end(start("local.sh", *arguments, **variables))
    assert (status, said.count("\n")) == (2, 1)
    assert said.startswith(f"error: {message}")
    assert not list(tmp_path.glob("process-*"))


def left_alive(folder):
    """The processes that go on to work in a folder; the kernel has a moment to remove the dead."""
    found = []
    for _ in range(20):
        found = []
        for link in pathlib.Path("/proc").glob("[0-9]*/cwd"):
            with contextlib.suppress(OSError):  # ended, or another's
                if link.readlink() == folder:
                    found.append((link.parent / "cmdline").read_text().replace("\0", " "))
        if not found:
            break
        time.sleep(0.05)
    return found


def test_when_one_breaks_the_others_are_killed_after_a_while(start, tmp_path):
    process = start("local.sh", "3", "--", HOW="fails 1", GRACE="1")
    status, said = end(process)
    assert status == 3
    assert "process 1 of 3 ended with status 3\nprocess 1 speaks\n" in said
    assert "killing the others, 1 s after the first broke" in said
    assert left_alive(tmp_path) == []
    assert "told" not in (tmp_path / "process-0.txt").read_text()


@pytest.mark.parametrize("answer", [0, 5])
def test_a_signal_reaches_each_process_once(answer, start, tmp_path):
    process = start("local.sh", "2", "--", ANSWER=str(answer))
    wait_for(tmp_path, "ready-0", "ready-1")
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    assert end(process)[0] == answer
    for i in range(2):
        assert (tmp_path / f"process-{i}.txt").read_text().count("told") == 1


def test_a_ctrl_c_is_passed_on_and_a_second_one_kills(start, tmp_path):
    process = start("local.sh", "2", "--")
    wait_for(tmp_path, "ready-0", "ready-1")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    time.sleep(0.5)
    assert process.poll() is None
    for i in range(2):
        assert (tmp_path / f"process-{i}.txt").read_text().count("interrupted") == 1
    os.killpg(process.pid, signal.SIGINT)
    assert end(process)[0] == 130
    assert left_alive(tmp_path) == []


# A Slurm job

JOB = {"SLURM_JOB_ID": "77", "SLURM_GPUS_ON_NODE": "4", "SLURM_CPUS_PER_TASK": "8"}
LINE = (
    "srun --kill-on-bad-exit=1 python -m anytime_jax.main --cluster --config=c.py --config.stop=4x"
)


@pytest.mark.parametrize("status", [0, 1, 2])
def test_a_job_that_ends_by_itself_is_not_queued_again(status, start, tmp_path):
    process = start("slurm.sbatch", *LINE.split()[-2:], HOW=f"ends {status}", **JOB)
    assert end(process)[0] == status
    assert told(tmp_path) == [LINE]


@pytest.mark.parametrize("array", [False, True])
def test_before_the_time_limit_a_job_saves_and_is_queued_again(array, start, tmp_path):
    task = {"SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "2"} if array else {}
    process = start("slurm.sbatch", *LINE.split()[-2:], **JOB, **task)
    wait_for(tmp_path, "ready-0")
    process.send_signal(signal.SIGUSR1)
    assert end(process)[0] == 0
    job = "70_2" if array else "77"
    assert told(tmp_path) == [LINE, f"scancel --signal=TERM {job}", f"scontrol requeue {job}"]


def test_a_job_that_breaks_while_it_saves_is_not_queued_again(start, tmp_path):
    process = start("slurm.sbatch", *LINE.split()[-2:], ANSWER="1", **JOB)
    wait_for(tmp_path, "ready-0")
    process.send_signal(signal.SIGUSR1)
    assert end(process)[0] == 1
    assert told(tmp_path) == [LINE, "scancel --signal=TERM 77"]


def test_a_job_that_is_cancelled_waits_for_its_save_and_is_not_queued_again(start, tmp_path):
    process = start("slurm.sbatch", *LINE.split()[-2:], **JOB)
    wait_for(tmp_path, "ready-0")
    process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    assert process.poll() is None
    (tmp_path / "asked").touch()  # as Slurm, which tells the tasks
    assert end(process)[0] == 0
    assert told(tmp_path) == [LINE]


def test_a_task_on_each_host_takes_all_of_its_gpus(start, bin_path, tmp_path):
    (bin_path / "srun").write_text('#!/bin/sh\necho "${JAX_LOCAL_DEVICE_IDS-} $SRUN_CPUS_PER_TASK"')
    assert end(start("slurm.sbatch", **JOB)) == (0, "0,1,2,3 8\n")
    assert end(start("slurm.sbatch", **JOB, SLURM_NTASKS_PER_NODE="4")) == (0, " 8\n")


def test_the_settings_of_a_job_are_on_lines_that_sbatch_reads():
    text = (LAUNCH / "slurm.sbatch").read_text()
    options = re.findall(r"^#SBATCH (--[a-z-]+(?:=\S+)?)$", text, re.MULTILINE)
    assert {"--requeue", "--ntasks-per-node=1", "--signal=B:USR1@120"} <= set(options)
    assert len(options) == text.count("#SBATCH ")
    assert text.rindex("#SBATCH ") < text.index("\nset -")


# A study as job arrays


@pytest.fixture(name="arrays")
def arrays_fixture(study, monkeypatch, tmp_path):
    """Writes the arrays of a tiny study whose data are there."""
    monkeypatch.chdir(REPOSITORY)
    data = tmp_path / "prepared"
    data.mkdir()
    (data / RECORD_NAME).touch()

    def write(more, *arguments):
        file, _ = study(more, data=data)
        jobs = tmp_path / "jobs"
        return sweep.main([f"--study={file}", f"--slurm={jobs}", *arguments]), file, jobs

    return write


def submitted(start, jobs, tmp_path):
    """The array and the dependency of each call of sbatch."""
    status, said = end(start(jobs / "submit.sh", "--time=1:00:00"))
    assert status == 0, said
    found = []
    for line in told(tmp_path):
        assert line.endswith(f" --time=1:00:00 launch/slurm.sbatch @{jobs}/runs.txt")
        assert line.startswith("sbatch --parsable --job-name=tiny --nodes=1 ")
        after = re.search(r" --dependency=(\S+) --kill-on-invalid-dep=yes ", line)
        found.append((re.search(r" --array=(\S+) ", line)[1], after and after[1]))
    return found


def test_branches_wait_for_their_own_trunk(arrays, start, tmp_path, capsys):
    status, file, jobs = arrays(BRANCHES)
    assert status == 0
    assert "6 of 6 runs of tiny are missing; nothing is submitted yet" in capsys.readouterr().out
    assert sorted(x.name for x in jobs.iterdir()) == ["runs.txt", "submit.sh"]
    names = [f"constant-seed={seed}" for seed in (0, 1)]
    names += [f"wsd-seed={seed}-horizon={m}x" for seed in (0, 1) for m in (1, 2)]
    lines = [f"--config={file}:{name}" for name in names]
    assert (jobs / "runs.txt").read_text().splitlines() == lines
    assert submitted(start, jobs, tmp_path) == [
        ("1-2", None),
        ("3-4", "afterok:100_1"),
        ("5-6", "afterok:100_2"),
    ]
    assert (tmp_path / "runs" / "study.json").exists()


def test_only_missing_runs_are_submitted(arrays, start, monkeypatch, tmp_path):
    finished = {"constant-seed=0", "wsd-seed=1-horizon=1x"}
    is_finished = property(lambda job: job.run.name in finished)
    monkeypatch.setattr("anytime_jax.jobs.Job.is_finished", is_finished)
    status, file, jobs = arrays(BRANCHES)
    assert status == 0
    names = ["constant-seed=1", *(f"wsd-seed=0-horizon={m}x" for m in (1, 2))]
    lines = [f"--config={file}:{name}\n" for name in [*names, "wsd-seed=1-horizon=2x"]]
    assert (jobs / "runs.txt").read_text() == "".join(lines)
    assert submitted(start, jobs, tmp_path) == [("1-3", None), ("4", "afterok:100_1")]


def test_when_nothing_is_missing_nothing_is_written(arrays, monkeypatch, capsys):
    monkeypatch.setattr("anytime_jax.jobs.Job.is_finished", property(lambda job: True))
    status, _, jobs = arrays(BRANCHES)
    assert status == 0
    assert "all 6 runs of tiny are finished" in capsys.readouterr().out
    assert not jobs.exists()


def test_a_task_of_an_array_trains_the_run_of_its_line(arrays, start, tmp_path):
    _, file, jobs = arrays(BRANCHES)
    task = {"SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "3", "HOW": "ends 0"}
    assert end(start("slurm.sbatch", f"@{jobs}/runs.txt", **JOB, **task))[0] == 0
    run = f"--config={file}:wsd-seed=0-horizon=1x"
    assert told(tmp_path) == [
        f"srun --kill-on-bad-exit=1 python -m anytime_jax.main --cluster {run}"
    ]
    task["SLURM_ARRAY_TASK_ID"] = "7"
    status, said = end(start("slurm.sbatch", f"@{jobs}/runs.txt", **JOB, **task))
    assert (status, said) == (2, f"error: {jobs}/runs.txt has no line 7\n")
    status, said = end(start("slurm.sbatch", f"@{jobs}/runs.txt", **JOB))
    assert status
    assert "@FILE needs a job array" in said


def test_arrays_that_would_be_in_their_own_way_are_refused(arrays, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("anytime_jax.identity.is_held", lambda path: path.name == "constant-seed=1")
    assert arrays(BRANCHES)[0] == 2
    assert "constant-seed=1 is being trained now: wait for it" in capsys.readouterr().err
    (tmp_path / "prepared" / RECORD_NAME).unlink()
    file = f"--study={tmp_path / 'study.py'}"
    assert sweep.main([file, f"--slurm={tmp_path / 'jobs'}"]) == 2
    assert "holds no prepared data, which constant-seed=0 trains on" in capsys.readouterr().err
    monkeypatch.setattr("anytime_jax.slurm._LARGEST_TASK", 5)
    assert sweep.main([file, f"--slurm={tmp_path / 'jobs'}"]) == 2
    assert "6 runs are missing, and an array numbers at most 5" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert sweep.main([file, f"--slurm={tmp_path / 'jobs'}"]) == 2
    assert "there is no launch/slurm.sbatch here" in capsys.readouterr().err
    assert not (tmp_path / "jobs").exists()


# A TPU slice

# Runs what is sent to the workers, each in a home of its own.
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
  (cd "host-$worker" && bash -c "${command#--command=}") || exit
done
"""
)


@pytest.fixture(name="slice_")
def slice_fixture(start, bin_path, tmp_path):
    """Runs tpu_vm.sh with two workers on this machine."""
    (bin_path / "gcloud").write_text(f"#!/usr/bin/env bash\n{GCLOUD}")
    (bin_path / "gcloud").chmod(0o755)
    place = {"NAME": "mine", "ZONE": "here-a", "WORKER_PYTHON": str(bin_path / "python")}

    def run(*arguments, **variables):
        return end(start("tpu_vm.sh", *arguments, **place, **variables))

    return run


def test_a_slice_trains_saves_and_goes_on(slice_, tmp_path):
    hosts = [tmp_path / f"host-{i}" / "anytime_jax" for i in range(2)]
    for _ in range(2):
        status, said = slice_("run", "--config=c.py", "--config.name=a $b 'c'")
        assert status == 0
        assert "begun" in said
        for host in hosts:
            wait_for(host, "ready-0")
            (host / "ready-0").unlink()
            line = (host / "process-0.txt").read_text()
            assert line.endswith(
                "-m anytime_jax.main --cluster --config=c.py --config.name=a $b 'c'\n"
            )
        status, said = slice_("run", "--config=c.py")
        assert (status, "a run is under way here" in said) == (2, True)
        assert slice_("stop")[0] == 0
        for host in hosts:
            assert (host / "process-0.txt").read_text().count("told") == 1
            assert (host / "run.log").read_text() == "process 0 speaks\n"
    assert slice_("stop") == (0, "no run is under way here\n" * 2)
    ssh = "gcloud compute tpus tpu-vm ssh mine --zone=here-a --worker=all "
    assert set(told(tmp_path)) == {ssh}


def test_a_slice_is_set_up_from_what_is_committed(slice_, bin_path, tmp_path):
    (bin_path / "python3.99").write_text(
        '#!/bin/sh\n[ "$1" = -c ] || { echo "$*" >>venv.txt; rm -f .venv/bin/*;'
        " printf '#!/bin/sh\\necho \"$*\" >>pip.txt' >.venv/bin/pip; chmod +x .venv/bin/pip; }"
    )
    (bin_path / "python3.99").chmod(0o755)
    (bin_path / "git").write_text(
        '#!/bin/sh\nfor x; do o=$x; [ "${x#--output}" = "$x" ] || '
        'tar -czf "${x#--output=}" -C "$2" pyproject.toml; done'
    )
    (bin_path / "git").chmod(0o755)
    status, said = slice_("setup", PYTHON="python3.99")
    assert status == 0, said
    for i in range(2):
        host = tmp_path / f"host-{i}" / "anytime_jax"
        assert (host / "pyproject.toml").exists()
        assert (host / "venv.txt").read_text() == "-m venv .venv\n"
        assert (host / "pip.txt").read_text() == "install --quiet -e .[tpu]\n"


def test_a_slice_must_be_named(start, slice_):
    assert end(start("tpu_vm.sh", "run", "--config=c.py"))[0] == 2
    status, said = slice_("walk")
    assert (status, said.split(":")[0]) == (2, "error")
    assert slice_("run")[0] == 2


# A cluster of pods


@pytest.mark.parametrize("status", [0, 1, 2])
def test_a_pod_ends_as_its_run(status, start, tmp_path):
    assert end(start("pod.sh", "--config=a b", HOW=f"ends {status}"))[0] == status
    line = (tmp_path / "process-0.txt").read_text()
    assert line.endswith(" -m anytime_jax.main --config=a b\n")


@pytest.mark.parametrize(("answer", "status"), [(0, 143), (1, 1)])
def test_a_pod_that_was_told_to_go_counts_as_failed(answer, status, start, tmp_path):
    process = start("pod.sh", "--config=c.py", ANSWER=str(answer))
    wait_for(tmp_path, "ready-0")
    process.send_signal(signal.SIGTERM)
    assert end(process)[0] == status
    assert (tmp_path / "process-0.txt").read_text().count("told") == 1


@pytest.mark.parametrize("index", [0, 1], ids=["tpu", "gpu"])
def test_a_job_set_starts_a_process_on_each_host_and_starts_again(index, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    given = list(yaml.safe_load_all((LAUNCH / "jobset.yaml").read_text()))[index]
    assert (given["apiVersion"], given["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert set(given["spec"]) <= {"failurePolicy", "network", "replicatedJobs"}
    assert given["spec"]["failurePolicy"]["maxRestarts"] > 0
    (hosts,) = given["spec"]["replicatedJobs"]
    job = hosts["template"]["spec"]
    assert hosts["replicas"] == 1
    assert job["parallelism"] == job["completions"] > 1
    assert (job["completionMode"], job["backoffLimit"]) == ("Indexed", 0)
    pod = job["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    assert pod["terminationGracePeriodSeconds"] >= 120
    (container,) = pod["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts.keys() == {volume["name"] for volume in pod["volumes"]}
    assert (REPOSITORY / container["command"][-1]).exists()

    line = container["args"]
    config_file._check_file(line)
    settings = dict(x.removeprefix("--").split("=", 1) for x in line if "=" in x)
    for name in ("config.run_dir", "config.data.path"):
        assert settings[name].startswith(f"{mounts['storage']}/")
    chips = next(iter(container["resources"]["limits"].values()))
    if "--cluster" in line:
        shape = pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"]
        assert math.prod(map(int, shape.split("x"))) == chips * job["completions"]
    else:
        name = given["metadata"]["name"]
        host = f"{name}-{hosts['name']}-0-0.{name}"
        assert re.fullmatch(rf"{host}:\d+", settings["coordinator"])
        assert int(settings["processes"]) == job["completions"]
        assert settings["process"] == "$(JOB_COMPLETION_INDEX)"


def test_the_image_holds_what_a_run_needs():
    text = (LAUNCH / "Dockerfile").read_text()
    copied = [
        x for line in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE) for x in line.split()
    ]
    sent = (LAUNCH / "Dockerfile.dockerignore").read_text().splitlines()
    assert {f"!{name}" for name in copied} == {line for line in sent if line.startswith("!")}
    assert {"anytime_jax", "configs", "launch"} <= set(copied)
    assert all((REPOSITORY / name).exists() for name in copied)
    assert text.rindex("\nUSER ") < text.index("\nENTRYPOINT ")
    assert 'ENTRYPOINT ["python", "-m", "anytime_jax.main"]' in text
