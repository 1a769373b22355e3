"""Memory of exporting a large model, in a process with eight devices."""

import os
import pathlib
import subprocess
import sys
import tempfile

import jax
import pytest
import small_run
from paths import REPOSITORY
from training_runs import start

from anytime_jax.models import decoder

WATCH = """
import pathlib, sys, threading, time
import jax


def own_memory():  # without pages of mapped files, which the system takes back at will
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(x.split()[1]) for x in lines if x.startswith("RssAnon"))


def watch():
    global most
    while True:
        most = max(most, own_memory())
        time.sleep(0.002)


jax.devices()
before = most = own_memory()
threading.Thread(target=watch, daemon=True).start()
"""
EXPORT = """
from anytime_jax.commands import dispatch

assert dispatch.run_command("export", "export", sys.argv[1:]) == 0
"""


def peak_memory(script, *arguments):
    """Returns the bytes that a script takes at most, on eight devices, beyond its imports."""
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(REPOSITORY),
        "MALLOC_ARENA_MAX": "1",  # freed memory goes back to the system
        "MALLOC_MMAP_THRESHOLD_": "1000000",
    }
    code = f"{WATCH}{script}print(most - before)\n"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return 1024 * int(output.stdout.split()[-1])


@pytest.fixture(scope="module", name="large_run")
def large_run_fixture(dataset):
    """A run of one update with an average, and the bytes of its weights.

    It trains on one device, as eight would each gather the weights in the memory of the machine,
    and is on the disk, as the temporary directories of other tests may be in memory.
    """
    sizes = {"layers": 7, "heads": 8, "width": 1024, "mlp_width": 4096, "embedding_rows": 24_576}
    changes = {f"model__{name}": size for name, size in sizes.items()}
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder, "run")
        start(run, dataset, averages=("f25",), stop="1 steps", **changes)
        config = small_run.config(run, dataset.path, **changes).model
        yield run, sum(4 * x.size for x in jax.tree.leaves(decoder.param_shapes(config)))


@pytest.mark.slow
def test_exporting_takes_a_few_tensors(large_run, tmp_path):
    """The largest tensor as it is stored twice, as it is written, and as JAX has it."""
    run, size = large_run
    assert size > 5e8
    largest = 4 * 24_576 * 1024
    weights = 'mix:{"last@1": 0.5, "f25@1": 0.5}'
    options = (f"--weights={weights}", "--max-error=1", f"--output={tmp_path / 'out'}")
    assert largest < peak_memory(EXPORT, f"--run={run}", *options) < 5 * largest
