"""Cache of compiled programs that the tests keep from run to run, in `.cache` of the repository.

A program that was compiled by another version, with other options or for another processor may
round differently, so each of those has a folder of its own. The least recently used programs go
first when all folders together have more than `MOST_BYTES`.
"""

import hashlib
import importlib.metadata
import pathlib
import platform

from paths import REPOSITORY

FOLDER = REPOSITORY / ".cache" / "compiled_tests"
MOST_BYTES = 2**28  # the default tests of both suites keep 30 MB


def variables(flags: str) -> dict[str, str]:
    """Returns environment variables of a process that compiles with `XLA_FLAGS` and keeps all."""
    versions = [importlib.metadata.version(name) for name in ("jax", "jaxlib")]
    words = "\n".join([*versions, flags, _processor()])
    name = f"jax-{versions[0]}-{hashlib.sha256(words.encode()).hexdigest()[:12]}"
    return {
        "XLA_FLAGS": flags,
        "JAX_COMPILATION_CACHE_DIR": str(FOLDER / name),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


def prune() -> None:
    """Deletes the least recently used programs that are too many.

    JAX's own bound reads the whole folder before each program that it writes. File systems note
    the time of the last reading once a day, which is enough.
    """
    files = [(path, path.stat()) for path in FOLDER.glob("*/*") if path.is_file()]
    left = MOST_BYTES
    for path, status in sorted(files, key=lambda x: -max(x[1].st_atime, x[1].st_mtime)):
        left -= status.st_size
        if left < 0:
            path.unlink(missing_ok=True)


def _processor() -> str:
    """Returns the model of the processor and its features."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return f"{platform.machine()} {platform.processor()}"
    names = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({x for x in lines if x.split(":")[0].strip() in names}))
