"""Preparation: from text to a dataset of tokens, in parallel, resumable, deterministic.

Each part of the text is tokenized by itself (`part_tokenization.py`). Concatenated, the arrays of a
split are its tokens. A restart after a kill skips the finished parts. The bytes do not depend on
the number of workers. Shares divide the parts among processes on any hosts that share the
directory; they need no locks, as every part has the same bytes whoever writes it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from anytime_jax.corpus import companion_files
from anytime_jax.corpus.document_files import LIST_MARK
from anytime_jax.corpus.part_tokenization import (
    PartResult,
    PartTask,
    Target,
    WorkDirectory,
    count_records,
)
from anytime_jax.corpus.source_interface import (
    SOURCES,
    Part,
    Source,
    describe_left_out,
    read_texts,
)
from anytime_jax.corpus.validation_split import assign_split
from anytime_jax.corpus.vocabulary_files import load_vocabulary
from anytime_jax.corpus.vocabulary_interface import Vocabulary
from anytime_jax.corpus.vocabulary_training import train_model
from anytime_jax.corpus.workers import ProgressCallback, run_tasks
from anytime_jax.data.dataset_info import (
    METADATA_NAME,
    SPLITS,
    TRAIN,
    VALIDATION,
    VOCABULARY_NAME,
    WORK_NAME,
    DatasetInfo,
    SplitInfo,
    TextCounts,
    add_counts,
    load_dataset,
    save_metadata,
)
from anytime_jax.errors import InputError
from anytime_jax.formatting import shorten_digests
from anytime_jax.storage import locks
from anytime_jax.storage.atomic import atomic_write
from anytime_jax.storage.failures import check_directory, read_failure, storage_errors
from anytime_jax.storage.files import is_regular_file, list_files, remove_directory
from anytime_jax.storage.json_files import json_digest, read_json, write_json
from anytime_jax.storage.paths import absolute_path, is_address

# A vocabulary is trained on this many parts, on the first characters of each.
_SAMPLE_PARTS, _SAMPLE_CHARACTERS = 16, 250_000

Bos = Literal["none", "document"]


@dataclasses.dataclass(frozen=True)
class Share:
    """Share I of N of a preparation: every N-th part, from part I on."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> Share:
        """Parses "I/N"; raises InputError for anything else."""
        match = re.fullmatch("([0-9]{1,9})/([0-9]{1,9})", text)
        if not match or int(match[1]) >= int(match[2]):
            raise InputError(f"share {text!r} is not I/N with I from 0 to N - 1, such as 0/64")
        return cls(int(match[1]), int(match[2]))


def prepare(
    source: Source,
    output: str | os.PathLike[str] | Path,
    *,
    vocabulary: str | os.PathLike[str] | int,
    share: Share | None = None,
    end_of_text: str | None = None,
    bos: Bos | None = None,
    workers: int | None = None,
    progress: ProgressCallback | None = None,
) -> DatasetInfo | None:
    """Prepares a dataset or a share of it, resumes the preparation, or finds that it is complete.

    Args:
      source: `FileSource`, `TfdsSource`, `BuiltinSource` or any other `Source`.
      output: the dataset's directory, local or in a bucket: new, empty, or prepared before with the
        same settings.
      vocabulary: path or address of a SentencePiece model or a `tokenizer.json`, or the size of a
        vocabulary to train on the text.
      share: the parts that are tokenized, by default all. A call without a share, with the same
        arguments otherwise, tokenizes the parts that no share has, and completes the dataset.
      end_of_text: token of a `tokenizer.json` that ends documents, if its files do not name one.
      bos: "document" begins every document with the tokenizer's BOS, "none" does not; by default as
        the tokenizer's own configuration says.
      workers: number of processes; by default one per core if there is work for them.
      progress: called in this process whenever a part is finished.

    Returns:
      The dataset; None after a share, if the dataset is not complete.

    Raises:
      InputError: a setting or the text cannot be used, the directory holds something else, or
        another process is preparing it.
      RunError: a worker process died; the same call resumes.
    """
    output = absolute_path(output)
    check_directory(output, f"output {output}")
    vocabulary_setting, make_vocabulary = _setting_and_maker(vocabulary, end_of_text)
    settings = {
        "vocabulary": vocabulary_setting,
        **SOURCES.to_dict(source),
        **({"bos": bos} if bos else {}),
    }
    if info := _load_complete(output, settings):
        return info
    try:
        with _work_directory(output, settings, share) as work:
            if info := _load_complete(output, settings):  # another process has just completed it
                return info
            if not (parts := source.parts()):
                raise InputError(f"{type(source).__name__}.parts() returns no part; give some")
            own = _place_vocabulary(work, make_vocabulary, parts)
            bos_id, dtype = _bos_id(own, bos), own.token_dtype.name
            target = Target(settings, len(parts), own.sha256, bos_id, dtype, work)
            tasks = [PartTask(part, index, target) for index, part in enumerate(parts)]
            if share is not None:
                _tokenize(tasks[share.index :: share.count], workers, progress)
                return None
            results = _tokenize(tasks, workers, progress)
            _check_splits(work, parts, results)
            if not (isinstance(vocabulary, int) or is_address(vocabulary)):
                companion_files.save(companion_files.of_vocabulary(Path(vocabulary)), output)
            _complete(_dataset_info(target, own, parts, results), work)
        # After the lock is released: over NFS, a directory with open files cannot be removed.
        remove_directory(output / WORK_NAME, missing_ok=True)
    except (InputError, OSError):
        if info := _load_complete(output, settings):  # by another process, which has cleaned up
            return info
        raise
    return load_dataset(output)


def has_changed(source: Source, info: DatasetInfo) -> bool:
    """Returns whether a source has other or changed files than a dataset of it had.

    Raises an InputError if there is nothing to read. Input at addresses is not listed.
    """
    names = [str(x) for x in SOURCES.to_dict(source).values()]
    if not info.input_digest or any(is_address(x) or x.startswith(LIST_MARK) for x in names):
        return False
    return info.input_digest != _digest(source.parts())


def _digest(parts: Sequence[Part]) -> str:
    return json_digest([part.identity for part in parts])


@contextlib.contextmanager
def _work_directory(
    output: Path, settings: dict[str, Any], share: Share | None
) -> Iterator[WorkDirectory]:
    """Makes the directories of a preparation, and locks the dataset's unless this is a share.

    After an InputError before any part is finished, the directory is as it was. A share leaves it
    to the other shares.
    """
    is_new, work = not output.exists(), output / WORK_NAME
    if not work.is_dir() and output.is_dir() and any(output.iterdir()):
        raise InputError(f"{output} holds other files; give a new or empty directory as output")
    # Of this process alone, as those of other hosts may have its number.
    directories = WorkDirectory(output, work / "parts", work / uuid.uuid4().hex)
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:  # a file is in the way, or a directory is read-only
        raise InputError(
            f"{output} cannot be created ({error.strerror}); give another output"
        ) from error
    with contextlib.ExitStack() as stack:
        if share is None:
            stack.enter_context(locks.hold(work / "lock", str(output)))
        for directory in (directories.results, directories.scratch):
            directory.mkdir(exist_ok=True)
        stack.callback(remove_directory, directories.scratch, missing_ok=True)
        previous = read_json(work / "settings.json")
        if previous not in (None, settings):
            if list_files(directories.results):
                _check_settings(output, "is half", previous, settings)
            (output / VOCABULARY_NAME).unlink(missing_ok=True)  # made for the other settings
        write_json(work / "settings.json", settings, directories.scratch)
        try:
            yield directories
        except InputError:
            if share is None and not list_files(directories.results):
                remove_directory(work, missing_ok=True)
                (output / VOCABULARY_NAME).unlink(missing_ok=True)
                for split in SPLITS:
                    remove_directory(output / split, missing_ok=True)
                if is_new:
                    with contextlib.suppress(OSError):  # not empty
                        output.rmdir()
            raise


def _check_settings(
    output: Path, state: str, previous: Mapping[str, Any], settings: Mapping[str, Any]
) -> None:
    """Raises InputError if `output`, which "is half" or "holds a dataset", has other settings."""
    differences = [
        shorten_digests(f"{key} {was!r} (requested: {now!r})")
        for key in sorted({*previous, *settings})
        if (was := previous.get(key)) != (now := settings.get(key))
    ]
    if differences:
        raise InputError(
            f"{output} {state} prepared with {', '.join(differences)}; give another output, or "
            "delete that directory to prepare it again"
        )


def _load_complete(output: Path, settings: dict[str, Any]) -> DatasetInfo | None:
    try:
        if not is_regular_file(output / METADATA_NAME):
            return None
    except storage_errors() as error:  # the name is too long, or the directory cannot be read
        raise read_failure(output, error) from error
    info = load_dataset(output)
    _check_settings(output, "holds a dataset", info.settings, settings)
    # Left by a process that was killed after it wrote the metadata.
    with contextlib.suppress(OSError):  # another process removes it too
        remove_directory(output / WORK_NAME, missing_ok=True)
    return info


def _setting_and_maker(
    vocabulary: str | os.PathLike[str] | int, end_of_text: str | None
) -> tuple[str, Callable[[Sequence[Part]], bytes]]:
    """Returns the setting of a vocabulary, and a function that makes its file for a text."""
    if isinstance(vocabulary, int):
        setting = f"trained, {vocabulary} pieces"
        return setting, lambda parts: train_model(_sample(parts), vocabulary)
    if is_address(vocabulary):
        setting = ", end of text ".join(filter(None, (str(vocabulary), end_of_text)))
        return setting, lambda parts: load_vocabulary(vocabulary, end_of_text).model
    given = load_vocabulary(vocabulary, end_of_text)
    return f"sha256 {given.sha256}", lambda parts: given.model


def _place_vocabulary(
    work: WorkDirectory, make: Callable[[Sequence[Part]], bytes], parts: Sequence[Part]
) -> Vocabulary:
    """Writes the vocabulary into the dataset's directory, unless an earlier start or share has."""
    path = work.output / VOCABULARY_NAME
    with contextlib.suppress(InputError):
        return load_vocabulary(path)
    with atomic_write(path, work.scratch) as temporary:
        temporary.write_bytes(make(parts))
    return load_vocabulary(path)


def _sample(parts: Sequence[Part]) -> Iterator[str]:
    """Yields training documents from the start of parts spread over the text."""
    chosen = np.unique(np.linspace(0, len(parts) - 1, _SAMPLE_PARTS).astype(int))
    most = _SAMPLE_PARTS * _SAMPLE_CHARACTERS // len(chosen)
    has_text = False
    for part in (parts[index] for index in chosen):
        characters = 0
        for text in read_texts([part]):
            if assign_split(text, part.validation_fraction) == TRAIN:
                has_text = True
                yield text[: most - characters]
                characters += len(text)
            if characters >= most:
                break
    if not has_text:
        records = itertools.chain(*(part.documents() for part in parts))
        counts = count_records([x for x in records if not isinstance(x, str)])
        lines = ["there is no text to train a vocabulary on", *describe_left_out(counts)]
        raise InputError("; ".join(map(str.strip, lines)))


def _bos_id(vocabulary: Vocabulary, bos: Bos | None) -> int | None:
    """Returns the id that begins every document, None for none."""
    begin = () if bos == "none" else vocabulary.begin
    if bos == "document" and len(begin) != 1:
        if vocabulary.named_bos_id is None:
            raise InputError("--bos=document: the vocabulary names no BOS token: leave it out")
        begin = (vocabulary.named_bos_id,)
    if len(begin) > 1:
        raise InputError(
            f"the tokenizer puts {len(begin)} tokens before a text, and a document can begin with "
            "one: give --bos=none or --bos=document"
        )
    return begin[0] if begin else None


def _tokenize(
    tasks: Sequence[PartTask], workers: int | None, progress: ProgressCallback | None
) -> list[PartResult]:
    loaded = {task.index: task.load_result() for task in tasks}
    finished = {index: result for index, result in loaded.items() if result}
    runs = {task.index: task.run for task in tasks}
    return list(run_tasks("tokenizing", runs, finished, workers, progress).values())


def _check_splits(
    work: WorkDirectory, parts: Sequence[Part], results: Sequence[PartResult]
) -> None:
    """Raises an InputError if a split has no document; text for validation alone may train none."""
    is_validation = all(part.validation_fraction == 1 for part in parts)
    for split in (VALIDATION,) if is_validation else SPLITS:
        if not any(result.documents[split] for result in results):
            # Lets the next start use other settings.
            remove_directory(work.results, missing_ok=True)
            left_out = describe_left_out(TextCounts(**add_counts(results)))
            advice = "give text for it, more documents, or another --validation-fraction"
            lines = [f'split "{split}" has no document', *left_out, advice]
            raise InputError("; ".join(map(str.strip, lines)))


def _dataset_info(
    target: Target,
    vocabulary: Vocabulary,
    parts: Sequence[Part],
    results: Sequence[PartResult],
) -> DatasetInfo:
    """Returns the metadata of a dataset whose parts are finished."""
    splits, arrays = {}, {}
    for split in SPLITS:
        arrays[split] = tuple(array for result in results for array in result.arrays[split])
        tokens = sum(array.tokens for array in arrays[split])
        splits[split] = SplitInfo(sum(result.documents[split] for result in results), tokens)
    return DatasetInfo(
        path=target.work.output,
        vocab_size=vocabulary.size,
        eos_id=vocabulary.eos_id,
        bos_id=target.bos_id,
        token_dtype=target.token_dtype,
        vocabulary_sha256=target.vocabulary_sha256,
        splits=splits,
        settings=target.settings,
        parts=arrays,
        largest_id=max(result.largest_id for result in results),
        input_digest=_digest(parts),
        **add_counts(results),
    )


def _complete(info: DatasetInfo, work: WorkDirectory) -> None:
    """Removes arrays of an input that has changed since, and writes the metadata."""
    names = {part.name for part in itertools.chain(*info.parts.values())}
    for directory in (path for split in SPLITS for path in info.path.glob(f"{split}/*")):
        if f"{directory.parent.name}/{directory.name}" not in names:
            remove_directory(directory)
    save_metadata(info, work.scratch)
