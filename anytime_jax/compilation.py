"""How JAX compiles: set by every door that computes, before JAX looks for devices."""

import os
from pathlib import Path

import jax


def set_up() -> None:
    """Sets what must be set before JAX looks for devices."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # programs compiled by earlier starts
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        jax.config.update("jax_compilation_cache_dir", str(home / "anytime_jax" / "compiled"))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        # Programs under way together would starve each other's collectives of the few real cores.
        jax.config.update("jax_cpu_enable_async_dispatch", False)
