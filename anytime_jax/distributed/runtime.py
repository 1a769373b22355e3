"""How JAX compiles and where it keeps things: set by every door that computes, before devices."""

import ctypes
import os
import sys
from pathlib import Path

import jax

# Of glibc's mallopt; the numbers are part of its interface.
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
_ACCELERATORS = ("nvidia[0-9]*", "accel[0-9]*", "kfd", "vfio/[0-9]*")  # in /dev


def configure() -> None:
    """Sets what must be set before JAX looks for devices."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # programs compiled by earlier starts
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        jax.config.update("jax_compilation_cache_dir", str(home / "anytime_jax" / "compiled"))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        # Programs under way together would starve each other's collectives of the few real cores.
        jax.config.update("jax_cpu_enable_async_dispatch", False)
    if sys.platform == "linux" and not any(any(Path("/dev").glob(x)) for x in _ACCELERATORS):
        _keep_memory()


def _keep_memory() -> None:
    """Keeps freed memory in the process, for the next update to use.

    XLA's CPU backend takes its temporary memory anew for every program it runs. Left to itself,
    glibc gives so large a block back to the kernel each time, which has to clear it again: 2 of 5
    CPU seconds of the quickstart's update. In the one arena that all threads share, it stays.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # no glibc
        return
    for option, value in ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1)):
        mallopt(option, value)
