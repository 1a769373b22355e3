"""Pytest plugin of both suites: eight fake CPU devices, a compilation cache, shared fixtures.

XLA compiles without optimisation (`forked_starts.COMPILED_QUICKLY`), since tests compile much and
run little; `ANYTIME_JAX_TEST_OPTIMIZED=1` tests what users run.
"""

# ruff: noqa: E402  (JAX reads its settings when it is imported: they come first)

import os
import sys

import compiled_programs
from forked_starts import COMPILED_QUICKLY, Starts
from paths import REPOSITORY

DEVICES = 8

if "jax" in sys.modules:  # its settings are read when it is imported
    raise RuntimeError("another pytest plugin imported jax before this one: run without it")
os.environ["JAX_PLATFORMS"] = "cpu"
_flags = f"--xla_force_host_platform_device_count={DEVICES}"
if os.environ.get("ANYTIME_JAX_TEST_OPTIMIZED") != "1":
    _flags += f" {COMPILED_QUICKLY}"
os.environ.update(compiled_programs.variables(_flags))
for name in ("JAX_ENABLE_X64", "JAX_DISABLE_JIT", "JAX_DEBUG_NANS"):
    os.environ.pop(name, None)
if "PYTEST_XDIST_WORKER" not in os.environ:
    compiled_programs.prune()

import atexit
import contextlib
import pathlib
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator

import hypothesis
import jax
import jax.monitoring
import pytest

from anytime_jax.data.dataset_info import DatasetInfo, load_dataset

_C4_FILES = ("t5_cc_all_32000_100extra.model", "c4_docs.jsonl", "c4-sample.01.json.gz")

# The same examples every time: a failure in CI can be repeated elsewhere.
hypothesis.settings.register_profile(
    "repeatable", deadline=None, derandomize=True, database=None, max_examples=50
)
hypothesis.settings.load_profile("repeatable")

# A shell that starts the tests in the background makes them, and their processes, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Programs that run at the same time starve each other's collectives of the few real cores.
jax.config.update("jax_cpu_enable_async_dispatch", False)

_compiled = 0
_MEMORY = "/dev/shm"
_ROOM_BYTES = 2**32


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Chooses the place of temporary directories before pytest does.

    Lets JAX compile a program anew while another process writes it to the cache.
    """
    config.addinivalue_line("filterwarnings", "ignore:Error reading persistent compilation cache")
    if not config.option.basetemp and "PYTEST_XDIST_WORKER" not in os.environ:
        config.option.basetemp = _directory_in_memory()


def _directory_in_memory() -> str | None:
    """Returns a directory in memory, which goes when the tests end; None if there is no room.

    Tests save many checkpoints, and each save waits for a disk that has all of its files.
    """
    try:
        if shutil.disk_usage(_MEMORY).free < _ROOM_BYTES:
            return None
        folder = tempfile.mkdtemp(prefix="anytime_jax_tests_", dir=_MEMORY)
    except OSError:  # there is no such place, or it cannot be written
        return None
    owner = os.getpid()
    # Forked processes, too, have this function.
    atexit.register(lambda: os.getpid() == owner and shutil.rmtree(folder, ignore_errors=True))
    return folder


def _count_compiled(event: str, duration_secs: float, **unused: object) -> None:
    del duration_secs, unused
    global _compiled
    _compiled += event == "/jax/core/compile/backend_compile_duration"


jax.monitoring.register_event_duration_secs_listener(_count_compiled)


@contextlib.contextmanager
def _compilations() -> Iterator[Callable[[], int]]:
    start = _compiled
    yield lambda: _compiled - start


@pytest.fixture
def compilations() -> Callable[[], contextlib.AbstractContextManager[Callable[[], int]]]:
    """`with compilations() as count:` counts the programs that XLA compiles inside."""
    return _compilations


@pytest.fixture(scope="session", autouse=True)
def _eight_devices() -> None:
    if len(jax.devices()) != DEVICES:
        raise RuntimeError(f"the tests need {DEVICES} fake devices; JAX has {jax.devices()}")


@pytest.fixture(scope="session")
def starts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Starts]:
    """Processes of `python -m anytime_jax.main`, forked after its imports."""
    server = Starts(tmp_path_factory.mktemp("starts"))
    yield server
    server.close()


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> DatasetInfo:
    """The dataset of small runs."""
    import small_run

    folder = small_run.made_once(tmp_path_factory, "tiny", small_run.prepare_dataset)
    return load_dataset(folder / "data")


@pytest.fixture(scope="session")
def whole(dataset: DatasetInfo, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Uninterrupted small run to 2x, 20 updates, which no test changes."""
    import training_runs

    return training_runs.finished(tmp_path_factory, "whole", dataset, stop="2x")


@pytest.fixture(scope="session")
def trained(dataset: DatasetInfo, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Run to 4x, 40 updates, with five averages and every fifth checkpoint; none changes it."""
    import training_runs

    averages = ("f6.25", "f12.5", "f25", "f50", "f100")
    changes = {"checkpoint__every": "5 steps", "checkpoint__keep_every": "5 steps"}
    return training_runs.finished(
        tmp_path_factory, "trained", dataset, averages=averages, stop="4x", **changes
    )


@pytest.fixture(scope="session")
def c4_data() -> pathlib.Path:
    """The folder with T5's vocabulary and some C4 documents; skips the test if it is missing."""
    variable = os.environ.get("ANYTIME_JAX_TEST_DATA")
    folder = pathlib.Path(variable) if variable else REPOSITORY.parent / "shared" / "data"
    missing = [name for name in _C4_FILES if not (folder / name).is_file()]
    if missing:
        pytest.skip(
            f"{folder} has no {' and no '.join(missing)}: set ANYTIME_JAX_TEST_DATA to a folder "
            "with T5's vocabulary and C4 documents"
        )
    return folder
