"""Export of a model as a directory in another library's format, written completely or not at all.

model.safetensors     the weights, under their names
config.json           their settings, and config.yaml for `ai2-olmo`
tokenizer.json, ...   the vocabulary, for their tokenizers, and as it was trained with
parity.safetensors    a prompt of token ids and the float32 logits computed here
anytime_jax.json      provenance of the weights, and the SHA-256 of the other files
"""

import contextlib
import dataclasses
import glob
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock
import jax
import jax.numpy as jnp
import numpy as np

from anytime_jax.config.model import ModelConfig
from anytime_jax.errors import InputError, RunError
from anytime_jax.formats.model_format import ModelFormat, params_to_tensors
from anytime_jax.formats.model_reader import (
    DIGESTS,
    PARITY,
    PROVENANCE,
    WEIGHTS,
    file_digest,
    import_safetensors,
)
from anytime_jax.models import decoder
from anytime_jax.models.decoder import Params
from anytime_jax.storage.paths import bucket_errors, check_bucket, file_sizes, is_remote, upload

_PROMPT_TOKENS = 32
_STRIDE = 7919  # a prime: spreads the prompt's ids over the vocabulary


@contextlib.contextmanager
def create_directory(directory: Path, overwrite: bool) -> Iterator[Path]:
    """Yields a temporary directory that is renamed to `directory` when the block succeeds.

    In a bucket, the files of the temporary one are uploaded, the provenance last. Raises an
    InputError if `directory` may not be overwritten or cannot be created.
    """
    check_output(directory, overwrite)
    if is_remote(directory):
        with tempfile.TemporaryDirectory() as part:
            yield Path(part)
            _upload(Path(part), directory)
        return
    directory = directory.resolve()  # resolves links, "." and ".."
    part = directory.with_name(f"{directory.name}.{os.getpid()}.part")
    old = directory.with_name(f"{directory.name}.{os.getpid()}.old")
    try:
        part.mkdir(parents=True)
    except OSError as error:
        raise InputError(
            f"--output={directory} cannot be created ({error.strerror}): choose another directory"
        ) from error
    with contextlib.ExitStack() as locks:
        locks.enter_context(_locked(part))
        try:
            yield part
            check_output(directory, overwrite)  # it may have been created in the meantime
            if directory.exists():
                locks.enter_context(_locked(directory))
                directory.rename(old)
            part.rename(directory)
        except BaseException:
            if old.exists():
                old.rename(directory)
            raise
        finally:
            shutil.rmtree(part, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _upload(part: Path, directory: Path) -> None:
    """Uploads an export to a bucket, where it replaces an earlier one."""
    check_output(directory, overwrite=True)
    (directory / PROVENANCE).unlink(missing_ok=True)
    names = {file.name for file in part.iterdir()}
    for file in [*sorted(names - {PROVENANCE}), PROVENANCE]:
        upload(part / file, directory / file)
    for file in file_sizes(directory):
        if file not in names:  # of the earlier one
            (directory / file).unlink()


def remove_unfinished(directory: Path) -> list[Path]:
    """Removes what killed exports to `directory` left beside it; returns the removed directories.

    Those of a process that still runs are locked and stay. If an export was killed just as it
    replaced an earlier one, the earlier one is put back.
    """
    if is_remote(directory):
        return []
    directory, removed = directory.resolve(), []
    for path in sorted(directory.parent.glob(f"{glob.escape(directory.name)}.*")):
        number, _, kind = path.name.removeprefix(f"{directory.name}.").partition(".")
        if not (number.isdecimal() and kind in ("part", "old") and path.is_dir()):
            continue
        with _locked(path) as is_unused:
            if not is_unused:
                continue
            if kind == "old" and not directory.exists():
                path.rename(directory)
            else:
                shutil.rmtree(path, ignore_errors=True)
            removed.append(path)
    return removed


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[bool]:
    """Locks a directory until the process ends or the block; yields whether it was unlocked.

    A file system that cannot lock directories, such as NFS, yields False.
    """
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            is_unused = filelock.lock_descriptor(descriptor, blocking=False)
        except OSError:
            is_unused = False
        yield is_unused
    finally:
        os.close(descriptor)


def check_output(directory: Path, overwrite: bool) -> None:
    """Raises an InputError if `directory` exists and may not be overwritten."""
    if is_remote(directory):
        check_bucket(f"--output={directory}", directory)
    try:
        directory.resolve()
        if not directory.exists() and not directory.is_symlink():
            return
    except (OSError, RuntimeError, *bucket_errors()) as error:  # RuntimeError: a circle of links
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"--output={str(directory)[:100]} cannot be created ({reason}): choose another"
        ) from error
    if not overwrite:
        raise InputError(f"--output={directory} exists: choose another, or --overwrite")
    if not (directory / PROVENANCE).is_file():
        raise InputError(
            f"--output={directory} is not an exported model (no {PROVENANCE}) and is not "
            "overwritten: choose another directory"
        )
    if other := next((x for x in directory.iterdir() if x.is_dir()), None):
        raise InputError(
            f"--output={directory} contains {other.name}, a directory that --overwrite would "
            "delete: choose another, or move it away"
        )


def write_model(
    directory: Path,
    model_format: ModelFormat,
    config: ModelConfig,
    params: Params,
    eos_id: int,
    dtype: str,
) -> None:
    """Writes weights, configuration and parity record into an empty directory.

    The model must pass `ModelFormat.check`; `params` are NumPy float32 arrays, and `dtype` is the
    type in the file. Raises a RunError if a file cannot be written.
    """
    rounded = jax.tree.map(lambda x: x.astype(jnp.dtype(dtype)), params)
    tensors = params_to_tensors(model_format.tensors, rounded)
    _save(tensors, directory / WEIGHTS, {"format": "pt"})
    settings = model_format.export_settings(config)
    for name, content in model_format.config_files(settings, eos_id, dtype).items():
        (directory / name).write_text(content, encoding="utf-8")
    tokens = (_STRIDE * np.arange(1, min(_PROMPT_TOKENS, config.length) + 1)) % config.vocab_size
    logits = compute_logits(config, rounded, tokens)
    _save({"tokens": tokens.astype(np.int32), "logits": logits}, directory / PARITY)


def write_provenance(directory: Path, about: dict[str, Any]) -> None:
    """Writes the provenance of the weights, with the digests of all files in the directory."""
    digests = {file.name: file_digest(file) for file in sorted(directory.iterdir())}
    text = json.dumps({**about, DIGESTS: digests}, indent=1)
    (directory / PROVENANCE).write_text(text, encoding="utf-8")


def compute_logits(config: ModelConfig, params: Params, tokens_L: np.ndarray) -> np.ndarray:
    """Returns the logits of one sequence, computed in float32: float32[L, V]."""
    config = dataclasses.replace(config, dtype="float32", attention="plain", remat="none")
    with jax.default_matmul_precision("highest"):
        floats = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)
        logits_BxLxV = decoder.apply(config, floats, jnp.asarray(tokens_L, jnp.int32)[None])
    return np.asarray(logits_BxLxV[0])


def _save(
    tensors: dict[str, np.ndarray], file: Path, metadata: dict[str, str] | None = None
) -> None:
    safetensors = import_safetensors()
    try:
        safetensors.numpy.save_file(tensors, file, metadata)
    except safetensors.SafetensorError as error:  # no OSError, even on a full disk
        raise RunError(f"{file} cannot be written ({error})") from error
    file.chmod(0o644)  # safetensors restricts reading to the owner
