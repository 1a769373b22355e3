"""Processes of a run: real ones, with four fake devices each, killed and signalled for real."""

import contextlib
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest
import small_run
from forked_starts import environment
from small_run import (
    write_config,
)

from anytime_jax.checkpoints import checkpoint_directory, checkpoint_reader
from anytime_jax.checkpoints.metric_records import read_records
from anytime_jax.distributed import processes
from anytime_jax.errors import InputError

STEPS = 50
TOLERANCE = 2e-5  # nats: float32 sums in another order, over 50 updates
CHANGES = {
    "checkpoint__every": "10 steps",
    "eval__every": "25 steps",
    "log__every": "1 steps",
    "guard__skip": "nothing",
}


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


class Processes:
    """The processes of a start."""

    def __init__(
        self,
        folder: pathlib.Path,
        arguments: list[str],
        count: int,
        devices: int = 4,
        slurm: bool = False,
    ):
        port = free_port()
        flags = f"--xla_force_host_platform_device_count={devices}"
        variables = environment(folder)
        variables["XLA_FLAGS"] += f" {flags}"
        options = [f"--coordinator=localhost:{port}", f"--processes={count}"]
        self.logs = [folder / f"{port}.{i}.log" for i in range(count)]
        self.processes = []
        for i, log in enumerate(self.logs):
            own = [*options, f"--process={i}"] if count > 1 else []
            if slurm:  # variables that srun sets
                own = ["--cluster"]
                variables |= {"SLURM_JOB_ID": str(port), "SLURM_STEP_NODELIST": "localhost"}
                variables |= {"SLURM_NTASKS": str(count), "SLURM_STEP_NUM_NODES": "1"}
                variables |= {"SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)}
            with log.open("w") as file:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "anytime_jax.main", *arguments, *own],
                        stdout=file,
                        stderr=subprocess.STDOUT,
                        env=variables,
                    )
                )

    def output(self, i: int) -> str:
        """The output of a process, without messages of the collectives."""
        lines = self.logs[i].read_text().splitlines()
        return "\n".join(line for line in lines if "peer ranks" not in line)

    def wait(self, seconds: float = 240) -> list[int]:
        """Waits for the exit statuses."""
        deadline = time.monotonic() + seconds
        try:
            return [x.wait(max(0.1, deadline - time.monotonic())) for x in self.processes]
        finally:
            for x in self.processes:
                with contextlib.suppress(OSError):
                    x.kill()


def start_run(folder, name, dataset, count=2, devices=4, flags=(), **changes):
    settings = {**CHANGES, "stop": f"{STEPS} steps", **changes}
    file = write_config(folder / f"{name}.py", folder / name, dataset.path, **settings)
    return Processes(folder, [f"--config={file}", *flags], count, devices)


def losses(run_dir, name="train/loss"):
    return {x.step: x.values[name] for x in read_records(run_dir) if name in x.values}


def checkpoint_metadata(run_dir, step):
    return checkpoint_reader.verify_checkpoint(run_dir / "checkpoints" / str(step))


@pytest.fixture(scope="module", name="single")
def single_fixture(tmp_path_factory, dataset):
    """The run in one process on one device."""
    folder = tmp_path_factory.mktemp("single")
    assert start_run(folder, "run", dataset, 1, 1).wait() == [0]
    return folder / "run"


def assert_same_losses(ours, theirs):
    assert list(ours) == list(theirs)
    largest = max(abs(ours[step] - theirs[step]) for step in ours)
    assert largest < TOLERANCE


def test_two_processes_write_one_run(dataset, tmp_path):
    both = start_run(tmp_path, "run", dataset, devices=2, stop="6 steps", mesh__fsdp=2)
    assert both.wait() == [0, 0], both.output(0) + both.output(1)
    assert sorted(losses(tmp_path / "run")) == list(range(1, 7))
    assert len(list((tmp_path / "run" / "records").iterdir())) == 1
    assert checkpoint_metadata(tmp_path / "run", 6)["samples"] == 6 * small_run.BATCH
    assert both.output(1) == ""


@pytest.mark.slow
def test_cluster_reads_slurm_variables(dataset, tmp_path):
    file = write_config(tmp_path / "run.py", tmp_path / "run", dataset.path, **CHANGES)
    both = Processes(tmp_path, [f"--config={file}", "--config.stop=6 steps"], 2, 2, slurm=True)
    assert both.wait() == [0, 0], both.output(0) + both.output(1)
    assert "device   4 x cpu" in both.output(0)
    assert sorted(losses(tmp_path / "run")) == list(range(1, 7))


@pytest.mark.slow
def test_two_processes_train_the_single_process_run(single, dataset, tmp_path):
    """Same losses and data position, one set of records; then resumed on one device."""
    both = start_run(tmp_path, "run", dataset, stop="40 steps", mesh__fsdp=2)
    assert both.wait() == [0, 0], both.output(0) + both.output(1)
    again = start_run(tmp_path, "run", dataset, 1, 1, mesh__fsdp=1)
    assert again.wait() == [0], again.output(0)
    ours, theirs = losses(tmp_path / "run"), losses(single)
    assert sorted(ours) == list(range(1, STEPS + 1))
    assert_same_losses(ours, theirs)
    for label in ("last", *small_run.AVERAGES):
        name = f"eval/{label}/loss"
        assert_same_losses(losses(tmp_path / "run", name), losses(single, name))
    samples = [checkpoint_metadata(run, STEPS)["samples"] for run in (tmp_path / "run", single)]
    assert samples == [STEPS * small_run.BATCH] * 2
    assert len(list((tmp_path / "run" / "records").iterdir())) == 2  # one a start
    assert both.output(1) == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "axes",
    [
        {"mesh__fsdp": 8},
        {"mesh__tensor": 4},
        {"mesh__fsdp": 2, "mesh__tensor": 2},
        {"mesh__fsdp": 4, "mesh__tensor": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("count", [1, 2])
def test_layouts_of_eight_devices_train_the_same_run(count, axes, single, dataset, tmp_path):
    run = start_run(tmp_path, "run", dataset, count, 8 // count, **axes)
    assert run.wait() == [0] * count, run.output(0)
    assert_same_losses(losses(tmp_path / "run"), losses(single))
    checkpoint_metadata(tmp_path / "run", STEPS)


def wait_for_checkpoint(start, run_dir, step, seconds=120):
    limit = time.monotonic() + seconds
    while step not in checkpoint_directory.saved_steps(run_dir):
        assert time.monotonic() < limit
        assert all(x.poll() is None for x in start.processes), start.output(0)
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "index"), [("SIGTERM", 0), ("SIGTERM", 1), ("SIGINT", 1)])
def test_signal_to_one_process_saves_once_on_all(name, index, dataset, tmp_path):
    both = start_run(tmp_path, "run", dataset, stop="100000 steps", data__repeat=True)
    wait_for_checkpoint(both, tmp_path / "run", 20)
    both.processes[index].send_signal(getattr(signal, name))
    assert both.wait(60) == [0, 0], both.output(0) + both.output(1)
    last = checkpoint_directory.saved_steps(tmp_path / "run")[-1]
    assert f"saved at {last:,} steps" in both.output(0)
    assert checkpoint_metadata(tmp_path / "run", last)["samples"] == last * small_run.BATCH


@pytest.mark.slow
@pytest.mark.parametrize("index", [0, 1])
def test_killed_process_ends_the_others_and_resume_is_exact(index, single, dataset, tmp_path):
    both = start_run(tmp_path, "run", dataset, log__every="1 steps", checkpoint__every="5 steps")
    wait_for_checkpoint(both, tmp_path / "run", 15)
    both.processes[index].kill()
    start = time.monotonic()
    statuses = both.wait(60)
    assert time.monotonic() - start < 60
    assert statuses[index] == -signal.SIGKILL
    assert statuses[1 - index] != 0
    # Either a collective fails first, or the runtime notices.
    output = both.output(1 - index)
    assert "another task died" in output or "if a process was lost" in output
    again = start_run(tmp_path, "run", dataset)
    assert again.wait() == [0, 0], again.output(0) + again.output(1)
    assert_same_losses(losses(tmp_path / "run"), losses(single))


@pytest.mark.slow
def test_damage_read_by_one_process_is_skipped_by_both(dataset, tmp_path):
    """Each reads half of every array; what one cannot read is set aside for both."""
    split = {"mesh__data": 1, "mesh__fsdp": 8}
    assert start_run(tmp_path, "run", dataset, stop="20 steps", **split).wait() == [0, 0]
    files = tmp_path / "run" / "checkpoints" / "20" / "params" / "ocdbt.process_1"
    for file in (x for x in files.rglob("*") if x.is_file()):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    refused = start_run(tmp_path, "run", dataset, stop="30 steps", **split)
    assert refused.wait() == [1, 1]
    assert "--fall-back" in refused.output(0)
    again = start_run(tmp_path, "run", dataset, stop="30 steps", flags=["--fall-back"], **split)
    assert again.wait() == [0, 0], again.output(0) + again.output(1)
    assert "set aside as 20.damaged" in again.output(0)
    assert sorted(losses(tmp_path / "run")) == list(range(1, 31))


@pytest.mark.slow
def test_error_on_one_process_ends_all(dataset, tmp_path):
    """A process without the data reports it; the others name that process."""
    file = write_config(tmp_path / "run.py", tmp_path / "run", dataset.path, **CHANGES)
    text = file.read_text()
    file.write_text(
        text.replace("import sys\n", "import os, sys\n", 1).replace(
            repr(str(dataset.path)), f"{str(dataset.path)!r} + os.environ.get('SUFFIX', '')"
        )
    )
    port = free_port()
    command = [sys.executable, "-m", "anytime_jax.main", f"--config={file}", "--processes=2"]
    started = [
        subprocess.Popen(
            [*command, f"--coordinator=localhost:{port}", f"--process={i}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**environment(tmp_path), "SUFFIX": "/not/here" if i else ""},
        )
        for i in range(2)
    ]
    errors = [x.communicate(timeout=60)[1] for x in started]
    assert [x.returncode for x in started] == [2, 2]
    assert "process 1 of 2 could not start" in errors[0]
    assert "not/here" in errors[1]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coordinator": "a:1"}, "--processes and --process missing"),
        ({"process": 0, "processes": 2}, "--coordinator missing"),
        ({"coordinator": "a", "processes": 2, "process": 0}, "--coordinator=a "),
        ({"coordinator": "a:b", "processes": 2, "process": 0}, "HOST:PORT"),
        ({"coordinator": "a:1", "processes": 2, "process": 2}, "--process=2 .*--processes=2"),
        ({"coordinator": "a:1", "processes": 0, "process": 0}, "--process=0 .*--processes=0"),
        ({"coordinator": "a:1", "cluster": True}, "--cluster .*leave them out"),
        ({"cluster": True}, "--cluster: "),
    ],
)
def test_initialize_rejects_bad_options(options, message):
    all_options = {"coordinator": None, "processes": None, "process": None, "cluster": False}
    with pytest.raises(InputError, match=message):
        processes.initialize(**{**all_options, **options})


def test_single_process_needs_no_runtime():
    processes.initialize(None, None, None, cluster=False)
    assert processes.is_primary()
    assert processes.broadcast(7) == 7
    processes.barrier()
    with pytest.raises(KeyError, match="mine"), processes.fail_together():
        raise KeyError("mine")
    assert processes.exit_together(2) == 2
