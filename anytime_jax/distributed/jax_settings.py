"""JAX settings that every command makes before it looks for devices."""

import ctypes
import os
import sys
import warnings
from pathlib import Path

import jax

from anytime_jax.distributed import xla_settings
from anytime_jax.storage.paths import cache_directory

# Parameters of glibc's mallopt; the numbers are part of its interface.
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
_ACCELERATORS = ("nvidia[0-9]*", "accel[0-9]*", "kfd", "vfio/[0-9]*")  # device files in /dev


def configure() -> None:
    """Sets the compilation cache, JAX's environment, fake devices and glibc's allocator."""
    xla_settings.set_environment()
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(cache_directory() / "compiled"))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    # JAX does not write entries atomically. One that another process is writing, or was killed
    # while it wrote, is compiled again.
    warnings.filterwarnings("ignore", "Error reading persistent compilation cache entry")
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        # Programs that run concurrently starve each other's collectives of the few real cores.
        jax.config.update("jax_cpu_enable_async_dispatch", False)
    if sys.platform == "linux" and not any(any(Path("/dev").glob(x)) for x in _ACCELERATORS):
        _keep_freed_memory()


def _keep_freed_memory() -> None:
    """Makes glibc keep freed memory for the next update.

    XLA's CPU backend allocates its temporary memory for every run of a program. By default glibc
    returns such large blocks to the kernel each time, which must clear them again: 2 of 5 CPU
    seconds of a small model's update. Memory in one arena shared by all threads is kept.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # the system has no glibc
        return
    for option, value in ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1)):
        mallopt(option, value)
