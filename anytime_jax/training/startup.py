"""What every door that trains does first: the devices, the paths, the data, the signals."""

import contextlib
import errno
import os
import shlex
import signal
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from anytime_jax.checkpoints import run_directory
from anytime_jax.checks import format_value
from anytime_jax.config import schema
from anytime_jax.data.dataset import METADATA_NAME, DatasetInfo, load_dataset
from anytime_jax.data.local_paths import require_local_path
from anytime_jax.data.preparation import prepare_builtin
from anytime_jax.distributed import processes, sharding
from anytime_jax.errors import InputError
from anytime_jax.formatting import format_count, format_duration
from anytime_jax.training import preflight
from anytime_jax.training.progress import Display


def make_mesh(settings: schema.Config, devices: Sequence[Any] | None = None) -> Mesh:
    """Returns the device mesh, which fits the configuration.

    Args:
      settings: the run.
      devices: the devices to use; all of them if None.

    Raises:
      InputError: if they do not fit.
    """
    with _named("config.mesh"):
        mesh = sharding.make_mesh(settings.mesh, devices)
    shards, tensor = sharding.batch_shards(mesh), mesh.shape["tensor"]
    platform = mesh.devices.flat[0].platform
    there = sharding.has_host_memory(mesh)
    schema.check_layout(settings, mesh.size, shards, tensor, platform, there)
    with _named("config.mesh"):
        sharding.local_rows(mesh, settings.batch_size)
    return mesh


def check_paths(settings: schema.Config) -> None:
    """Checks that nothing else is where directories are wanted."""
    for name, path in (("run_dir", settings.run_dir), ("data.path", settings.data.path)):
        with _named(f"config.{name}"):
            require_local_path(path)
        try:
            if not stat.S_ISDIR(os.stat(path).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, "it is a file")
        except FileNotFoundError:
            continue
        except OSError as error:
            raise InputError(
                f"config.{name} = {format_value(path)} cannot be a directory ({error.strerror}): choose "
                "another"
            ) from error


def prepare(settings: schema.Config, mesh: Mesh, display: Display) -> DatasetInfo | None:
    """Prepares the built-in corpus where the configuration says so and it is not there yet."""
    data, model = settings.data, settings.model
    if not data.builtin_megabytes or (Path(data.path) / METADATA_NAME).exists():
        return None
    _check_without_data(settings, mesh)
    display.say(f"preparing the built-in corpus at {data.path} (once) ...")
    began = time.monotonic()
    with _named("config.data"):
        dataset = prepare_builtin(
            data.path,
            length=model.length,
            vocab_size=model.vocab_size,
            megabytes=data.builtin_megabytes,
        )
    seconds = format_duration(time.monotonic() - began)
    tokens = format_count(dataset.splits["train"].tokens)
    display.say(f"prepared {tokens} tokens of Python source text in {seconds}")
    return dataset


def load(settings: schema.Config) -> DatasetInfo:
    """The prepared dataset."""
    data = settings.data
    hint = (
        "prepare it: python -m anytime_jax prepare --source=json "
        "--input='c4/en/c4-train.*.json.gz' "
        "--validation-input='c4/en/c4-validation.*.json.gz' --vocabulary=t5.model "
        f"--length={settings.model.length} --output={shlex.quote(data.path)} (see docs/data.md)"
    )
    if data.builtin_megabytes and not processes.is_primary():
        processes.wait_until_visible((Path(data.path) / METADATA_NAME).exists)
    with _named("config.branch.data" if settings.branch.data else "config.data.path"):
        return _of_that_size(load_dataset(data.path, hint), data.builtin_megabytes)


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Turns the first SIGINT or SIGTERM into a request to save and end; a second SIGINT kills."""
    if not processes.is_single():
        yield processes.PreemptionSignal()
        return
    asked: list[int] = []

    def ask(number: int, frame: object) -> None:
        del frame
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.append(number)
        os.write(1, b"\nfinishing this update, then saving ...\n")  # print may be interrupted

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _check_without_data(settings: schema.Config, mesh: Mesh) -> None:
    """Checks what needs no data, before a minute goes into preparing them."""
    run_dir = Path(settings.run_dir)
    if not (run_dir / run_directory.RUN_FILE).exists():
        run_directory.check_identity(run_dir, {})
    preflight.checked_program(settings, mesh)


@contextlib.contextmanager
def _named(setting: str) -> Iterator[None]:
    """Turns a ValueError raised inside into an InputError that names a setting."""
    try:
        yield
    except ValueError as error:
        named = str(error).startswith("config.")
        raise InputError(str(error) if named else f"{setting}: {error}") from error


def _of_that_size(dataset: DatasetInfo, megabytes: float) -> DatasetInfo:
    """Refuses a built-in corpus that was prepared in another size than the one asked for."""
    held = dataset.settings.get("megabytes")
    if megabytes and held is not None and held != megabytes:
        raise InputError(
            f"config.data.builtin_megabytes = {megabytes:g}, but {dataset.path} holds {held:g}: "
            "ask for that, or give another config.data.path"
        )
    return dataset
