"""What every test starts from: eight fake CPU devices, and no cache of compiled programs.

XLA is told to compile quickly (`forked.COMPILED_QUICKLY`). `ANYTIME_JAX_TEST_OPTIMIZED=1` leaves it
as users have it.
"""

# ruff: noqa: E402  (JAX reads its settings when it is imported: they come first)

import os
import sys

from forked_starts import COMPILED_QUICKLY, Starts

DEVICES = 8

if "jax" in sys.modules:  # its settings are read when it is imported
    raise RuntimeError("a pytest plugin imported jax before tests/conftest.py: run without it")
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"
if os.environ.get("ANYTIME_JAX_TEST_OPTIMIZED") != "1":
    os.environ["XLA_FLAGS"] += f" {COMPILED_QUICKLY}"
for name in ("JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_X64", "JAX_DISABLE_JIT", "JAX_DEBUG_NANS"):
    os.environ.pop(name, None)

import contextlib
import pathlib
from collections.abc import Callable, Iterator

import hypothesis
import jax
import jax.monitoring
import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
FIXTURES = REPOSITORY / "tests" / "fixtures"
# A worker takes whole files: these, of ten seconds and more, begin before the others, so that no
# worker is left with one of them at the end.
LONG_FILES = (
    *("trainer", "branching", "saved_weights", "random_kills", "faults", "theory", "train"),
    *("bad_settings", "processes", "decoder", "risk", "manager", "runs", "averaging"),
    "average_memory",
)
_C4_FILES = ("t5_cc_all_32000_100extra.model", "c4_docs.jsonl", "c4-sample.01.json.gz")

# The same examples at every run: a failure in CI is a failure at home.
hypothesis.settings.register_profile(
    "repeatable", deadline=None, derandomize=True, database=None, max_examples=50
)
hypothesis.settings.load_profile("repeatable")

# Programs under way together would starve each other's collectives of the few real cores.
jax.config.update("jax_cpu_enable_async_dispatch", False)

_compiled = 0


def _count_compiled(event: str, duration_secs: float, **unused: object) -> None:
    del duration_secs, unused
    global _compiled
    _compiled += event == "/jax/core/compile/backend_compile_duration"


jax.monitoring.register_event_duration_secs_listener(_count_compiled)


def pytest_configure(config: pytest.Config) -> None:
    """Lets pytest-xdist take files in the order of collection, not by their number of tests."""
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the long files first."""
    place = {f"test_{name}": i for i, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: place.get(item.path.stem, len(place)))


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
    """Starts processes of `python -m anytime_jax.main`, whose imports are paid for once."""
    made = Starts(tmp_path_factory.mktemp("starts"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def c4_data() -> pathlib.Path:
    """The folder with T5's vocabulary and some real C4 documents; skips where there is none."""
    given = os.environ.get("ANYTIME_JAX_TEST_DATA")
    folder = pathlib.Path(given) if given else REPOSITORY.parent / "shared" / "data"
    missing = [name for name in _C4_FILES if not (folder / name).is_file()]
    if missing:
        pytest.skip(
            f"{folder} has no {' and no '.join(missing)}: set ANYTIME_JAX_TEST_DATA to a folder "
            "with T5's vocabulary and C4 documents"
        )
    return folder
