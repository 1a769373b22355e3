"""Export of a model as a directory in another library's format, written completely or not at all.

model.safetensors     the weights, under their names
config.json           their settings, and config.yaml for `ai2-olmo`
tokenizer.json, ...   the vocabulary, for their tokenizers, and as it was trained with
parity.safetensors    a prompt of token ids and the float32 logits computed here
anytime_jax.json      provenance of the weights, and the SHA-256 of the other files
"""

import contextlib
import dataclasses
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anytime_jax.config.model import ModelConfig
from anytime_jax.errors import InputError, RunError
from anytime_jax.formats.model_format import ModelFormat, params_to_tensors
from anytime_jax.formats.model_reader import (
    DIGESTS,
    INDEX,
    PARITY,
    PROVENANCE,
    WEIGHTS,
    file_digest,
    import_safetensors,
)
from anytime_jax.models import decoder
from anytime_jax.models.decoder import Params
from anytime_jax.storage.atomic import atomic_directory
from anytime_jax.storage.failures import check_directory

_PROMPT_TOKENS = 32
_MOST_BYTES = 5_000_000_000  # of a file of weights, as transformers splits them
_STRIDE = 7919  # a prime spreads the prompt's ids over the vocabulary


def create_directory(directory: Path, overwrite: bool) -> contextlib.AbstractContextManager[Path]:
    """Returns a context with a temporary directory, which becomes `directory` when it succeeds.

    Raises an InputError if `directory` may not be overwritten or cannot be created.
    """
    return atomic_directory(directory, PROVENANCE, lambda: check_output(directory, overwrite))


def check_output(directory: Path, overwrite: bool) -> None:
    """Raises an InputError if `directory` exists and may not be overwritten."""
    check_directory(directory, f"--output={directory}")
    if not directory.exists() and not directory.is_symlink():
        return
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
    _write_weights(directory, params_to_tensors(model_format.tensors(config), rounded))
    for name, content in model_format.files(model_format.write(config), eos_id, dtype).items():
        (directory / name).write_text(content, encoding="utf-8")
    tokens = (_STRIDE * np.arange(1, min(_PROMPT_TOKENS, config.length) + 1)) % config.vocab_size
    logits = compute_logits(config, rounded, tokens)
    _save({"tokens": tokens.astype(np.int32), "logits": logits}, directory / PARITY)


def _write_weights(directory: Path, tensors: Iterable[tuple[str, np.ndarray]]) -> None:
    """Writes tensors into one file, or several of `_MOST_BYTES` and an index of them."""
    written: list[list[str]] = []
    total = 0
    for group in _groups(tensors):
        _save(group, directory / f"{WEIGHTS}.{len(written)}", {"format": "pt"})
        written.append(list(group))
        total += sum(tensor.nbytes for tensor in group.values())
    if len(written) == 1:
        (directory / f"{WEIGHTS}.0").rename(directory / WEIGHTS)
        return
    stem, weight_map = WEIGHTS.removesuffix(".safetensors"), {}
    for i, names in enumerate(written):
        file = f"{stem}-{i + 1:05d}-of-{len(written):05d}.safetensors"
        (directory / f"{WEIGHTS}.{i}").rename(directory / file)
        weight_map |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")


def _groups(tensors: Iterable[tuple[str, np.ndarray]]) -> Iterator[dict[str, np.ndarray]]:
    """Yields tensors by name, as many at once as one file takes."""
    group: dict[str, np.ndarray] = {}
    size = 0
    for name, tensor in tensors:
        if group and size + tensor.nbytes > _MOST_BYTES:
            yield group
            group, size = {}, 0
        group[name] = tensor
        size += tensor.nbytes
    yield group


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
        logits_BxLxV = _apply(config, floats, jnp.asarray(tokens_L, jnp.int32)[None])
    return np.asarray(logits_BxLxV[0])


_apply = jax.jit(decoder.apply, static_argnums=0)  # without jit, every operation would be a program


def _save(
    tensors: dict[str, np.ndarray], file: Path, metadata: dict[str, str] | None = None
) -> None:
    safetensors = import_safetensors()
    try:
        safetensors.numpy.save_file(tensors, file, metadata)
    except safetensors.SafetensorError as error:  # even a full disk raises this
        raise RunError(f"{file} cannot be written ({error})") from error
    file.chmod(0o644)  # safetensors restricts reading to the owner
