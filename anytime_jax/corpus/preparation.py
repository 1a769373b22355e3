"""Preparation: from text to a dataset of tokens, in parallel, resumable, deterministic.

Each part of the text becomes arrays of tokens for each split, every document followed by EOS: one,
or of a large part one for every stretch of documents. Concatenated, the arrays of a split are its
tokens. A result is written after its arrays, so a restart after a kill skips completed parts and
stretches. The bytes do not depend on the number of workers. Shares divide the parts among processes
on any hosts that share the directory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from anytime_jax.corpus.document_files import LIST_MARK
from anytime_jax.corpus.preparation_lock import (
    Share,
    WorkDirectory,
    check_settings,
    lock_preparation,
)
from anytime_jax.corpus.source_interface import Part, Source, read_texts
from anytime_jax.corpus.validation_split import assign_split, explain_split
from anytime_jax.corpus.vocabulary_files import load_vocabulary
from anytime_jax.corpus.vocabulary_interface import Vocabulary
from anytime_jax.corpus.vocabulary_training import train_vocabulary
from anytime_jax.corpus.worker_pool import ProgressCallback, run_tasks
from anytime_jax.data.dataset_info import (
    METADATA_NAME,
    SPLITS,
    TRAIN,
    VALIDATION,
    VOCABULARY_NAME,
    WORK_NAME,
    DatasetInfo,
    PartInfo,
    SplitInfo,
    load_dataset,
    part_file,
    part_size,
    save_metadata,
)
from anytime_jax.data.token_arrays import write_part
from anytime_jax.errors import InputError, RunError
from anytime_jax.storage.atomic import atomic_write
from anytime_jax.storage.failures import check_directory, read_failure, storage_errors
from anytime_jax.storage.files import is_regular_file, remove_directory
from anytime_jax.storage.json_files import json_digest, read_json, write_json
from anytime_jax.storage.paths import absolute_path, is_address

# A vocabulary is trained on this many parts, on the first characters of each.
_SAMPLE_PARTS, _SAMPLE_CHARACTERS = 16, 250_000
_BATCH_DOCUMENTS = 256  # per call of the tokenizer: they fit in memory
_STRETCH_TOKENS = 2**25  # tokenized in 13 s, the most that a kill costs, and held in memory


Bos = Literal["none", "document"]


class RemainingWork(NamedTuple):
    """Number of parts of the text, and how many of them are left to other shares."""

    parts: int
    parts_left: int


def prepare(
    source: Source,
    output: str | os.PathLike[str] | Path,
    *,
    vocabulary: str | os.PathLike[str] | int,
    end_of_text: str | None = None,
    bos: Bos | None = None,
    workers: int | None = None,
    progress: ProgressCallback | None = None,
) -> DatasetInfo:
    """Prepares a dataset, resumes its preparation, or returns it if it is complete.

    Args:
      source: `FileSource`, `TfdsSource`, `BuiltinSource` or any other `Source`.
      output: the dataset's directory, local or in a bucket: new, empty, or prepared before with the
        same settings.
      vocabulary: path or address of a SentencePiece model or a `tokenizer.json`, or the size of a
        vocabulary to train on the text.
      end_of_text: token of a `tokenizer.json` that ends documents, if its files do not name one.
      bos: "document" begins every document with the tokenizer's BOS, "none" does not; by default as
        the tokenizer's own configuration says.
      workers: number of processes; by default one per core if there is work for them.
      progress: called in this process whenever a part is finished.

    Raises:
      InputError: a setting or the text cannot be used, the directory holds something else, or
        another process is preparing it.
      RunError: a worker process died; the same call resumes.
    """
    info = prepare_share(source, output, None, vocabulary, workers, progress, end_of_text, bos)
    assert isinstance(info, DatasetInfo)
    return info


def prepare_share(
    source: Source,
    output: str | os.PathLike[str] | Path,
    share: Share | None,
    vocabulary: str | os.PathLike[str] | int,
    workers: int | None = None,
    progress: ProgressCallback | None = None,
    end_of_text: str | None = None,
    bos: Bos | None = None,
) -> RemainingWork | DatasetInfo:
    """Tokenizes one share of the parts; `prepare` completes the dataset afterwards.

    Takes the arguments of `prepare`; all but `workers` must be the same for all shares. With share
    None, prepares everything. Returns the work left to other shares, or the metadata of the dataset
    if it is complete.
    """
    output = absolute_path(output)
    if not str(output).isprintable():
        raise InputError(
            f"output {str(output)!r} has characters that cannot be printed, which training "
            "refuses; give another"
        )
    check_directory(output, f"output {output}")
    chosen: Vocabulary | int | _Download
    if isinstance(vocabulary, int):
        chosen, description = vocabulary, f"trained, {vocabulary} pieces"
    elif is_address(vocabulary):
        chosen = _Download(str(vocabulary), end_of_text)
        description = ", end of text ".join(filter(None, chosen))
    else:
        chosen = load_vocabulary(vocabulary, end_of_text)
        description = f"sha256 {chosen.sha256}"
    settings = {"vocabulary": description, **source.settings()}
    if bos:
        settings["bos"] = bos
    if info := _load_complete(output, settings):
        return info
    if source.reads(output / METADATA_NAME):
        raise InputError(
            f"{output} is inside the input, so its own files would be read as text; give an output "
            "outside of it"
        )
    if not (parts := source.parts()):
        raise InputError(f"{type(source).__name__}.parts() returns no part; give at least one")
    try:
        return _prepare_parts(output, settings, share, chosen, parts, bos, workers, progress)
    except (InputError, OSError):
        if info := _load_complete(output, settings):  # by another process, which has cleaned up
            return info
        raise


def _prepare_parts(
    output: Path,
    settings: dict[str, Any],
    share: Share | None,
    vocabulary: Vocabulary | int | _Download,
    parts: Sequence[Part],
    bos: Bos | None,
    workers: int | None,
    progress: ProgressCallback | None,
) -> RemainingWork | DatasetInfo:
    with lock_preparation(output, settings, share) as work:
        if info := _load_complete(output, settings):  # another process has just completed it
            return info
        own_vocabulary = _place_vocabulary(work, vocabulary, parts)
        bos_id = _bos_id(own_vocabulary, bos)
        tasks = [
            _TokenizePart(part, index, len(parts), own_vocabulary.sha256, bos_id, work)
            for index, part in enumerate(parts)
        ]
        own = tasks if share is None else tasks[share.index :: share.count]
        results = run_tasks(own, workers, "tokenizing", progress)
        if share is not None:
            left = sum(task.load_result() is None for task in tasks)
            return RemainingWork(len(tasks), left)
        _check_splits(work, parts, results)
        info = _describe(work, settings, own_vocabulary, bos_id, parts, results)
        names = {part.name for part in itertools.chain(*info.parts.values())}
        for directory in (path for split in SPLITS for path in output.glob(f"{split}/*")):
            if f"{directory.parent.name}/{directory.name}" not in names:
                remove_directory(directory)  # the input has changed since
        save_metadata(info, work.scratch)
    return load_dataset(output)


def has_changed(source: Source, info: DatasetInfo) -> bool:
    """Returns whether a source has other files, or files of other sizes, than a dataset of it had.

    Raises an InputError if there is nothing to read. Input at addresses is not listed.
    """
    names = [str(x) for x in source.settings().values()]
    if not info.input_digest or any(is_address(x) or x.startswith(LIST_MARK) for x in names):
        return False
    return info.input_digest != _digest(source.parts())


def _digest(parts: Sequence[Part]) -> str:
    return json_digest([part.identity for part in parts])


def _bos_id(vocabulary: Vocabulary, bos: Bos | None) -> int | None:
    """Returns the id that begins every document, None for none."""
    if bos == "none" or (bos is None and vocabulary.bos_id is None):
        return None
    if vocabulary.bos_id is not None:
        return vocabulary.bos_id
    if vocabulary.prefix_id == vocabulary.eos_id:
        raise InputError("--bos=document: the vocabulary names no BOS token: leave it out")
    return vocabulary.prefix_id


def _load_complete(output: Path, settings: dict[str, Any]) -> DatasetInfo | None:
    try:
        if not is_regular_file(output / METADATA_NAME):
            return None
    except storage_errors() as error:  # the name is too long, or the directory cannot be read
        raise read_failure(output, error) from error
    info = load_dataset(output)
    check_settings(output, "holds a dataset", info.settings, settings)
    # Left by a process that was killed after it wrote the metadata.
    with contextlib.suppress(OSError):  # another process removes it too
        remove_directory(output / WORK_NAME, missing_ok=True)
    return info


class _Download(NamedTuple):
    """A vocabulary at an address."""

    address: str
    end_of_text: str | None


def _place_vocabulary(
    work: WorkDirectory, vocabulary: Vocabulary | int | _Download, parts: Sequence[Part]
) -> Vocabulary:
    """Writes the vocabulary into the dataset's directory, unless it is there."""
    path, note = work.output / VOCABULARY_NAME, work.output / WORK_NAME / "vocabulary.json"
    try:
        present = load_vocabulary(path)
    except InputError:
        present = None
    if not isinstance(vocabulary, int | _Download):
        return _write_vocabulary(work, vocabulary, present)
    # An earlier start or another share may have trained or downloaded it. Shares that do so at the
    # same time write the same bytes.
    is_trained = isinstance(vocabulary, int)
    digest = json_digest([vocabulary, [part.identity for part in parts] if is_trained else []])
    if present and read_json(note) == {"input": digest, "sha256": present.sha256}:
        return present
    if isinstance(vocabulary, _Download):
        made = _write_vocabulary(work, load_vocabulary(*vocabulary), present)
    else:
        if not (sample := list(_sample(parts))):
            documents = sum(1 for _ in read_texts(parts))
            advice = explain_split(parts, documents)
            raise InputError(f"there is no training text for a vocabulary; {advice}")
        made = train_vocabulary(sample, vocabulary, path)
    write_json(note, {"input": digest, "sha256": made.sha256}, work.scratch)
    return made


def _write_vocabulary(
    work: WorkDirectory, vocabulary: Vocabulary, present: Vocabulary | None
) -> Vocabulary:
    if present is None or present.sha256 != vocabulary.sha256:
        with atomic_write(work.output / VOCABULARY_NAME, work.scratch) as temporary:
            temporary.write_bytes(vocabulary.model)
    return vocabulary


def _sample(parts: Sequence[Part]) -> Iterator[str]:
    """Yields training documents from the start of parts spread over the text."""
    chosen = np.unique(np.linspace(0, len(parts) - 1, _SAMPLE_PARTS).astype(int))
    most = _SAMPLE_PARTS * _SAMPLE_CHARACTERS // len(chosen)
    for part in (parts[index] for index in chosen):
        characters = 0
        for text in read_texts([part]):
            if assign_split(text, part.validation_fraction) == TRAIN:
                yield text[: most - characters]
                characters += len(text)
            if characters >= most:
                break


def _check_splits(
    work: WorkDirectory, parts: Sequence[Part], results: Sequence[_PartResult]
) -> None:
    """Raises an InputError if a split has no document; text for validation alone may train none."""
    is_validation = all(part.validation_fraction == 1 for part in parts)
    for split in (VALIDATION,) if is_validation else SPLITS:
        if any(result.documents[split] for result in results):
            continue
        remove_directory(work.results, missing_ok=True)  # lets the next start use other settings
        work.results.mkdir()
        documents = sum(sum(result.documents.values()) for result in results)
        raise InputError(f'split "{split}" has no document; {explain_split(parts, documents)}')


def _describe(
    work: WorkDirectory,
    settings: dict[str, Any],
    vocabulary: Vocabulary,
    bos_id: int | None,
    parts: Sequence[Part],
    results: Sequence[_PartResult],
) -> DatasetInfo:
    """Returns the metadata of a dataset whose parts are finished."""
    splits, arrays = {}, {}
    for split in SPLITS:
        arrays[split] = tuple(array for result in results for array in result.arrays[split])
        tokens = sum(array.tokens for array in arrays[split])
        splits[split] = SplitInfo(sum(result.documents[split] for result in results), tokens)
    return DatasetInfo(
        path=work.output,
        vocab_size=vocabulary.size,
        eos_id=vocabulary.eos_id,
        bos_id=bos_id,
        token_dtype=vocabulary.token_dtype.name,
        vocabulary_sha256=vocabulary.sha256,
        splits=splits,
        settings=settings,
        parts=arrays,
        null_records=sum(result.nulls for result in results),
        input_digest=_digest(parts),
    )


@dataclasses.dataclass(frozen=True)
class _PartResult:
    """What is tokenized of a part.

    Attributes:
      documents: number of documents in each split.
      arrays: their arrays in each split, in order; one for each stretch with documents.
      nulls: number of records without a text, or with an empty one.
      is_complete: whether this is all of the part.
    """

    documents: dict[str, int]
    arrays: dict[str, tuple[PartInfo, ...]]
    nulls: int
    is_complete: bool

    @property
    def tokens(self) -> int:
        """Tokens of all splits, with the EOS of every document."""
        return sum(array.tokens for array in itertools.chain(*self.arrays.values()))

    @property
    def records(self) -> int:
        """Number of records that it comes from."""
        return sum(self.documents.values()) + self.nulls


_NOTHING = _PartResult(dict.fromkeys(SPLITS, 0), dict.fromkeys(SPLITS, ()), 0, False)


@dataclasses.dataclass(frozen=True)
class _TokenizePart:
    """Task: writes the arrays of part `index` of `parts`, a function of the input alone."""

    part: Part
    index: int
    parts: int
    vocabulary_sha256: str
    bos_id: int | None
    work: WorkDirectory

    def load_result(self) -> _PartResult | None:
        """Loads the result, if it is complete."""
        saved = self._load()
        return saved if saved.is_complete else None

    def run(self) -> _PartResult:
        """Writes the arrays that are missing, the result after each stretch."""
        vocabulary = _load_cached(self.work.output / VOCABULARY_NAME, self.vocabulary_sha256)
        result = self._load()
        records = iter(self.part.documents())
        if result.records:  # a killed process has tokenized these
            next(itertools.islice(records, result.records - 1, None), None)
        while not result.is_complete:
            result = self._add_stretch(result, records, vocabulary)
            saved = {"input": self._input_digest(), "dtype": vocabulary.token_dtype.name}
            write_json(self._result_path, saved | dataclasses.asdict(result), self.work.scratch)
        return result

    def _add_stretch(
        self, before: _PartResult, records: Iterator[str | None], vocabulary: Vocabulary
    ) -> _PartResult:
        dtype = vocabulary.token_dtype
        buffers: dict[str, io.BytesIO] = {split: io.BytesIO() for split in SPLITS}
        documents: dict[str, int] = dict.fromkeys(SPLITS, 0)
        nulls, tokens = 0, 0
        begin = np.array([] if self.bos_id is None else [self.bos_id], np.int32)
        batch: list[str | None] = []
        while tokens < _STRETCH_TOKENS:
            if not (batch := list(itertools.islice(records, _BATCH_DOCUMENTS))):
                break
            texts = [text for text in batch if text]
            nulls += len(batch) - len(texts)
            for text, ids in zip(texts, vocabulary.encode(texts), strict=True):
                split = assign_split(text, self.part.validation_fraction)
                document = np.concatenate([begin, ids, [vocabulary.eos_id]])
                buffers[split].write(document.astype(dtype).tobytes())
                documents[split] += 1
                tokens += len(document)
        arrays = dict(before.arrays)
        for split, buffer in buffers.items():
            if documents[split]:
                name = f"{split}/{self.index:05d}"
                if before.arrays[split]:
                    name += f"{len(before.arrays[split]):03d}"
                values = np.frombuffer(buffer.getbuffer(), dtype)
                arrays[split] = (*arrays[split], write_part(self.work.output, name, values))
        return _PartResult(
            {split: before.documents[split] + count for split, count in documents.items()},
            arrays,
            before.nulls + nulls,
            not batch,
        )

    def _load(self) -> _PartResult:
        """Loads what an earlier start has saved of this input, if its arrays are there."""
        saved = read_json(self._result_path) or {}
        if saved.get("input") != self._input_digest():
            return _NOTHING
        arrays = {
            split: tuple(PartInfo(**array) for array in listed)
            for split, listed in saved["arrays"].items()
        }
        for array in itertools.chain(*arrays.values()):
            file, size = part_file(self.work.output, array), part_size(array.tokens, saved["dtype"])
            if not file.is_file() or file.stat().st_size != size:
                return _NOTHING
        return _PartResult(saved["documents"], arrays, saved["nulls"], saved["is_complete"])

    @property
    def _result_path(self) -> Path:
        return self.work.results / f"{self.index:06d}.json"

    def _input_digest(self) -> str:
        return json_digest(
            [self.part.identity, self.parts, self.vocabulary_sha256, self.bos_id, _STRETCH_TOKENS]
        )


@functools.lru_cache(maxsize=1)
def _load_cached(path: Path, sha256: str) -> Vocabulary:
    """Loads the vocabulary once per process."""
    vocabulary = load_vocabulary(path)
    if vocabulary.sha256 != sha256:  # a share that sees other input has replaced it
        raise RunError(f"{path} was replaced by another process; run the same command again")
    return vocabulary
