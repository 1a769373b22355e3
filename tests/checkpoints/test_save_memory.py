"""Memory of forty saves, on one device, on eight and with two processes."""

import json
import pathlib
import platform
import socket
import subprocess
import sys

import pytest
from forked_starts import environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="asks glibc's malloc"),
]
# A process of the benchmark; its arguments are the address, the number of processes, its own
# number, and those of the benchmark.
PROGRAM = """
import sys
from anytime_jax.distributed import jax_settings, processes
from benchmarks import checkpoint

address, count, index, *arguments = sys.argv[1:]
jax_settings.configure()
if count != "1":
    processes.initialize(address, int(count), int(index), cluster=False)
sys.exit(checkpoint.main(arguments))
"""


def measure(
    folder: pathlib.Path, devices: int, count: int
) -> list[tuple[float, list[dict[str, float]]]]:
    """Of each process: MB of the state, and the rows of training without saves and of each save."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    options = ["--saves=40", "--width=128", "--layers=4", f"--scratch={folder}"]
    outputs = [folder / f"{i}.json" for i in range(count)]
    processes = []
    for i, output in enumerate(outputs):
        words = [sys.executable, "-c", PROGRAM, address, str(count), str(i), *options]
        with output.with_suffix(".log").open("w") as log:
            processes.append(
                subprocess.Popen(
                    [*words, f"--output={output}"],
                    env=environment(devices),
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
    try:
        statuses = [process.wait(1_200) for process in processes]
    finally:
        for process in processes:
            process.kill()
    logs = "".join(output.with_suffix(".log").read_text() for output in outputs)
    assert statuses == [0] * count, logs[-3_000:]
    return [
        (details["bytes"] / 1e6, details["saves"])
        for details in (json.loads(output.read_text())["details"] for output in outputs)
    ]


@pytest.mark.parametrize(("devices", "count"), [(1, 1), (8, 1), (4, 2)])
def test_forty_saves_keep_no_memory(tmp_path, devices, count):
    """Saves 31 to 40 leave hardly more than saves 10 to 19: a tenth of a state a save is noticed.

    Pages that stay resident wander by more than what malloc has handed out. On one device the peak
    of the latter is also bounded: one more state, the temporary memory of an update, and what is
    being written. An update may free its memory later, in other threads, so the least of some saves
    counts as what stays.
    """
    for size, rows in measure(tmp_path, devices, count):
        for kind, states in (("allocated_MB", 1), ("resident_MB", 2)):
            early, late = (min(row[kind] for row in part) for part in (rows[10:20], rows[31:]))
            assert late - early < states * size, kind
        if devices == 1:
            rest = min(row["allocated_MB"] for row in rows[10:])
            assert max(row["peak_allocated_MB"] for row in rows[10:]) - rest < 2 * size
