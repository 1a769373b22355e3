"""JAX settings that every command makes before it looks for devices."""

import os
import subprocess
import sys

import jax
import pytest

from anytime_jax.config.mesh import MeshConfig
from anytime_jax.distributed.sharding import make_mesh
from anytime_jax.errors import InputError

# Prints the median page faults of a run of a program with 64 MB of temporary memory.
PROGRAM = """
import resource, statistics
import jax, jax.numpy as jnp
from anytime_jax.distributed import jax_settings

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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
def test_configure_keeps_temporary_memory_between_runs():
    """By default every run clears its memory anew, a third of an update's time on a CPU.

    The median run counts. On a busy machine a run may start before the last one has freed its
    memory, or find it fragmented, and take another 64 MB.
    """
    environment = {k: v for k, v in os.environ.items() if k not in ("GLIBC_TUNABLES", "XLA_FLAGS")}
    environment |= {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}
    faults = subprocess.check_output([sys.executable, "-c", PROGRAM], env=environment, text=True)
    pages = 4096 * 4096 * 4 // os.sysconf("SC_PAGE_SIZE")
    assert int(faults.split()[-1]) < pages / 10


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("jax_enable_x64", True),
        ("jax_default_prng_impl", "rbg"),
        ("jax_random_seed_offset", 7),
        ("jax_high_dynamic_range_gumbel", True),
    ],
)
def test_setting_that_changes_a_run_is_refused(name, value):
    before = getattr(jax.config, name)
    jax.config.update(name, value)
    try:
        with pytest.raises(InputError, match=f"{name} is {value!r}.*unset {name.upper()}"):
            make_mesh(MeshConfig())
    finally:
        jax.config.update(name, before)
    make_mesh(MeshConfig())


def test_missing_platform_is_one_line(tmp_path):
    words = [sys.executable, "-m", "anytime_jax", "train", "--config=quickstart"]
    words += [f"--config.run_dir={tmp_path / 'run'}"]
    for name, value in (("JAX_PLATFORMS", "nowhere"), ("JAX_ENABLE_X64", "perhaps")):
        done = subprocess.run(words, capture_output=True, text=True, env=os.environ | {name: value})
        assert done.returncode == 2
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
        assert name in done.stderr
    assert not (tmp_path / "run").exists()
