"""Tokenizers of the Hugging Face libraries, as vocabularies.

`tokenizer.json` has a tokenizer's rules but not its EOS token, which is named in
`tokenizer_config.json` or `special_tokens_map.json` in the same directory. A dataset stores these
files as one bundle: a JSON object that maps each file name to its text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anytime_jax.errors import InputError, needs_extra
from anytime_jax.storage.json_files import parse_json

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS_FILE = "special_tokens_map.json"
COMPANIONS = (CONFIG_FILE, SPECIAL_TOKENS_FILE)


def import_tokenizers() -> Any:
    """Imports the package `tokenizers`; raises InputError if it is not installed."""
    with needs_extra("export"):
        import tokenizers  # SentencePiece models do not need this library
    return tokenizers


def is_hf_tokenizer(content: bytes, path: Path) -> bool:
    """Returns whether a file looks like JSON, which no SentencePiece model does."""
    return path.suffix == ".json" or content.lstrip()[:1] == b"{"


def bundle(content: bytes, path: Path, end_of_text: str | None = None) -> bytes:
    """Bundles a `tokenizer.json` with its companion files; a bundle is one already.

    The same files give the same bytes in any folder. `end_of_text` becomes the `eos_token`.
    """
    parsed = _parse(content, path)
    if TOKENIZER_FILE in parsed:
        if end_of_text is None:
            return content
        files = unbundle(content)
    else:
        files = {TOKENIZER_FILE: content.decode("utf-8")}
        for name in COMPANIONS:
            if path.with_name(name).is_file():
                files[name] = path.with_name(name).read_bytes().decode("utf-8", errors="replace")
    if end_of_text is not None:
        config = _parse(files.get(CONFIG_FILE, "{}"), path.with_name(CONFIG_FILE))
        files[CONFIG_FILE] = json.dumps({**config, "eos_token": end_of_text})
    return json.dumps(files, ensure_ascii=False, indent=1, sort_keys=True).encode("utf-8")


def unbundle(model: bytes) -> dict[str, str]:
    """Returns the text of each file in a bundle, by name."""
    return {name: text for name, text in parse_json(model).items() if isinstance(text, str)}


class HfTokenizer:
    """A tokenizer of the `tokenizers` library, with the methods of `Vocabulary`."""

    def __init__(self, model: bytes, path: Path):
        """Parses a bundle; errors name `path`."""
        library = import_tokenizers()
        files = unbundle(model)
        companions = [_parse(files.get(name, "{}"), path.with_name(name)) for name in COMPANIONS]
        eos = _special_token(companions, "eos_token")
        if eos is None:
            raise InputError(
                f"vocabulary {path} has no EOS token, which must end every document; name one of "
                f"its tokens with --end-of-text, or as eos_token in {path.with_name(CONFIG_FILE)}"
            )
        bos = _special_token(companions, "bos_token")
        try:
            self._tokenizer = library.Tokenizer.from_str(files.get(TOKENIZER_FILE, ""))
        except Exception as error:  # the library raises no narrower class
            reason = " ".join(str(error).split())
            raise InputError(
                f"vocabulary {path} is not a tokenizer that tokenizers {library.__version__} can "
                f'read ("{reason}"); give the tokenizer.json of a Hugging Face model'
            ) from error
        eos_id = self._tokenizer.token_to_id(eos)
        if eos_id is None:
            raise InputError(
                f"vocabulary {path} has no token {eos!r}, which --end-of-text, {CONFIG_FILE} "
                f"or {SPECIAL_TOKENS_FILE} names as eos_token; name a token that it has"
            )
        self.eos_id: int = eos_id
        self.eos_text = eos
        bos_id = self._tokenizer.token_to_id(bos) if bos is not None else None
        self.prefix_id: int = eos_id if bos_id is None else bos_id
        # Ids can have gaps, and a model needs a row for every id up to the highest.
        self.size = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values())
        # These settings do not suit training text: they truncate or pad documents, and read
        # "<|endoftext|>" inside a document as its end.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        adds_bos = companions[0].get("add_bos_token")
        if adds_bos is None:  # as the post-processor of tokenizer.json does
            bos_id = next((x for x in self.encode_by_itself("")[:1] if x != eos_id), None)
        self.bos_id: int | None = None if adds_bos is False else bos_id

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """See `Vocabulary.encode`."""
        # A batch would start threads, but preparation already runs one process per core.
        encodings = (self._tokenizer.encode(text, add_special_tokens=False) for text in texts)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def encode_by_itself(self, text: str) -> list[int]:
        """See `Vocabulary.encode_by_itself`."""
        return self._tokenizer.encode(text, add_special_tokens=True).ids

    def decode(self, ids: list[int]) -> str:
        """See `Vocabulary.decode`."""
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    def incremental_decoder(self) -> _Decoder:
        """See `Vocabulary.incremental_decoder`."""
        return _Decoder(self._tokenizer)


class _Decoder:
    """An `IncrementalDecoder`; the library holds back bytes that may yet become a character."""

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        self._stream = import_tokenizers().decoders.DecodeStream(skip_special_tokens=True)
        self._pending: list[int] = []

    def decode(self, token: int) -> str:
        self._pending.append(token)
        text = self._stream.step(self._tokenizer, token)
        if text is not None:
            self._pending = []
        return text or ""

    def flush(self) -> str:
        pending, self._pending = self._pending, []
        return self._tokenizer.decode(pending, skip_special_tokens=True)


def _special_token(companions: Sequence[dict[str, Any]], kind: str) -> str | None:
    """A special token of the first file that names one: a string, or an object around it."""
    for parsed in companions:
        token = parsed.get(kind)
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            return token
    return None


def _parse(content: bytes | str, path: Path) -> dict[str, Any]:
    try:
        parsed = parse_json(content)
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}); fetch it again") from error
    if not isinstance(parsed, dict):
        raise InputError(f"{path} is not a JSON object; give the tokenizer.json of a model")
    return parsed
