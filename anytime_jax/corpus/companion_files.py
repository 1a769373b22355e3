"""Files beside the weights of a model or beside a tokenizer, kept byte for byte for exports.

A run that starts from a model keeps the files of the model's directory, and a dataset the files of
its tokenizer's directory: chat templates, generation settings, licenses, tokenizers in other forms.
Each keeps one ZIP archive, because neither directory is needed later.
"""

import contextlib
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anytime_jax.corpus.hf_vocabulary import TOKENIZER_FILE, HfVocabulary
from anytime_jax.corpus.vocabulary_interface import Vocabulary
from anytime_jax.data.dataset_info import VOCABULARY_NAME
from anytime_jax.storage.atomic import atomic_write
from anytime_jax.storage.files import file_size, is_regular_file, read_file
from anytime_jax.storage.json_files import parse_json

ARCHIVE = "companion_files.zip"
MODEL_FILE = "config.json"  # settings of a model; an export writes its own
GENERATION_FILE = "generation_config.json"
_TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
_FOLDERS = ("additional_chat_templates",)  # the folder that transformers reads
# Ends of the names of weights, and of indices of weights.
WEIGHT_ENDS = (
    *(".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf", ".onnx"),
    ".index.json",
)
_MOST_BYTES = 100_000_000  # of a file; weights may have any name
# The description of another model, files of a dataset, and files that every export writes.
_REPLACED = ("README.md", "metadata.json", "provenance.json", "config.yaml", ARCHIVE)


def collect(directory: Path) -> dict[str, bytes]:
    """Returns the files of a local directory to keep, by their paths in it.

    Weights, code, hidden files, the model's card and files of over 100 MB are left out. A directory
    that has an archive, such as a dataset, has the files of the archive.
    """
    if kept := load(directory):
        return kept
    folders = [directory, *(directory / name for name in _FOLDERS)]
    files = [file for folder in folders if folder.is_dir() for file in sorted(folder.iterdir())]
    return {
        file.relative_to(directory).as_posix(): read_file(file)
        for file in files
        if file.is_file()
        and not file.name.startswith(".")
        and not file.name.endswith((*WEIGHT_ENDS, ".py"))
        and file_size(file) <= _MOST_BYTES
        and file.name not in _REPLACED
    }


def save(files: Mapping[str, bytes], directory: Path) -> None:
    """Writes files into the archive of a directory, which has none if there are no files."""
    if not files:
        return
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, file in files.items():
            archive.writestr(zipfile.ZipInfo(name), file, zipfile.ZIP_DEFLATED)
    with atomic_write(directory / ARCHIVE) as temporary:
        temporary.write_bytes(content.getvalue())


def load(directory: Path) -> dict[str, bytes]:
    """Returns the files in the archive of a directory; none if it has no archive."""
    if not is_regular_file(directory / ARCHIVE):
        return {}
    with zipfile.ZipFile(io.BytesIO(read_file(directory / ARCHIVE))) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def of_vocabulary(path: Path) -> dict[str, bytes]:
    """Returns the files of a tokenizer's directory, or those that a dataset keeps.

    `path` is the vocabulary as `load_vocabulary` takes it. Settings of a model are left out. A file
    that is given by its own name has no companions but in a dataset.
    """
    files = collect(path) if path.is_dir() else load(path.parent)
    files = {name: x for name, x in files.items() if name not in (MODEL_FILE, GENERATION_FILE)}
    return files if files.keys() - {VOCABULARY_NAME} else {}


def choose(
    of_model: Mapping[str, bytes], of_data: Mapping[str, bytes], vocabulary: Vocabulary
) -> dict[str, bytes]:
    """Returns the files that an export writes: of a tokenizer only if it is the vocabulary."""
    files = {name: x for name, x in of_model.items() if name == GENERATION_FILE}
    for group in (of_data, of_model):
        if _is_tokenizer(group, vocabulary):
            files |= group
    return {name: x for name, x in files.items() if name not in (MODEL_FILE, VOCABULARY_NAME)}


def token_ids(of_model: Mapping[str, bytes], eos_id: int) -> dict[str, Any]:
    """Returns the ids of special tokens by their names in `MODEL_FILE`.

    The model's own come first, of which `eos_token_id` may be a list.
    """
    settings = parse_json(of_model.get(MODEL_FILE, b"{}"))
    own = {name: settings.get(name) for name in _TOKEN_IDS}
    return {"eos_token_id": eos_id} | {name: x for name, x in own.items() if x is not None}


def end_ids(of_model: Mapping[str, bytes], eos_id: int) -> frozenset[int]:
    """Returns the ids at which generated text ends: the EOS of the data, and those of the model."""
    own: Any = None
    with contextlib.suppress(ValueError, AttributeError):  # the file is the model's, whatever it is
        own = parse_json(of_model.get(GENERATION_FILE, b"{}")).get("eos_token_id")
    own = own or token_ids(of_model, eos_id)["eos_token_id"]
    return frozenset([eos_id, *(own if isinstance(own, list) else [own])])


def _is_tokenizer(files: Mapping[str, bytes], vocabulary: Vocabulary) -> bool:
    if isinstance(vocabulary, HfVocabulary):
        return files.get(TOKENIZER_FILE) == vocabulary.files[TOKENIZER_FILE].encode("utf-8")
    return vocabulary.model in (files.get(VOCABULARY_NAME), files.get("tokenizer.model"))
