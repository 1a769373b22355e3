"""A model's directory in a format of another library: written completely or not at all, and read.

    model.safetensors     the weights, under their names
    config.json           their settings, and config.yaml for `ai2-olmo`
    tokenizer.json, ...   the vocabulary, for their tokenizers, and as it was trained with
    parity.safetensors    a prompt of token ids and the float32 logits computed here
    anytime_jax.json      where the weights come from

Nothing in a directory is executed when it is read.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anytime_jax.checks import format_value, require_count
from anytime_jax.config.model import ModelConfig
from anytime_jax.errors import InputError, RunError
from anytime_jax.formats.conversion import Format, Settings, check_tensors, from_tensors, to_tensors
from anytime_jax.formats.olmo import OLMO
from anytime_jax.formats.olmo2 import OLMO2
from anytime_jax.models import decoder
from anytime_jax.models.decoder import Params

FORMATS = {form.name: form for form in (OLMO, OLMO2)}
WEIGHTS, PARITY, ABOUT = "model.safetensors", "parity.safetensors", "anytime_jax.json"
TOKENIZER = "tokenizer.json"
_INDEX = f"{WEIGHTS}.index.json"  # where the weights are in several files
_PROMPT_TOKENS = 32
_FLOATS = ("F32", "F16", "BF16")  # types of weights that float32 holds exactly
_STRIDE = 7919  # a prime: the prompt's ids are spread over the vocabulary


@dataclasses.dataclass(frozen=True)
class Described:
    """A model in another library's directory, but for its weights.

    Attributes:
      directory: where it lies.
      form: the format.
      shape: our settings of it (`ModelConfig`, without those that say how to compute).
    """

    directory: Path
    form: Format
    shape: Settings


@contextlib.contextmanager
def creating(directory: Path, overwrite: bool) -> Iterator[Path]:
    """Gives a directory to fill, which takes its place and name when the block succeeds.

    Args:
      directory: what to create.
      overwrite: whether it may take the place of another.

    Raises:
      InputError: if something is there and may not be overwritten, or nothing can be made there.
    """
    check_free(directory, overwrite)
    directory = directory.resolve()  # a link, "." or ".." stands for what it names
    part = directory.with_name(f"{directory.name}.{os.getpid()}.part")
    old = directory.with_name(f"{directory.name}.{os.getpid()}.old")
    try:
        part.mkdir(parents=True)
    except OSError as error:
        raise InputError(
            f"--output={directory} cannot be made ({error.strerror}): choose another directory"
        ) from error
    try:
        yield part
        check_free(directory, overwrite)  # still
        if directory.exists():
            directory.rename(old)
        part.rename(directory)
    except BaseException:
        if old.exists():
            old.rename(directory)
        raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


def check_free(directory: Path, overwrite: bool) -> None:
    """Raises an InputError if something is there that may not be overwritten."""
    try:
        if not directory.exists() and not directory.is_symlink():
            return
    except OSError as error:
        raise InputError(
            f"--output={str(directory)[:100]} cannot be made ({error.strerror}): choose another"
        ) from error
    if not overwrite:
        raise InputError(f"--output={directory} is there: choose another, or --overwrite")
    if not (directory / ABOUT).is_file():
        raise InputError(
            f"--output={directory} is no exported model (no {ABOUT}) and is not overwritten: "
            "choose another directory"
        )


def write_model(
    directory: Path,
    form: Format,
    config: ModelConfig,
    params: Params,
    eos_id: int,
    dtype: str,
) -> None:
    """Writes weights, configuration and parity record into an empty directory.

    Args:
      directory: where to.
      form: the format; it can express the model (`Format.check`).
      config: shape of the model.
      params: NumPy float32 arrays.
      eos_id: the id that ends a document.
      dtype: "float32" or "bfloat16", of the weights in the file.

    Raises:
      RunError: if a file cannot be written.
    """
    rounded = jax.tree.map(lambda x: x.astype(jnp.dtype(dtype)), params)
    _save(to_tensors(form.pieces, rounded), directory / WEIGHTS, {"format": "pt"})
    for name, content in form.files(form.settings(config), eos_id, dtype).items():
        (directory / name).write_text(content, encoding="utf-8")
    tokens = (_STRIDE * np.arange(1, min(_PROMPT_TOKENS, config.length) + 1)) % config.vocab_size
    logits = compute_logits(config, rounded, tokens)
    _save({"tokens": tokens.astype(np.int32), "logits": logits}, directory / PARITY)


def compute_logits(config: ModelConfig, params: Params, tokens_L: np.ndarray) -> np.ndarray:
    """Returns the logits of one sequence, computed in float32: float32[L, V]."""
    plain = dataclasses.replace(config, dtype="float32", attention="plain", remat="none")
    # Not jitted: once, and the weights are arguments in any case.
    with jax.default_matmul_precision("highest"):
        floats = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)
        logits_BxLxV = decoder.apply(plain, floats, jnp.asarray(tokens_L, jnp.int32)[None])
    return np.asarray(logits_BxLxV[0])


def describe(directory: Path) -> Described:
    """Returns what a model in a directory is, in either format; reads no weights.

    Raises:
      InputError: if there is none, or our decoder cannot express it; the message names the setting.
    """
    name, settings = _read_settings(directory)
    kind = settings.get("model_type", OLMO.model_type)
    form = next((form for form in FORMATS.values() if form.model_type == kind), None)
    if form is None:
        known = ", ".join(repr(form.model_type) for form in FORMATS.values())
        raise InputError(
            f"{directory / name}: model_type = {format_value(kind)} is none of {known}"
        )
    try:
        shape = form.shape(settings)
    except ValueError as error:
        raise InputError(f"{directory / name}: {error}") from error
    if "vocab_size" not in shape:
        shape["vocab_size"] = _vocab_size(directory, shape["embedding_rows"])
    return Described(directory, form, {"architecture": form.name, **shape})


def check_params(described: Described, config: ModelConfig) -> None:
    """Checks that the weights of a model in a directory are there; reads none.

    Args:
      described: the model.
      config: its shape.

    Raises:
      InputError: if a tensor is missing, left over, of another shape or of another type.
    """
    directory = described.directory
    with _opened(described) as tensors:
        for name, each in tensors.items():
            if each.get_dtype() not in _FLOATS:
                raise InputError(
                    f"{directory}: its tensor {name} is of type {each.get_dtype()}, not one of "
                    f"{', '.join(_FLOATS)}: convert the model to one of them"
                )
        shapes = {name: tuple(each.get_shape()) for name, each in tensors.items()}
        try:
            check_tensors(described.form.pieces, shapes, config)
        except InputError as error:
            raise InputError(f"{directory}: {error}: copy it again") from error


def read_params(described: Described, config: ModelConfig) -> Params:
    """Returns the weights of a model in a directory, float32 in host memory.

    Args:
      described: the model.
      config: its shape.

    Raises:
      InputError: as `check_params`.
    """
    check_params(described, config)
    with _opened(described) as tensors:

        def get(name: str) -> np.ndarray:
            return np.asarray(tensors[name][:], np.float32)

        return from_tensors(described.form.pieces, get, config)


def digest(directory: Path) -> str:
    """Returns a hash of the files of weights of a model, in order."""
    found = [sha256(file) for file in weight_files(directory)]
    return found[0] if len(found) == 1 else hashlib.sha256("".join(found).encode()).hexdigest()


def sha256(file: Path) -> str:
    """Returns the SHA-256 of a file, in hexadecimal."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def weight_files(directory: Path) -> list[Path]:
    """Returns the files of weights of a model, in order.

    Raises:
      InputError: if one is not there.
    """
    names, index = [WEIGHTS], directory / _INDEX
    if index.is_file() and not (directory / WEIGHTS).is_file():
        named = _read_json(index).get("weight_map")
        if not isinstance(named, dict) or not all(isinstance(x, str) for x in named.values()):
            raise InputError(f"{index} has no weight_map of files: copy it again")
        names = sorted(set(named.values()))
    for name in names:
        if Path(name).name != name or not (directory / name).is_file():
            raise InputError(f"{directory} has no {name}: copy the model again")
    return [directory / name for name in names]


def _read_settings(directory: Path) -> tuple[str, Settings]:
    """The file that describes a model, and what it says."""
    if not directory.is_dir():
        raise InputError(f"{directory} is no directory: give that of a model")
    if (directory / "config.json").is_file():
        return "config.json", _read_json(directory / "config.json")
    if (directory / "config.yaml").is_file():
        return "config.yaml", _read_yaml(directory / "config.yaml")
    raise InputError(f"{directory} holds no model (it has no config.json and no config.yaml)")


def _read_json(path: Path) -> Settings:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{path} cannot be read ({error}): copy it again") from error


def _read_yaml(path: Path) -> Settings:
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)):
            raise ValueError("it has aliases, which can unfold without end")
        return dict(yaml.safe_load(text)["model"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError, yaml.YAMLError) as error:
        raise InputError(f"{path} cannot be read ({error!r}): copy it again") from error


def _vocab_size(directory: Path, rows: int) -> int:
    """The number of tokens that exist, where the format knows only that of rows."""
    file = next((x for name in (ABOUT, TOKENIZER) if (x := directory / name).is_file()), None)
    if file is None:
        return rows
    content = _read_json(file)
    try:
        size = content["vocab_size"] if file.name == ABOUT else 1 + _highest_id(content)
        require_count("vocab_size", size, least=1)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"{file} does not say how many tokens there are ({error!r}): copy it again"
        ) from error
    if size > rows:
        raise InputError(
            f"{file} has {size:,} tokens, where the model has {rows:,} rows: it is not that of "
            "this model"
        )
    return size


def _highest_id(tokenizer: Settings) -> int:
    """The highest id in a tokenizer.json; ids can have holes."""
    pieces = tokenizer["model"]["vocab"]
    ids = range(len(pieces)) if isinstance(pieces, list) else pieces.values()
    return max([*ids, *(added["id"] for added in tokenizer.get("added_tokens") or ())])


@contextlib.contextmanager
def _opened(described: Described) -> Iterator[dict[str, Any]]:
    """Every tensor of a model by its name, to be read when it is asked for its content."""
    safetensors, prefix = _safetensors(), described.form.prefix
    with contextlib.ExitStack() as stack:
        opened: dict[str, Any] = {}
        for file in weight_files(described.directory):
            try:
                handle = stack.enter_context(safetensors.safe_open(file, framework="np"))
            except Exception as error:  # the library raises its own kinds
                raise InputError(f"{file} cannot be read ({error}): copy it again") from error
            names: list[str] = handle.keys()
            opened |= {name.removeprefix(prefix): handle.get_slice(name) for name in names}
        yield opened


def _save(
    tensors: dict[str, np.ndarray], file: Path, metadata: dict[str, str] | None = None
) -> None:
    safetensors = _safetensors()
    try:
        safetensors.numpy.save_file(tensors, file, metadata)
    except safetensors.SafetensorError as error:  # no OSError, even where the disk is full
        raise RunError(f"{file} cannot be written ({error})") from error
    file.chmod(0o644)  # the library lets its owner alone read it


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError as error:
        raise InputError(
            "models are read and written with the library safetensors, which is not installed: "
            "pip install 'anytime_jax[export]'"
        ) from error
    return safetensors
