"""Data of a run: its dataset, opened or prepared from the built-in corpus, and batches of it."""

import itertools
import shlex
import time
from collections.abc import Callable, Generator

import jax

from anytime_jax.checks import format_value
from anytime_jax.config.schema import Config
from anytime_jax.corpus.installed_python import BuiltinSource
from anytime_jax.corpus.preparation import prepare
from anytime_jax.data.dataset_info import METADATA_NAME, DatasetInfo, load_dataset
from anytime_jax.data.prefetch import read_ahead
from anytime_jax.data.windows import Windows
from anytime_jax.distributed import processes, sharding
from anytime_jax.errors import InputError
from anytime_jax.formatting import format_count, format_duration
from anytime_jax.storage.paths import storage_path
from anytime_jax.training.preflight import check_data, naming
from anytime_jax.training.run_failures import LastCheckpoint
from anytime_jax.training.start_plan import Plan

_BUILTIN_PREFIX = "builtin"  # of the directories in which the built-in corpus is made


def iterate_batches(plan: Plan, last: LastCheckpoint) -> Generator[jax.Array]:
    """Iterates over the batches of a run from the plan's step on, each on the devices."""
    config, mesh = plan.config, plan.mesh
    data, length = config.data, config.model.length
    windows = Windows(plan.dataset, "train", length=length, seed=data.seed, repeat=data.repeat)

    def read(first: int, size: int) -> jax.Array:
        rows = windows.batch(first, size, sharding.local_rows(mesh, size))
        return sharding.put_batch(mesh, rows, size)

    sizes = itertools.chain.from_iterable(  # the batch size may grow
        itertools.repeat(size) if count is None else itertools.repeat(size, count)
        for size, count in config.clock.batches(plan.step)
    )
    with last.named():
        yield from read_ahead(read, plan.samples(plan.step), sizes)


def is_prepared(config: Config) -> bool:
    """Whether there is a dataset, or no built-in corpus is to be made in its place."""
    data = config.data
    return not data.builtin_megabytes or (storage_path(data.path) / METADATA_NAME).exists()


def open_dataset(config: Config) -> DatasetInfo:
    """Returns the run's dataset; raises an InputError if it is missing or does not fit."""
    data = config.data
    if data.builtin_megabytes and not processes.is_primary():
        processes.wait_until_visible((storage_path(data.path) / METADATA_NAME).exists)
    with naming("config.branch.data" if config.branch.data else "config.data.path"):
        dataset = load_dataset(data.path, _prepare_hint(config))
    prepared = dataset.settings.get("megabytes")
    if data.builtin_megabytes and prepared not in (None, data.builtin_megabytes):
        raise InputError(
            f"config.data.builtin_megabytes = {data.builtin_megabytes:g}, but {dataset.path} has "
            f"{prepared:g}: set that, or give another config.data.path"
        )
    check_data(config, dataset)
    return dataset


def _prepare_hint(config: Config) -> str:
    data = config.data
    options = {
        "input": data.text or "TEXTS",
        "validation-input": data.validation_text,
        "vocabulary": data.vocabulary or config.initial_weights or "VOCABULARY",
        "length": config.model.length,
        "output": data.path,
    }
    words = [f"--{name}={shlex.quote(str(value))}" for name, value in options.items() if value]
    return (
        f"prepare it: python -m anytime_jax prepare {' '.join(words)} (see docs/data.md), then run "
        "the same command again"
    )


def check_place(config: Config) -> None:
    """Raises an InputError unless the built-in corpus may be made where the data should be."""
    data, model = config.data, config.model
    if not storage_path(data.path).name.startswith(_BUILTIN_PREFIX):
        raise InputError(
            f"config.data.path = {format_value(data.path)} has no dataset, and the built-in corpus "
            f"is made only in a directory named {_BUILTIN_PREFIX}..., such as "
            f"runs/data/{_BUILTIN_PREFIX}-{model.vocab_size}-{model.length}: correct the path, "
            "prepare a dataset there (python -m anytime_jax prepare), or choose such a name"
        )


def prepare_builtin(config: Config, say: Callable[[str], None]) -> DatasetInfo:
    """Prepares the built-in corpus, which takes a minute, and returns the dataset."""
    with processes.fail_together():
        if processes.is_primary():
            _prepare(config, say)
    with processes.fail_together():
        return open_dataset(config)


def _prepare(config: Config, say: Callable[[str], None]) -> None:
    data, model = config.data, config.model
    say(f"preparing the built-in corpus at {data.path} (once) ...")
    start = time.monotonic()
    with naming("config.data"):
        source = BuiltinSource(data.builtin_megabytes)
        dataset = prepare(source, data.path, length=model.length, vocabulary=model.vocab_size)
    seconds = format_duration(time.monotonic() - start)
    tokens = format_count(dataset.splits["train"].tokens)
    say(f"prepared {tokens} tokens of Python source text in {seconds}")
