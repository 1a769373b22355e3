"""Tokenizers of the Hugging Face libraries, as vocabularies.

`tokenizer.json` has a tokenizer's rules but not its EOS token, which is named in
`tokenizer_config.json` or `special_tokens_map.json` in the same directory. A dataset stores these
files as one bundle: a JSON object that maps each file name to its text.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from anytime_jax.corpus.dropped_characters import DroppedCharacters
from anytime_jax.corpus.source_interface import reading_error
from anytime_jax.corpus.vocabulary_interface import Encoded, Vocabulary
from anytime_jax.errors import InputError, needs_extra
from anytime_jax.storage.json_files import parse_json

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS_FILE = "special_tokens_map.json"
_ADDED_FILE = "added_tokens.json"
_COMPANIONS = (CONFIG_FILE, SPECIAL_TOKENS_FILE)


def import_tokenizers() -> Any:
    """Imports the package `tokenizers`; raises InputError if it is not installed."""
    with needs_extra("export"):
        import tokenizers  # SentencePiece models do not need this library
    return tokenizers


def load_tokenizer(
    content: bytes, path: str, read: Callable[[str], bytes | None], end_of_text: str | None
) -> HfVocabulary:
    """Returns the vocabulary of a `tokenizer.json` and its companion files, or of a bundle.

    `read` returns the file of a name in the directory, or None. `end_of_text` becomes the
    `eos_token`. Raises an InputError if a companion file adds a token that `tokenizer.json` lacks.
    """
    files = _parse(content, path)
    added: list[tuple[Any, int]] = []
    if TOKENIZER_FILE not in files:
        files = {TOKENIZER_FILE: content.decode("utf-8")}
        for name in _COMPANIONS:
            if (companion := read(name)) is not None:
                _parse(companion, f"{name} of {path}")
                files[name] = companion.decode("utf-8")
        added = _added_tokens(files, read(_ADDED_FILE), path)
    if end_of_text is not None:
        config = _parse(files.get(CONFIG_FILE, "{}"), f"{CONFIG_FILE} of {path}")
        files[CONFIG_FILE] = json.dumps({**config, "eos_token": end_of_text})
    return HfVocabulary(files, path, added)


def _added_tokens(
    files: Mapping[str, str], added_file: bytes | None, path: str
) -> list[tuple[Any, int]]:
    """Returns the tokens, with their ids, that files beside `tokenizer.json` add, as old ones did.

    transformers adds such tokens as it loads the files. The library tokenizers does not know them.
    """
    added = [*_parse(added_file or "{}", f"{_ADDED_FILE} of {path}").items()]
    config = _parse(files.get(CONFIG_FILE, "{}"), f"{CONFIG_FILE} of {path}")
    try:
        decoder = (config.get("added_tokens_decoder") or {}).items()
        added += [(token["content"], int(token_id)) for token_id, token in decoder]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise reading_error(f"added_tokens_decoder in {CONFIG_FILE} of {path}", error) from error
    return added


class HfVocabulary(Vocabulary):
    """A tokenizer of the `tokenizers` library.

    Attributes:
      files: the text of each file of the tokenizer, by name.
    """

    def __init__(self, files: dict[str, str], path: str, added: Sequence[tuple[Any, int]] = ()):
        """Reads the tokenizer, which must have the tokens `added`; errors name `path`."""
        self.files = files
        text = json.dumps(files, ensure_ascii=False, indent=1, sort_keys=True)
        self.model = text.encode("utf-8")
        self._tokenizer = _parse_rules(
            files[TOKENIZER_FILE], f"{TOKENIZER_FILE} of vocabulary {path}"
        )
        for token, token_id in added:
            if not isinstance(token, str) or self._tokenizer.token_to_id(token) != token_id:
                raise InputError(
                    f"vocabulary {path}: {CONFIG_FILE} or {_ADDED_FILE} adds {token!r} with the id "
                    f"{token_id}, which {TOKENIZER_FILE} does not have: write the files anew with "
                    "transformers, AutoTokenizer.from_pretrained(DIR).save_pretrained(NEW)"
                )
        companions = [_parse(files.get(x, "{}"), f"{x} of {path}") for x in _COMPANIONS]
        self.eos_text = _special_token(companions, "eos_token") or ""
        eos_id = self._tokenizer.token_to_id(self.eos_text)
        if eos_id is None:
            named = f"has no token {self.eos_text!r}" if self.eos_text else "names no EOS token"
            raise InputError(
                f"vocabulary {path} {named}, which must end every document; name one of its tokens "
                f"with --end-of-text, or as eos_token in {CONFIG_FILE}"
            )
        self.eos_id: int = eos_id
        bos = _special_token(companions, "bos_token")
        self.named_bos_id: int | None = self._tokenizer.token_to_id(bos or "")
        self.size = _size(self._tokenizer)
        # These settings do not suit training text: they truncate or pad documents, leave out merges
        # at random, and read "<|endoftext|>" inside a document as its end.
        self._tokenizer.no_truncation()
        if getattr(self._tokenizer.model, "dropout", None) is not None:
            self._tokenizer.model.dropout = None
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        adds_bos = companions[0].get("add_bos_token")
        if adds_bos is None or (adds_bos and self.named_bos_id is None):
            self.begin = self._processed_begin()
        else:
            self.begin = () if not adds_bos or self.named_bos_id is None else (self.named_bos_id,)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """See `Vocabulary.encode`."""
        return [np.array(encoding.ids, np.int32) for encoding in self._encode(texts)]

    def encode_counted(self, texts: Sequence[str]) -> list[Encoded]:
        """See `Vocabulary.encode_counted`."""
        dropped, unknown_id = self._counting
        return [
            Encoded(np.array(x.ids, np.int32), x.ids.count(unknown_id), dropped.count(text, x))
            for text, x in zip(texts, self._encode(texts), strict=True)
        ]

    def _encode(self, texts: Sequence[str]) -> Iterator[Any]:
        # A batch would start threads, but preparation already runs one process per core.
        for text in texts:
            try:
                yield self._tokenizer.encode(text, add_special_tokens=False)
            except Exception as error:  # the library raises no narrower class
                raise InputError(f"the vocabulary cannot encode a text ({error})") from error

    @functools.cached_property
    def _counting(self) -> tuple[DroppedCharacters, int | None]:
        """Returns what counts dropped characters, and the id of unknown pieces."""
        rules = json.loads(self.files[TOKENIZER_FILE])
        unknown = rules["model"].get("unk_token")
        unknown_id = unknown and self._tokenizer.token_to_id(unknown)
        dropped = DroppedCharacters(import_tokenizers(), self._tokenizer, rules)
        return dropped, rules["model"].get("unk_id", unknown_id)

    def encode_by_itself(self, text: str) -> list[int]:
        """See `Vocabulary.encode_by_itself`."""
        return self._tokenizer.encode(text, add_special_tokens=True).ids

    def _processed_begin(self) -> tuple[int, ...]:
        """Returns the ids that the post-processor of `tokenizer.json` puts before a text."""
        for piece in self._tokenizer.get_vocab():
            encoding = self._tokenizer.encode(piece)
            # Around a piece that encodes to nothing, ids before it are not told from ids after it.
            if 0 in encoding.special_tokens_mask:
                return tuple(encoding.ids[: encoding.special_tokens_mask.index(0)])
        return ()

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """See `Vocabulary.decode`."""
        return self._tokenizer.decode(np.asarray(ids, int).tolist(), skip_special_tokens=True)


def read_size(content: bytes, place: str) -> int:
    """Returns the `size` of a `tokenizer.json`, which need not name an EOS token."""
    return _size(_parse_rules(content, place))


def _parse_rules(content: str | bytes, place: str) -> Any:
    library = import_tokenizers()
    try:
        text = content.decode("utf-8") if isinstance(content, bytes) else content
        return library.Tokenizer.from_str(text)
    except Exception as error:  # the library raises no narrower class
        raise reading_error(place, error) from error


def _size(tokenizer: Any) -> int:
    """Ids can have gaps, and a model needs a row for every id up to the highest."""
    return 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)


def _special_token(companions: Sequence[dict[str, Any]], kind: str) -> str | None:
    """A special token of the first file that names one: a string, or an object around it."""
    for parsed in companions:
        token = parsed.get(kind)
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            return token
    return None


def _parse(content: bytes | str, place: str) -> dict[str, Any]:
    try:
        parsed = parse_json(content)
        if not isinstance(parsed, dict):
            raise ValueError("no JSON object")
    except ValueError as error:
        raise reading_error(place, error) from error
    return parsed
