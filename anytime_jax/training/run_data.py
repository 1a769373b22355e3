"""Data of a run: datasets, which are opened or made of the built-in corpus, and their batches."""

import bisect
import itertools
import math
import shlex
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from anytime_jax.config.run_config import Config
from anytime_jax.corpus.builtin_source import BuiltinSource, difference_note
from anytime_jax.corpus.preparation import prepare
from anytime_jax.data.dataset_info import (
    METADATA_NAME,
    DatasetInfo,
    Delimiters,
    check_rows,
    load_dataset,
)
from anytime_jax.data.mixture import sample_numbers
from anytime_jax.data.prefetch import read_ahead
from anytime_jax.data.windows import Windows, count_windows
from anytime_jax.distributed import processes, sharding
from anytime_jax.errors import InputError, InUseError, within
from anytime_jax.formatting import format_count, format_duration
from anytime_jax.storage.paths import storage_path
from anytime_jax.training.objective import DocumentRules

_BUILTIN_PREFIX = "builtin"  # of the directories in which the built-in corpus is made
_POLL_SECONDS = 1.0  # between looks at a corpus that another process prepares


def iterate_batches(
    config: Config,
    mesh: Mesh,
    datasets: Mapping[str, DatasetInfo],
    rules: DocumentRules,
    step: int,
) -> Generator[jax.Array]:
    """Iterates over the batches of a run from a step on, each on the devices."""
    windows = Windows(datasets, config.mixture, seed=config.data.seed, repeat=config.data.repeat)

    def read(first: int, size: int) -> jax.Array:
        rows = windows.batch(first, size, sharding.local_rows(mesh, size))
        rules.check(rows, f"the batch at sample {config.sample_number(first):,}")
        return sharding.put_batch(mesh, rows, size)

    sizes = itertools.chain.from_iterable(  # the batch size may grow
        itertools.repeat(size) if count is None else itertools.repeat(size, count)
        for size, count in config.batches(step)
    )
    yield from read_ahead(read, config.samples(step), sizes)


def _builtin_path(config: Config) -> str | None:
    """The directory of the built-in corpus; None for a run that has other data."""
    return config.data.path if config.data.builtin_megabytes and not config.data.mixture else None


def open_datasets(config: Config) -> dict[str, DatasetInfo]:
    """Returns the dataset of every source; raises an InputError if one is missing or unusable."""
    if (builtin := _builtin_path(config)) and not processes.is_primary():
        processes.wait_until_visible((storage_path(builtin) / METADATA_NAME).exists)
    datasets: dict[str, DatasetInfo] = {}
    for name, path in config.sources.items():
        with within(_setting_of(config, path)):
            datasets[name] = load_dataset(path, _prepare_hint(config, path))
        prepared = datasets[name].settings.get("megabytes")
        if builtin == path and prepared not in (None, config.data.builtin_megabytes):
            raise InputError(
                f"{path} has {prepared:g}: set that, or give another config.data.path",
                "config.data.builtin_megabytes",
                config.data.builtin_megabytes,
            )
    _check_sources(datasets)
    for dataset in datasets.values():
        check_fit(config, dataset)
    return datasets


def _setting_of(config: Config, path: str) -> str:
    """Returns the name of the setting that gives the path of a source."""
    if path == config.data.path and not config.data.mixture:
        return "config.data.path"
    if path in (source for _, (source, _) in config.data.mixture):
        return "config.data.mixture"
    return "config.branch.data" if config.branch.data else "config.stages"


def open_sets(config: Config, datasets: Mapping[str, DatasetInfo]) -> dict[str, DatasetInfo]:
    """Returns the dataset of every validation set; raises an InputError if one is unusable.

    `datasets` are the datasets of the sources.
    """
    opened = {config.sources[name]: x for name, x in datasets.items()}
    sets: dict[str, DatasetInfo] = {}
    for name, path in config.sets.items():
        with within("config.eval.sets"):
            sets[name] = opened.get(path) or load_dataset(path, _prepare_hint(config, path))
        _check_source("config.eval.sets", name, sets[name], next(iter(datasets.values())))
        check_rows(sets[name], config.model.embedding_rows)
        check_evaluated(config, sets[name])
    return sets


def _check_sources(datasets: Mapping[str, DatasetInfo]) -> None:
    """Raises an InputError unless sources have the same vocabulary and different tokens."""
    (first, dataset), *others = datasets.items()
    seen = {dataset.fingerprint: first}
    for name, other in others:
        _check_source("config.data.mixture", name, other, dataset)
        if twin := seen.get(other.fingerprint):
            raise InputError(
                f"{name} and {twin} are the same text and split: leave one out, and give the other "
                "the sum of their weights",
                "config.data.mixture",
            )
        seen[other.fingerprint] = name


def _check_source(setting: str, name: str, dataset: DatasetInfo, first: DatasetInfo) -> None:
    """Raises an InputError unless a dataset has the tokens of the first source."""
    what, path = f"{name} at {dataset.path}", first.path
    check_tokens(setting, what, dataset, path, first.vocabulary_sha256, first.delimiters)


def check_tokens(
    setting: str,
    what: str,
    dataset: DatasetInfo,
    path: Path,
    vocabulary: str,
    delimiters: Delimiters,
) -> None:
    """Raises an InputError unless a dataset has the vocabulary and delimiters of a run's data.

    `what` names the dataset in the message, `path` is where the run's data are, and `vocabulary` is
    the SHA-256 of their vocabulary.
    """
    if dataset.vocabulary_sha256 != vocabulary:
        raise InputError(
            f"{what} has another vocabulary than the run's data at {path}: prepare its text with "
            f"--vocabulary={path}",
            setting,
        )
    if dataset.delimiters != delimiters:
        raise InputError(
            f"the documents of {what} {dataset.delimiters}, and the documents of the run's data at "
            f"{path} {delimiters}: prepare both with the same --bos and --end-of-text",
            setting,
        )


def _prepare_hint(config: Config, path: str) -> str:
    data = config.data
    if path == _builtin_path(config) and _may_be_builtin(path):
        return "a start without --plan makes the built-in corpus there"
    if path != data.path:
        return "prepare it, with the vocabulary of the run's other data (see docs/data.md)"
    options = {
        "input": data.text or "TEXTS",
        "validation-input": data.validation_text,
        "vocabulary": data.vocabulary or config.initial_weights or "VOCABULARY",
        "output": path,
    }
    words = [f"--{name}={shlex.quote(str(value))}" for name, value in options.items() if value]
    return (
        f"prepare it: anytime prepare {' '.join(words)} (see docs/data.md), then run "
        "the same command again"
    )


def make_builtin(config: Config, say: Callable[[str], None]) -> None:
    """Makes the built-in corpus if a run asks for it and the dataset does not exist.

    This takes a minute. Raises an InputError unless the name of the dataset's directory begins with
    "builtin".
    """
    path = _builtin_path(config)
    if processes.broadcast(path is None or (storage_path(path) / METADATA_NAME).exists()):
        return
    with processes.fail_together():
        if processes.is_primary():
            _check_place(config)
            _make_builtin(config, say)


def _may_be_builtin(path: str) -> bool:
    return storage_path(path).name.startswith(_BUILTIN_PREFIX)


def _check_place(config: Config) -> None:
    data = config.data
    if not _may_be_builtin(data.path):
        raise InputError(
            f"it has no dataset, and the built-in corpus is made only in a directory named "
            f"{_BUILTIN_PREFIX}..., such as runs/data/{_BUILTIN_PREFIX}-{config.model.vocab_size}: "
            "correct the path, prepare a dataset there (anytime prepare), or choose "
            "such a name",
            "config.data.path",
            data.path,
        )


def _make_builtin(config: Config, say: Callable[[str], None]) -> None:
    data = config.data
    say(f"preparing the built-in corpus at {data.path} (once) ...")
    if note := difference_note():
        say(note)
    start = time.monotonic()
    with within("config.data"):
        source = BuiltinSource(data.builtin_megabytes)
        is_waiting = False
        while True:
            try:
                dataset = prepare(source, data.path, vocabulary=config.model.vocab_size)
                assert dataset is not None  # as there is no share
                break
            except InUseError as error:
                if not is_waiting:
                    say(f"waiting for {error.name}, which is in use ({error.holder})")
                is_waiting = True
                time.sleep(_POLL_SECONDS)
    seconds = format_duration(time.monotonic() - start)
    tokens = format_count(dataset.splits["train"].tokens)
    say(f"prepared {tokens} tokens of Python source text in {seconds}")


def check_fit(config: Config, dataset: DatasetInfo) -> None:
    """Raises an InputError unless a dataset fits the model's vocabulary and has a window.

    Pretrained weights fix the vocabulary, which the dataset must then match.
    """
    for length in config.lengths:
        count_windows(dataset, "train", length)
    ours, theirs = config.model.vocab_size, dataset.vocab_size
    if ours == theirs:
        return
    if config.initial_weights and ours == config.model.embedding_rows < theirs:
        check_rows(dataset, ours)  # the tokenizer has more tokens than the model
        return
    advice = f"set --config.model.vocab_size={theirs}"
    if config.model.embedding_rows < theirs:
        advice += f" --config.model.embedding_rows={theirs}"
    if config.initial_weights:
        advice = f"prepare the text with the vocabulary of {config.initial_weights}"
    raise InputError(
        f"the dataset at {dataset.path} has a vocabulary of {theirs}: {advice}",
        "config.model.vocab_size",
        ours,
    )


def check_evaluated(config: Config, dataset: DatasetInfo) -> None:
    """Raises an InputError if a validation split has too few tokens for an evaluation.

    Where there are several sets, a set with fewer tokens than an evaluation takes is evaluated
    whole.
    """
    for length in config.lengths:
        tokens, given = count_windows(dataset, "validation", length) * length, config.eval.tokens
        if not isinstance(given, str) and given > tokens and len(config.sets) == 1:
            raise InputError(
                f"the validation split of {dataset.path} has {tokens:,} in windows of {length:,}: "
                "set --config.eval.tokens=all",
                "config.eval.tokens",
                given,
            )


def check_skip(config: Config, earlier: Mapping[str, Any], step: int) -> None:
    """Raises an InputError if the samples that are left out have changed before `step` updates.

    `earlier` are the settings of the start, or of the trunk, that made these updates.
    """
    was = tuple(map(tuple, earlier["data"].get("skip", ())))
    last = int(sample_numbers(np.array(config.samples(step) - 1), was))

    def past(skip: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
        return tuple((x[0], min(x[1], last)) for x in skip if x[0] <= last)

    if past(config.data.skip) != past(was):
        left_out = f", without {past(was)}" if past(was) else ""
        raise InputError(
            f"samples up to {last:,} have been read{left_out}: leave these as they are, and skip "
            "later ones",
            "config.data.skip",
            config.data.skip,
        )


def find_stop(config: Config, datasets: Mapping[str, DatasetInfo], step: int) -> tuple[float, str]:
    """Returns the update to stop at, `math.inf` for never, and the reason: "stop" or "data".

    `step` counts the updates done. Raises an InputError if the data end before the configured stop.
    """
    clock, stop = config.clock, config.stop_rule.after(step, config.clock)
    if config.data.repeat:
        return math.inf if stop is None else stop, "stop"
    exhausted = None if stop is None else find_exhausted(config, datasets, stop)
    if stop is not None and exhausted is None:
        return stop, "stop"

    def is_beyond(step: int) -> bool:
        return find_exhausted(config, datasets, step) is not None

    end = stop or next(2**i for i in itertools.count() if is_beyond(2**i))
    last = bisect.bisect_left(range(end), True, key=is_beyond) - 1
    if stop is None:
        return max(last, step), "data"
    assert exhausted is not None
    source, length, needed = exhausted
    dataset = datasets[source]
    available = dataset.splits["train"].windows(length)
    raise InputError(
        f"it needs {needed:,} windows of {length:,} tokens; the dataset at {dataset.path} has "
        f"{available:,}, enough for {clock.describe(last)}: prepare more text, stop earlier, or "
        "repeat it with --config.data.repeat=True",
        "config.stop",
        config.stop,
    )


def find_exhausted(
    config: Config, datasets: Mapping[str, DatasetInfo], step: int
) -> tuple[str, int, int] | None:
    """Returns the first source that has too few windows for `step` updates, or None.

    The result also has the length of the windows and the number of windows that are needed.
    """
    for stage, counts in config.windows_read(step):
        length = stage.model.length
        for source, count in counts.items():
            if count > datasets[source].splits["train"].windows(length):
                return source, length, count
    return None
