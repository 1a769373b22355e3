"""Several real processes of four fake devices each: the same run as in one, and one end for all.

`python -m anytime_jax.main` is started as a scheduler would start it, killed and signalled for
real.
"""

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
    dataset_fixture,  # noqa: F401
    write_config,
)

from anytime_jax.checkpoints import checkpoint_directory, checkpoint_reader
from anytime_jax.checkpoints.records import read_records
from anytime_jax.distributed import processes
from anytime_jax.errors import InputError

STEPS = 50
NOISE = 2e-5  # nats: float32 sums in another order, over 50 updates
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
    """The processes of one start of a run."""

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
        given = environment(folder)
        given["XLA_FLAGS"] += f" {flags}"
        together = [f"--coordinator=localhost:{port}", f"--processes={count}"]
        self.logs = [folder / f"{port}.{i}.log" for i in range(count)]
        self.each = []
        for i, log in enumerate(self.logs):
            own = [*together, f"--process={i}"] if count > 1 else []
            if slurm:  # what srun tells its tasks
                own = ["--cluster"]
                given |= {"SLURM_JOB_ID": str(port), "SLURM_STEP_NODELIST": "localhost"}
                given |= {"SLURM_NTASKS": str(count), "SLURM_STEP_NUM_NODES": "1"}
                given |= {"SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)}
            with log.open("w") as file:
                self.each.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "anytime_jax.main", *arguments, *own],
                        stdout=file,
                        stderr=subprocess.STDOUT,
                        env=given,
                    )
                )

    def said(self, i: int) -> str:
        """What a process said, without the noise of the collectives."""
        lines = self.logs[i].read_text().splitlines()
        return "\n".join(line for line in lines if "peer ranks" not in line)

    def wait(self, seconds: float = 240) -> list[int]:
        """The exit status of each."""
        until = time.monotonic() + seconds
        try:
            return [x.wait(max(0.1, until - time.monotonic())) for x in self.each]
        finally:
            for x in self.each:
                with contextlib.suppress(OSError):
                    x.kill()


def start(folder, name, dataset, count=2, devices=4, flags=(), **changes):
    """Starts a tiny run, of some processes."""
    given = {**CHANGES, "stop": f"{STEPS} steps", **changes}
    file = write_config(folder / f"{name}.py", folder / name, dataset.path, **given)
    return Processes(folder, [f"--config={file}", *flags], count, devices)


def losses(run_dir, name="train/loss"):
    return {x.step: x.values[name] for x in read_records(run_dir) if name in x.values}


def meta_of(run_dir, step):
    return checkpoint_reader.verify_checkpoint(run_dir / "checkpoints" / str(step))


@pytest.fixture(scope="module", name="alone")
def alone_fixture(tmp_path_factory, dataset):
    """The run in one process, on one device."""
    folder = tmp_path_factory.mktemp("alone")
    assert start(folder, "run", dataset, 1, 1).wait() == [0]
    return folder / "run"


def check_same(ours, theirs):
    assert list(ours) == list(theirs)
    worst = max(abs(ours[step] - theirs[step]) for step in ours)
    assert worst < NOISE, worst


def test_two_processes_share_a_run(dataset, tmp_path):
    both = start(tmp_path, "run", dataset, devices=2, stop="6 steps", mesh__fsdp=2)
    assert both.wait() == [0, 0], both.said(0) + both.said(1)
    assert sorted(losses(tmp_path / "run")) == list(range(1, 7))
    assert len(list((tmp_path / "run" / "records").iterdir())) == 1
    assert meta_of(tmp_path / "run", 6)["samples"] == 6 * small_run.BATCH
    assert both.said(1) == ""


@pytest.mark.slow
def test_what_slurm_tells_its_tasks_is_enough(dataset, tmp_path):
    file = write_config(tmp_path / "run.py", tmp_path / "run", dataset.path, **CHANGES)
    both = Processes(tmp_path, [f"--config={file}", "--config.stop=6 steps"], 2, 2, slurm=True)
    assert both.wait() == [0, 0], both.said(0) + both.said(1)
    assert "device   4 x cpu" in both.said(0)
    assert sorted(losses(tmp_path / "run")) == list(range(1, 7))


@pytest.mark.slow
def test_two_processes_are_one_run(alone, dataset, tmp_path):
    """Every loss, the place in the data, one set of records; then it goes on, on one device."""
    both = start(tmp_path, "run", dataset, stop="40 steps", mesh__fsdp=2)
    assert both.wait() == [0, 0], both.said(0) + both.said(1)
    again = start(tmp_path, "run", dataset, 1, 1, mesh__fsdp=1)
    assert again.wait() == [0], again.said(0)
    ours, theirs = losses(tmp_path / "run"), losses(alone)
    assert sorted(ours) == list(range(1, STEPS + 1))
    check_same(ours, theirs)
    for label in ("last", *small_run.AVERAGES):
        name = f"eval/{label}/loss"
        check_same(losses(tmp_path / "run", name), losses(alone, name))
    found = [meta_of(run, STEPS)["samples"] for run in (tmp_path / "run", alone)]
    assert found == [STEPS * small_run.BATCH] * 2
    assert len(list((tmp_path / "run" / "records").iterdir())) == 2  # one a start
    assert both.said(1) == ""


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
def test_any_layout_of_eight_devices_is_that_run(count, axes, alone, dataset, tmp_path):
    run = start(tmp_path, "run", dataset, count, 8 // count, **axes)
    assert run.wait() == [0] * count, run.said(0)
    check_same(losses(tmp_path / "run"), losses(alone))
    meta_of(tmp_path / "run", STEPS)


def until_saved(processes, run_dir, step, seconds=120):
    """Waits until a checkpoint is there."""
    limit = time.monotonic() + seconds
    while step not in checkpoint_directory.saved_steps(run_dir):
        assert time.monotonic() < limit
        assert all(x.poll() is None for x in processes.each), processes.said(0)
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "which"), [("SIGTERM", 0), ("SIGTERM", 1), ("SIGINT", 1)])
def test_a_signal_to_any_host_saves_once_on_all(number, which, dataset, tmp_path):
    both = start(tmp_path, "run", dataset, stop="100000 steps", data__repeat=True)
    until_saved(both, tmp_path / "run", 20)
    both.each[which].send_signal(getattr(signal, number))
    assert both.wait(60) == [0, 0], both.said(0) + both.said(1)
    last = checkpoint_directory.saved_steps(tmp_path / "run")[-1]
    assert f"saved at {last:,} steps" in both.said(0)
    assert meta_of(tmp_path / "run", last)["samples"] == last * small_run.BATCH


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, 1])
def test_a_lost_host_ends_the_others_and_the_rerun_is_that_run(which, alone, dataset, tmp_path):
    both = start(tmp_path, "run", dataset, log__every="1 steps", checkpoint__every="5 steps")
    until_saved(both, tmp_path / "run", 15)
    both.each[which].kill()
    began = time.monotonic()
    statuses = both.wait(60)
    assert time.monotonic() - began < 60
    assert statuses[which] == -signal.SIGKILL
    assert statuses[1 - which] != 0
    # Whoever notices first: the exchange that breaks off, or the runtime that watches.
    said = both.said(1 - which)
    assert "another task died" in said or "if a process was lost" in said
    again = start(tmp_path, "run", dataset)
    assert again.wait() == [0, 0], again.said(0) + again.said(1)
    check_same(losses(tmp_path / "run"), losses(alone))


@pytest.mark.slow
def test_damage_that_one_process_reads_is_passed_over_by_both(dataset, tmp_path):
    """Each reads a half of every array; what one cannot read is set aside for both."""
    split = {"mesh__data": 1, "mesh__fsdp": 8}
    assert start(tmp_path, "run", dataset, stop="20 steps", **split).wait() == [0, 0]
    theirs = tmp_path / "run" / "checkpoints" / "20" / "params" / "ocdbt.process_1"
    for file in (x for x in theirs.rglob("*") if x.is_file()):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    refused = start(tmp_path, "run", dataset, stop="30 steps", **split)
    assert refused.wait() == [1, 1]
    assert "--fall_back" in refused.said(0)
    again = start(tmp_path, "run", dataset, stop="30 steps", flags=["--fall_back"], **split)
    assert again.wait() == [0, 0], again.said(0) + again.said(1)
    assert "set aside as 20.damaged" in again.said(0)
    assert sorted(losses(tmp_path / "run")) == list(range(1, 31))


@pytest.mark.slow
def test_what_is_wrong_on_one_host_ends_all(dataset, tmp_path):
    """A host that lacks the data says so; the others say which host it is."""
    file = write_config(tmp_path / "run.py", tmp_path / "run", dataset.path, **CHANGES)
    text = file.read_text()
    file.write_text(
        text.replace("import sys\n", "import os, sys\n", 1).replace(
            repr(str(dataset.path)), f"{str(dataset.path)!r} + os.environ.get('WHERE', '')"
        )
    )
    port = free_port()
    given = [sys.executable, "-m", "anytime_jax.main", f"--config={file}", "--processes=2"]
    ended = [
        subprocess.Popen(
            [*given, f"--coordinator=localhost:{port}", f"--process={i}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**environment(tmp_path), "WHERE": "/not/here" if i else ""},
        )
        for i in range(2)
    ]
    said = [x.communicate(timeout=60)[1] for x in ended]
    assert [x.returncode for x in ended] == [2, 2]
    assert "process 1 of 2 could not start" in said[0]
    assert "not/here" in said[1]
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
    assert processes.count() == 1
    assert processes.is_primary()
    assert processes.broadcast(7) == 7
    processes.barrier()
    with pytest.raises(KeyError, match="mine"), processes.fail_together():
        raise KeyError("mine")
    assert processes.exit_together(2) == 2
