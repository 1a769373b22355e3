"""What every door sets before JAX looks for devices."""

import os
import subprocess
import sys

import pytest

# The kernel's page faults of a program that takes 64 MB for itself, after six runs of it.
PROGRAM = """
import resource, sys
import jax, jax.numpy as jnp
from anytime_jax.distributed import runtime

if "set" in sys.argv:
    runtime.configure()

@jax.jit
def program(x):
    return jnp.sin(x[:, None] + x) @ jnp.ones((4096, 16))

x = jnp.arange(4096.0)
for i in range(12):
    if i == 6:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    jax.block_until_ready(program(x))
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(*arguments):
    kept = {name: x for name, x in os.environ.items() if name != "GLIBC_TUNABLES"}
    environment = {**kept, "JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}
    line = [sys.executable, "-c", PROGRAM, *arguments]
    return int(subprocess.check_output(line, env=environment, text=True).split()[-1])


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
def test_memory_of_a_program_stays_for_its_next_run():
    """Given back to the kernel, it is cleared anew at every update: a third of a CPU's time."""
    pages = 4096 * 4096 * 4 // os.sysconf("SC_PAGE_SIZE")
    without = faults()
    if without < pages:
        pytest.skip("memory stays here anyway: another malloc, or huge pages")
    assert faults("set") < pages // 10
