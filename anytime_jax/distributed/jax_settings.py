"""JAX settings that every command makes before it looks for devices, and those that runs need."""

import ctypes
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import jax

from anytime_jax.distributed import xla_settings
from anytime_jax.errors import InputError
from anytime_jax.storage.paths import cache_directory

# Parameters of glibc's mallopt; the numbers are part of its interface.
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
_ACCELERATORS = ("nvidia[0-9]*", "accel[0-9]*", "kfd", "vfio/[0-9]*")  # device files in /dev

# With another value, the numbers of a run are others, or its code is refused by JAX.
_NEEDED = {
    "jax_enable_x64": False,
    "jax_disable_jit": False,
    "jax_default_prng_impl": "threefry2x32",
    "jax_random_seed_offset": 0,
    "jax_high_dynamic_range_gumbel": False,
    "jax_threefry_partitionable": True,
    "jax_numpy_rank_promotion": "allow",
    "jax_numpy_dtype_promotion": "standard",
    "jax_transfer_guard": "allow",
}


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
    if not any(any(Path("/dev").glob(x)) for x in _ACCELERATORS):
        _keep_freed_memory()


def find_devices() -> list[Any]:
    """Returns all devices.

    Raises an InputError if JAX has none, or if its settings are not those that runs need.
    """
    for name, needed in _NEEDED.items():
        value = getattr(jax.config, name, needed)
        if value not in (needed, None):
            raise InputError(
                f"JAX's setting {name} is {getattr(value, 'value', value)!r}, and runs need "
                f"{needed!r}: unset {name.upper()} in the environment, or what else sets it"
            )
    try:
        return jax.devices()
    except (RuntimeError, AssertionError, ValueError) as error:  # the last two of wrong variables
        reason = " ".join(str(error).split()) or "a platform that is not installed"
        raise InputError(f"JAX has no devices ({reason}): correct JAX_PLATFORMS") from error


def _keep_freed_memory() -> None:
    """Makes glibc keep freed memory for the next update.

    XLA's CPU backend allocates its temporary memory for every run of a program. By default glibc
    returns such large blocks to the kernel each time, which must clear them again: 2 of 5 CPU
    seconds of a small model's update. Memory in one arena shared by all threads is kept.
    """
    if mallopt := _find_glibc("mallopt"):
        for option, value in ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1)):
            mallopt(option, value)


def return_freed_memory() -> None:
    """Makes glibc return to the system all memory that is free now.

    A save needs blocks of other sizes than an update. Without this, what is free between them
    would add to the memory of the process.
    """
    if malloc_trim := _find_glibc("malloc_trim"):
        malloc_trim(0)


def _find_glibc(name: str) -> Any:
    """Returns a function of glibc, or None on a system without it."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
