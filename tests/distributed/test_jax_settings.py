"""JAX settings that every command makes before it looks for devices."""

import os
import subprocess
import sys

import pytest

# Prints the median page faults of a run of a program with 64 MB of temporary memory.
PROGRAM = """
import resource, statistics, sys
import jax, jax.numpy as jnp
from anytime_jax.distributed import jax_settings

if "configure" in sys.argv:
    jax_settings.configure()

@jax.jit
def program(x):
    return jnp.sin(x[:, None] + x) @ jnp.ones((4096, 16))

x = jnp.arange(4096.0)
faults = []
for _ in range(25):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    jax.block_until_ready(program(x))
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(int(statistics.median(faults)))
"""


def page_faults(*arguments):
    environment = {k: v for k, v in os.environ.items() if k not in ("GLIBC_TUNABLES", "XLA_FLAGS")}
    environment |= {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return int(subprocess.check_output(command, env=environment, text=True).split()[-1])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
def test_configure_keeps_temporary_memory_between_runs():
    """By default every run clears its memory anew, a third of an update's time on a CPU.

    The median run counts. On a busy machine a run may start before the last one has freed its
    memory, or find it fragmented, and take another 64 MB.
    """
    pages = 4096 * 4096 * 4 // os.sysconf("SC_PAGE_SIZE")
    if page_faults() < pages / 2:
        pytest.skip("memory is kept by default: another malloc, or huge pages")
    assert page_faults("configure") < pages / 10
