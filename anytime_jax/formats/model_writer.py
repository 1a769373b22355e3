"""Export of a model as a directory in another library's format, written completely or not at all.

model.safetensors     the weights, under their names
config.json           their settings, and config.yaml for `ai2-olmo`
tokenizer.json, ...   the vocabulary, for their tokenizers, and as it was trained with
parity.safetensors    a prompt of token ids and the float32 logits computed here
provenance.json       provenance of the weights, and the SHA-256 of the other files
"""

import contextlib
import dataclasses
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anytime_jax.checkpoints.tree_names import flatten_by_name, is_stacked, unflatten_by_name
from anytime_jax.config.model import ModelConfig
from anytime_jax.errors import InputError, RunError, within
from anytime_jax.formats.model_format import (
    ModelFormat,
    Settings,
    TensorMapping,
    expected_shapes,
    layers_to_tensors,
    read_slice,
)
from anytime_jax.formats.model_reader import (
    DIGESTS,
    DTYPES,
    INDEX,
    PARITY,
    PROVENANCE,
    WEIGHTS,
    file_digest,
    import_safetensors,
    open_tensors,
)
from anytime_jax.models import decoder
from anytime_jax.storage.atomic import atomic_directory
from anytime_jax.storage.failures import check_directory
from anytime_jax.storage.files import is_link, list_files
from anytime_jax.storage.json_files import load_json

_PROMPT_TOKENS = 32
_MOST_BYTES = 5_000_000_000  # of a file of weights, as transformers splits them
_STRIDE = 7919  # a prime spreads the prompt's ids over the vocabulary


def create_directory(directory: Path, overwrite: bool) -> contextlib.AbstractContextManager[Path]:
    """Returns a context with a temporary directory, which becomes `directory` when it succeeds.

    Raises an InputError if `directory` may not be overwritten or cannot be created.
    """
    return atomic_directory(directory, PROVENANCE, lambda: _check_output(directory, overwrite))


def _check_output(directory: Path, overwrite: bool) -> None:
    """Raises an InputError if `directory` exists and may not be overwritten."""
    check_directory(directory, f"--output={directory}")
    if not directory.exists() and not is_link(directory):
        return
    with within("--output"):
        if not overwrite:
            raise InputError(f"{directory} exists: choose another, or --overwrite")
        if not (directory / PROVENANCE).is_file():
            raise InputError(
                f"{directory} is not an exported model (no {PROVENANCE}) and is not overwritten: "
                "choose another directory"
            )
        try:
            exported = {PROVENANCE, *load_json(directory / PROVENANCE).get(DIGESTS, ())}
        except (OSError, ValueError, AttributeError, TypeError):
            exported = {PROVENANCE}
        names = (file.relative_to(directory).as_posix() for file in list_files(directory))
        if other := next((name for name in names if name not in exported), None):
            raise InputError(
                f"{directory} contains {other}, which no export wrote there and --overwrite "
                "would delete: choose another directory, or move it away"
            )


def write_model(
    directory: Path,
    model_format: ModelFormat,
    config: ModelConfig,
    layers: Mapping[str, Iterable[np.ndarray]],
    token_ids: Settings,
    dtype: str,
) -> None:
    """Writes weights, configuration and parity record into an empty directory.

    The format is the one that `model_reader.find_format` returns. `layers` are float32, as
    `model_format.split_layers` returns them; `dtype` is the type in the file. `token_ids` has the
    `eos_token_id` of the configuration, and may have other special tokens. No more than a layer is
    in memory, also when the weights are read again for the parity record. Raises a RunError if a
    file cannot be written.
    """
    config, layers = _fold_growth(config, layers)
    table = model_format.tensors(config)
    tokens = (_STRIDE * np.arange(1, min(_PROMPT_TOKENS, config.length) + 1)) % config.vocab_size
    try:
        _write_weights(directory, table, config, layers, dtype)
        for name, content in model_format.files(
            model_format.write(config), token_ids, dtype
        ).items():
            (directory / name).write_text(content, encoding="utf-8")
        logits = _compute_logits(directory, model_format, config, tokens)
        parity = {"tokens": tokens.astype(np.int32), "logits": logits}
        (directory / PARITY).write_bytes(import_safetensors().numpy.save(parity))
    except OSError as error:
        raise RunError(f"{directory} cannot be written ({error})") from error


def _fold_growth(
    config: ModelConfig, layers: Mapping[str, Iterable[np.ndarray]]
) -> tuple[ModelConfig, Mapping[str, Iterable[np.ndarray]]]:
    """Returns a model of "mup" as a standard one, which has the same logits.

    What divides the logits goes into the scale of the final norm, so that a tied head stays one.
    """
    growth, name = config.width_growth, "final_norm/scale"
    if growth == 1:
        return config, layers
    folded = (scale / np.float32(growth) for scale in layers[name])
    standard = dataclasses.replace(config, parametrization="standard", base_width=0)
    return standard, {**layers, name: folded}


def _write_weights(
    directory: Path,
    table: Sequence[TensorMapping],
    config: ModelConfig,
    layers: Mapping[str, Iterable[np.ndarray]],
    dtype: str,
) -> None:
    """Writes tensors into one file, or several of `_MOST_BYTES` and an index of them.

    The library writes files of tensors that are all in memory; the format begins with a table of
    their places, so a tensor can be written when it is read.
    """
    shapes = expected_shapes(table, decoder.param_shapes(config))
    itemsize = jnp.dtype(dtype).itemsize
    sizes = {name: itemsize * math.prod(shape) for name, shape in shapes.items()}
    files, tensors = _name_files(sizes), layers_to_tensors(table, layers)
    for file, members in files.items():
        ends = [*itertools.accumulate(sizes[name] for name in members)]
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        for name, end in zip(members, ends, strict=True):
            place = [end - sizes[name], end]
            header[name] = {"dtype": DTYPES[dtype], "shape": shapes[name], "data_offsets": place}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with (directory / file).open("wb") as opened:
            opened.write(len(text).to_bytes(8, "little") + text)
            for _, tensor in itertools.islice(tensors, len(members)):
                content = np.ascontiguousarray(tensor, jnp.dtype(dtype))
                opened.write(content.reshape(-1).view(np.uint8).data)
    next(tensors, None)  # ends the reading of the last array
    if len(files) > 1:
        weight_map = {name: file for file, members in files.items() for name in members}
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
        (directory / INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")


def _name_files(sizes: Mapping[str, int]) -> dict[str, list[str]]:
    """Returns the tensors of each file in order; a file takes at most `_MOST_BYTES`, or one."""
    groups: list[list[str]] = [[]]
    for name in sizes:
        if groups[-1] and sum(sizes[x] for x in [*groups[-1], name]) > _MOST_BYTES:
            groups.append([])
        groups[-1].append(name)
    stem, count = WEIGHTS.removesuffix(".safetensors"), len(groups)
    if count == 1:
        return {WEIGHTS: groups[0]}
    return {f"{stem}-{i:05d}-of-{count:05d}.safetensors": x for i, x in enumerate(groups, 1)}


def write_provenance(directory: Path, about: dict[str, Any]) -> None:
    """Writes the provenance of the weights, with the digests of all files in the directory."""
    files = {file.relative_to(directory).as_posix(): file for file in list_files(directory)}
    digests = {name: file_digest(file) for name, file in files.items()}
    text = json.dumps({**about, DIGESTS: digests}, indent=1)
    (directory / PROVENANCE).write_text(text, encoding="utf-8")


def _compute_logits(
    directory: Path, model_format: ModelFormat, config: ModelConfig, tokens_L: np.ndarray
) -> Any:
    """Returns the logits of one sequence, computed in float32: float32[L, V].

    The weights are read from the files, as `model_reader.read_params` does, one layer at a time.
    """
    config = dataclasses.replace(config, dtype="float32", remat="none")
    shapes = flatten_by_name(decoder.param_shapes(config))
    table, opened = model_format.tensors(config), open_tensors(directory, model_format)
    with opened as tensors, jax.default_matmul_precision("highest"):

        def read(name: str, *index: slice) -> np.ndarray:
            whole = (slice(None),) * (shapes[name].ndim - len(index))
            return read_slice(table, tensors.__getitem__, name, shapes[name].shape, index + whole)

        rows = [read("embedding", slice(token, token + 1)) for token in tokens_L.tolist()]
        x_BxLxD = np.concatenate(rows)[None]
        names = {name.removeprefix("blocks/"): name for name in shapes if is_stacked(name)}
        for layer in range(config.layers):
            arrays = {short: read(x, slice(layer, layer + 1))[0] for short, x in names.items()}
            x_BxLxD = _apply_block(config, unflatten_by_name(arrays), x_BxLxD, layer)
        last = ("final_norm/scale", "embedding" if config.tied else "head")
        params = unflatten_by_name({name: read(name) for name in last})
        return np.asarray(_apply_head(config, params, x_BxLxD)[0])


# Without jit, every operation would be a program.
_apply_block = jax.jit(decoder.apply_block, static_argnums=0)
_apply_head = jax.jit(decoder.apply_head, static_argnums=0)
