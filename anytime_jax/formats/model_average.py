"""Averages of models in directories of safetensors, of any architecture.

The first model is the template: its files are written again with the same headers, and its other
files are copied. So an average has the tensors, types, shards and tied weights of the first model,
and what loads the first model loads the average.
"""

import collections
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from anytime_jax.corpus import companion_files
from anytime_jax.errors import InputError
from anytime_jax.formats.model_reader import (
    DTYPES,
    INDEX,
    PROVENANCE,
    StoredTensor,
    read_stored,
    weight_files,
)
from anytime_jax.storage.files import file_size, list_files

_AVERAGED = {"F64": "float64"} | {code: name for name, code in DTYPES.items()}
_SLICE = 2**24  # bytes of a tensor in memory at a time, of each model

Models = Mapping[Path, Mapping[str, StoredTensor]]  # tensors by the directory of their model


def open_models(directories: Sequence[Path]) -> Models:
    """Returns the tensors of models that have an average.

    Raises an InputError if a directory is given twice, if names, shapes or types of tensors differ,
    or if tensors differ that are integers, or floating-point numbers of fewer than 16 bits.
    """
    models = {directory: read_stored(directory) for directory in directories}
    files = {tuple(x.resolve() for x in weight_files(directory)) for directory in directories}
    if len(files) < len(directories):
        raise InputError("a model is given twice: leave one out", "--inputs")
    (template, first), *others = models.items()
    for directory, stored in others:
        for name in sorted(first.keys() | stored.keys()):
            here, there = (_describe(x.get(name)) for x in (first, stored))
            if here != there:
                raise InputError(
                    f"tensor {name} is {here} in {template}, and {there} in {directory}: give "
                    "models of one shape"
                )
    for file in weight_files(template):
        _read_header(file, first)
    for name, tensor in first.items():
        if tensor.dtype not in _AVERAGED:
            collections.deque(_average(models, name, ()), maxlen=0)
    return models


def write_average(directory: Path, models: Models, coefficients: Sequence[float]) -> None:
    """Writes a weighted sum of models into an empty directory, with the files of the first model.

    Of the other files, hidden ones, weights in other formats and the records of an export are left
    out. Sums are float32 (float64 for tensors of that type), and are rounded once. Raises an
    InputError that names a tensor with a NaN or an infinity.
    """
    template, first = next(iter(models.items()))
    for file in weight_files(template):
        with (directory / file.name).open("wb") as written:
            written.write(_read_header(file, first))
            for name, tensor in first.items():
                if tensor.file == file:
                    written.writelines(_average(models, name, coefficients))
    for file in list_files(template):
        name = file.relative_to(template)
        is_weights = file.name.endswith(companion_files.WEIGHT_ENDS) and file.name != INDEX
        is_hidden = any(part.startswith(".") for part in name.parts)
        if not (is_weights or is_hidden or file.name == PROVENANCE):
            file_size(file)  # raises an error for a pipe
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, directory / name)


def _describe(tensor: StoredTensor | None) -> str:
    return f"{tensor.dtype} {[*tensor.shape]}" if tensor else "missing"


def _read_header(file: Path, stored: Mapping[str, StoredTensor]) -> bytes:
    """Returns the bytes of a file before its tensors.

    Raises an InputError if the file has a tensor that is not among those of the model.
    """
    with file.open("rb") as opened:
        size = opened.read(8)
        header = size + opened.read(int.from_bytes(size, "little"))
    if len(header) + sum(x.size for x in stored.values() if x.file == file) != file_size(file):
        raise InputError(f"{file} has tensors that are not in {INDEX}: save the model again")
    return header


def _average(models: Models, name: str, coefficients: Sequence[float]) -> Iterator[bytes]:
    """Yields the content of the weighted sum of a tensor in slices; equal slices stay as they are.

    Raises an InputError if the models differ in a tensor that has no average.
    """
    tensors = [stored[name] for stored in models.values()]
    for at in range(0, tensors[0].size, _SLICE):
        slices = [tensor.read(at, _SLICE) for tensor in tensors]
        if all(each == slices[0] for each in slices):
            yield slices[0]
            continue
        if (code := tensors[0].dtype) not in _AVERAGED:
            raise InputError(
                f"tensor {name} has the type {code} and differs between the models: only "
                f"{', '.join(_AVERAGED)} can be averaged"
            )
        dtype = jnp.dtype(_AVERAGED[code])
        total = np.zeros(len(slices[0]) // dtype.itemsize, np.result_type(dtype, np.float32))
        with np.errstate(over="ignore", invalid="ignore"):
            for coefficient, each in zip(coefficients, slices, strict=True):
                total += np.frombuffer(each, dtype).astype(total.dtype) * coefficient
            rounded = total.astype(dtype)
        if not np.isfinite(rounded).all():
            raise InputError(
                f"the average of tensor {name} has a NaN or an infinity: leave a model out"
            )
        yield rounded.tobytes()
