"""Setup shared by the training commands: mesh, paths and dataset."""

import contextlib
import shlex
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from anytime_jax.checkpoints import run_directory
from anytime_jax.checks import format_value
from anytime_jax.config import layout, schema
from anytime_jax.corpus.installed_python import BuiltinSource
from anytime_jax.corpus.preparation import prepare
from anytime_jax.data.dataset import METADATA_NAME, DatasetInfo, load_dataset
from anytime_jax.distributed import processes, sharding
from anytime_jax.errors import InputError
from anytime_jax.formatting import format_count, format_duration
from anytime_jax.storage.failures import check_directory
from anytime_jax.storage.paths import absolute_path, storage_path
from anytime_jax.training import preflight
from anytime_jax.training.progress import Display

_MISREAD = ("[", "\\", "**")  # in paths: Orbax takes them for patterns, TensorStore turns the slash
_BUILTIN_PREFIX = "builtin"  # of the directories in which the built-in corpus is made


def make_mesh(config: schema.Config, devices: Sequence[Any] | None = None) -> Mesh:
    """Returns the device mesh of a run, over all devices by default.

    Raises an InputError if the configuration does not fit the devices.
    """
    try:
        devices = jax.devices() if devices is None else devices
    except RuntimeError as error:
        raise InputError(f"JAX has no devices ({error}): correct JAX_PLATFORMS") from error
    with _naming("config.mesh"):
        mesh = sharding.make_mesh(config.mesh, devices)
    shards, tensor = sharding.batch_shards(mesh), mesh.shape["tensor"]
    layout.check_layout(config, mesh.size, shards, tensor, mesh.devices.flat[0].platform)
    return mesh


def check_paths(config: schema.Config) -> None:
    """Raises an InputError if the path of the run or the data is not usable as a directory."""
    with _naming("config.run_dir"):
        run_dir = str(absolute_path(config.run_dir))
    if bad := next((x for x in _MISREAD if x in run_dir), None):
        raise InputError(
            f"config.run_dir = {format_value(config.run_dir)} has {bad!r} in its path {run_dir}, "
            "which Orbax and TensorStore misread: choose another"
        )
    for name, path in (("run_dir", config.run_dir), ("data.path", config.data.path)):
        with _naming(f"config.{name}"):
            stored = storage_path(path)
        check_directory(stored, f"config.{name} = {format_value(path)}")


def open_dataset(config: schema.Config, mesh: Mesh, display: Display) -> DatasetInfo:
    """Returns the run's dataset; prepares the built-in corpus first, if that is configured.

    Raises an InputError if the dataset is missing or does not fit the configuration.
    """
    with processes.fail_together():
        if processes.is_primary():
            _prepare_builtin(config, mesh, display)
    with processes.fail_together():
        dataset = _load(config)
        preflight.check_data(config, dataset)
    return dataset


def _prepare_builtin(config: schema.Config, mesh: Mesh, display: Display) -> None:
    """Prepares the built-in corpus if it is configured and missing."""
    data, model, run_dir = config.data, config.model, storage_path(config.run_dir)
    if not data.builtin_megabytes or (storage_path(data.path) / METADATA_NAME).exists():
        return
    if not storage_path(data.path).name.startswith(_BUILTIN_PREFIX):
        raise InputError(
            f"config.data.path = {format_value(data.path)} has no dataset, and the built-in corpus "
            f"is made only in a directory named {_BUILTIN_PREFIX}..., such as "
            f"runs/data/{_BUILTIN_PREFIX}-{model.vocab_size}-{model.length}: correct the path, "
            "prepare a dataset there (python -m anytime_jax prepare), or choose such a name"
        )
    # Preparing takes a minute: all that needs no data is checked before.
    if not (run_dir / run_directory.RUN_FILE).exists():
        run_directory.check_identity(run_dir, {})
    preflight.make_checked_program(config, mesh)
    display.say(f"preparing the built-in corpus at {data.path} (once) ...")
    start = time.monotonic()
    with _naming("config.data"):
        source = BuiltinSource(data.builtin_megabytes)
        dataset = prepare(source, data.path, length=model.length, vocabulary=model.vocab_size)
    seconds = format_duration(time.monotonic() - start)
    tokens = format_count(dataset.splits["train"].tokens)
    display.say(f"prepared {tokens} tokens of Python source text in {seconds}")


def _load(config: schema.Config) -> DatasetInfo:
    data = config.data
    text, vocabulary = "--source=folder --input=TEXTS", config.initial_weights
    if not vocabulary:
        vocabulary, text = (
            "t5.model",
            (
                "--source=json --input='c4/en/c4-train.*.json.gz' "
                "--validation-input='c4/en/c4-validation.*.json.gz'"
            ),
        )
    hint = (
        f"prepare it: python -m anytime_jax prepare {text} --vocabulary={shlex.quote(vocabulary)} "
        f"--length={config.model.length} --output={shlex.quote(data.path)} (see docs/data.md)"
    )
    if data.builtin_megabytes and not processes.is_primary():
        processes.wait_until_visible((storage_path(data.path) / METADATA_NAME).exists)
    with _naming("config.branch.data" if config.branch.data else "config.data.path"):
        dataset = load_dataset(data.path, hint)
    prepared = dataset.settings.get("megabytes")
    if data.builtin_megabytes and prepared not in (None, data.builtin_megabytes):
        raise InputError(
            f"config.data.builtin_megabytes = {data.builtin_megabytes:g}, but {dataset.path} has "
            f"{prepared:g}: set that, or give another config.data.path"
        )
    return dataset


@contextlib.contextmanager
def _naming(setting: str) -> Iterator[None]:
    """Turns a ValueError raised inside into an InputError that names a setting."""
    try:
        yield
    except ValueError as error:
        is_named = str(error).startswith("config.")
        raise InputError(str(error) if is_named else f"{setting}: {error}") from error
