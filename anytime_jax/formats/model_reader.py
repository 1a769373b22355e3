"""Models in another library's directory: their shape and their weights.

No code from the directory is executed.
"""

import contextlib
import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from anytime_jax.checks import require_count
from anytime_jax.config.model import MODELS, ModelConfig
from anytime_jax.corpus.hf_vocabulary import TOKENIZER_FILE, read_size
from anytime_jax.data.dataset_info import VOCABULARY_NAME
from anytime_jax.errors import InputError, format_value, needs_extra, within
from anytime_jax.formats import model_format as tables
from anytime_jax.formats.ai2_olmo import OLMO
from anytime_jax.formats.model_format import ModelFormat, Settings
from anytime_jax.formats.transformers_models import LLAMA, OLMO2, QWEN
from anytime_jax.models.decoder import Params
from anytime_jax.storage.json_files import parse_json

FORMATS = {each.name: each for each in (OLMO, OLMO2, LLAMA, QWEN)}
WEIGHTS, PARITY, PROVENANCE = "model.safetensors", "parity.safetensors", "provenance.json"
INDEX = f"{WEIGHTS}.index.json"  # index of weights in several files
DIGESTS = "sha256"  # key of the digests of an export's files, in its `PROVENANCE`
_PICKLES = "pytorch_model.bin"
# Tensors that are computed from the configuration, in files of older versions of transformers.
_BUFFERS = re.compile(r".*\brotary_emb\.(inv_freq|original_inv_freq|cos_cached|sin_cached)")
_CONFIGURATIONS = ("config.json", "config.yaml")
# Their names of types; float32 holds all three exactly.
DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


@dataclasses.dataclass(frozen=True)
class ModelDescription:
    """Format and shape of a model in a directory, without its weights.

    `shape` has the fields of `ModelConfig` except those that only affect how it is computed.
    """

    directory: Path
    model_format: ModelFormat
    shape: Settings


def read_description(directory: Path) -> ModelDescription:
    """Describes a model in any of the formats without reading its weights.

    Raises an InputError if it is missing or has a setting that our decoder does not support.
    """
    path, settings = _read_settings(directory)
    model_type = settings.get("model_type", OLMO.model_types[0])
    model_format = next((x for x in FORMATS.values() if model_type in x.model_types), None)
    if model_format is None:
        known = ", ".join(repr(name) for each in FORMATS.values() for name in each.model_types)
        raise InputError(
            f"{path}: model_type = {format_value(model_type)} is not supported: it must be one of "
            f"{known}"
        )
    try:
        shape = model_format.read(settings)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error
    if "vocab_size" not in shape:
        shape["vocab_size"] = _vocab_size(directory, shape["embedding_rows"])
    return ModelDescription(directory, model_format, shape)


def describe_loader(config: ModelConfig) -> str:
    """Returns in words which library loads an export of a model."""
    if (name := MODELS.name_of(type(config))) not in FORMATS:
        return "no other library loads it"
    library = FORMATS[name].library
    return f"{library} loads it" + ("" if library == "transformers" else ", transformers does not")


def find_format(config: ModelConfig) -> ModelFormat:
    """Returns the format in which a model is exported, which its kind determines.

    Raises an InputError if the kind has none, or if the format cannot express a setting.
    """
    kind = MODELS.name_of(type(config))
    if kind not in FORMATS:
        raise InputError("no other library loads it", "config.model.kind", kind)
    FORMATS[kind].write(config)
    return FORMATS[kind]


def check_params(model: ModelDescription, config: ModelConfig) -> None:
    """Raises an InputError for wrong tensor names, shapes or dtypes; reads no content."""
    with open_tensors(model.directory, model.model_format) as tensors:
        tensors.pop(_stored_twice(model.model_format, config)[0], None)  # see `check_values`
        for name, tensor in tensors.items():
            if tensor.get_dtype() not in DTYPES.values():
                raise InputError(
                    f"{model.directory}: tensor {name} has the type {tensor.get_dtype()}, not one "
                    f"of {', '.join(DTYPES.values())}: convert the model"
                )
        shapes = {name: tuple(tensor.get_shape()) for name, tensor in tensors.items()}
        try:
            table = model.model_format.tensors(config)
            tables.check_tensors(table, shapes, config)
        except InputError as error:
            raise InputError(f"{model.directory}: {error}: copy it again") from error


def read_params(model: ModelDescription, config: ModelConfig, abstract: Params) -> Params:
    """Returns the weights of a model, float32, sharded like `abstract`.

    Each process reads the slices of its devices alone. Checked by `check_params` before.
    """
    with open_tensors(model.directory, model.model_format) as tensors:
        table = model.model_format.tensors(config)
        return tables.read_params(table, tensors.__getitem__, abstract)


def check_values(model: ModelDescription, config: ModelConfig) -> None:
    """Raises an InputError that names a tensor with a NaN or an infinity; reads all weights.

    A tied head may be stored too, if it equals the embedding.
    """
    head, embedding = _stored_twice(model.model_format, config)
    with open_tensors(model.directory, model.model_format) as tensors:
        if head in tensors and not np.array_equal(tensors[head][:], tensors[embedding][:]):
            raise InputError(
                f"{model.directory}: tie_word_embeddings is true, and {head} differs from "
                f"{embedding}: set it to false in config.json, or leave out one of the two tensors"
            )
        for name, tensor in tensors.items():
            if not np.isfinite(tensor[:]).all():
                raise InputError(
                    f"{model.directory}: tensor {name} has a NaN or an infinity: copy the model "
                    "again, or export it from an earlier checkpoint"
                )


def check_digests(directory: Path) -> str:
    """Returns `weights_digest`; raises an InputError if a file is not as this package exported it.

    Models from other sources have no recorded digests.
    """
    recorded = read_provenance(directory).get(DIGESTS)
    recorded = recorded if isinstance(recorded, dict) else {}
    others = (directory / name for name in (*_CONFIGURATIONS, VOCABULARY_NAME, TOKENIZER_FILE))
    weights = weight_files(directory)
    digests = {file: file_digest(file) for file in [*weights, *filter(Path.is_file, others)]}
    for file, digest in digests.items():
        if recorded.get(file.name, digest) != digest:
            raise InputError(
                f"{file} is damaged or changed: its SHA-256 is not the one in {PROVENANCE}: copy "
                "it again, or remove its entry there if it was changed on purpose"
            )
    return _join([digests[file] for file in weights])


def read_provenance(directory: Path) -> Settings:
    """Returns the provenance that an export has recorded; of other models it is empty."""
    provenance = directory / PROVENANCE
    return _read(provenance) if provenance.is_file() else {}


def weights_digest(directory: Path) -> str:
    """Returns the SHA-256 of the weight file, or of the joined digests of several files."""
    return _join([file_digest(file) for file in weight_files(directory)])


def _join(digests: Sequence[str]) -> str:
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def file_digest(file: Path) -> str:
    """Returns the SHA-256 of a file."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def weight_files(directory: Path) -> list[Path]:
    """Returns the weight files of a model, sorted; raises an InputError if one is missing."""
    weight_map = _weight_map(directory)
    names = [WEIGHTS] if weight_map is None else sorted(set(weight_map.values()))
    for name in names:
        if Path(name).name != name or not (directory / name).is_file():
            if any((directory / f"{_PICKLES}{end}").is_file() for end in ("", ".index.json")):
                raise InputError(
                    f"{directory} has no {name}, only {_PICKLES}, which can run code when it is "
                    "read: convert it with transformers, AutoModelForCausalLM.from_pretrained(DIR)"
                    ".save_pretrained(NEW), and copy the tokenizer's files"
                )
            raise InputError(f"{directory} has no {name}: copy the model again")
    return [directory / name for name in names]


def _weight_map(directory: Path) -> dict[str, str] | None:
    """Returns the file of every tensor; None if all are in one file."""
    index = directory / INDEX
    if not index.is_file() or (directory / WEIGHTS).is_file():
        return None
    weight_map = _read(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(
        isinstance(name, str) for name in weight_map.values()
    ):
        raise InputError(f"{index} has no weight_map of files: copy it again")
    return weight_map


def _stored_twice(model_format: ModelFormat, config: ModelConfig) -> tuple[str, str]:
    """Returns the names of a tied head and of the embedding; ("", "") if the head is not tied."""
    if not config.tied:
        return "", ""
    table = model_format.tensors(dataclasses.replace(config, tied=False))
    names = {mapping.array: mapping.name for mapping in table}
    return names["head"], names["embedding"]


def _read_settings(directory: Path) -> tuple[Path, Settings]:
    if not directory.is_dir():
        raise InputError(
            f"{directory} is not a directory: give the directory of a model (a public one is "
            "fetched with: hf download OWNER/NAME --local-dir DIRECTORY)"
        )
    for name, parse in zip(_CONFIGURATIONS, (parse_json, _parse_yaml), strict=True):
        if (path := directory / name).is_file():
            return path, _read(path, parse)
    raise InputError(f"{directory} contains no model (no config.json and no config.yaml)")


def _read(path: Path, parse: Callable[[str], Any] = parse_json) -> Settings:
    try:
        return dict(parse(path.read_text(encoding="utf-8")))
    except UnicodeDecodeError as error:  # its repr has the whole text
        raise InputError(f"{path} cannot be read ({error}): copy it again") from error
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputError(f"{path} cannot be read ({error!r}): copy it again") from error


def _parse_yaml(text: str) -> Any:
    with needs_extra("export"):
        import yaml
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)):
            raise ValueError("aliases are not supported: they can expand without end")
        return yaml.safe_load(text)["model"]
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _vocab_size(directory: Path, rows: int) -> int:
    """Returns the vocabulary size when the configuration has only the embedding rows."""
    size: Any = read_provenance(directory).get("vocab_size")
    if size is not None:
        with within(str(directory / PROVENANCE)):
            require_count("vocab_size", size, least=1)
    elif (tokenizer := directory / TOKENIZER_FILE).is_file():
        size = read_size(tokenizer.read_bytes(), str(tokenizer))
    # `dataset_info.check_rows` refuses data that have a token beyond.
    return rows if size is None else min(size, rows)


@contextlib.contextmanager
def open_tensors(directory: Path, model_format: ModelFormat) -> Iterator[dict[str, Any]]:
    """Yields the tensors in a directory by name; indexing a tensor reads its content.

    Buffers are left out.
    """
    safetensors, stored = import_safetensors(), read_stored(directory)
    with contextlib.ExitStack() as stack:
        handles = {
            file: stack.enter_context(safetensors.safe_open(file, framework="np"))
            for file in {tensor.file for tensor in stored.values()}
        }
        yield {
            name.removeprefix(model_format.prefix): handles[tensor.file].get_slice(name)
            for name, tensor in stored.items()
            if not _BUFFERS.fullmatch(name)
        }


class StoredTensor(NamedTuple):
    """Tensor in a file, of a type that NumPy may lack.

    Attributes:
      dtype: the type as the file names it, such as `BF16`.
      start: the first byte of the content in the file.
      size: bytes of the content.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    size: int

    def read(self, at: int, size: int) -> bytes:
        """Returns up to `size` bytes of the content, from its byte `at`."""
        with self.file.open("rb") as opened:
            opened.seek(self.start + at)
            return opened.read(min(size, self.size - at))


def read_stored(directory: Path) -> dict[str, StoredTensor]:
    """Returns the tensors in a directory by name, as they follow each other in the files.

    Of several files, a tensor is the one in the file that the index names.
    """
    safetensors, weight_map = import_safetensors(), _weight_map(directory)
    stored: dict[str, StoredTensor] = {}
    for file in weight_files(directory):
        try:
            with safetensors.safe_open(file, framework="np"), file.open("rb") as opened:
                length = int.from_bytes(opened.read(8), "little")
                header = json.loads(opened.read(length))
        except Exception as error:  # SafetensorError does not cover all causes
            raise InputError(f"{file} cannot be read ({error}): copy it again") from error
        header.pop("__metadata__", None)
        for name, tensor in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            if weight_map is None or weight_map.get(name) == file.name:
                start, stop = tensor["data_offsets"]
                place = 8 + length + start, stop - start
                stored[name] = StoredTensor(file, tensor["dtype"], tuple(tensor["shape"]), *place)
    return stored


def import_safetensors() -> Any:
    """Returns the module safetensors; raises an InputError if it is not installed."""
    with needs_extra("export"):
        import safetensors.numpy
    return safetensors
