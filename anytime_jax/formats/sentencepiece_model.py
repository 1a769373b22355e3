"""What is written in a SentencePiece model: its pieces, and what it does to a text before them.

SentencePiece brings classes of its own for this, which want a protobuf no older than the compiler
that made them: where another package holds protobuf back, importing them fails. So the few fields
that matter are described here, apart from whatever else in the process describes them.
"""

from __future__ import annotations

import enum
import functools
from typing import Any

# The numbers, types and defaults of sentencepiece_model.proto; enumerations are read as numbers.
_FIELDS: dict[str, list[dict[str, Any]]] = {
    "Piece": [
        {"name": "piece", "number": 1, "type": "TYPE_STRING"},
        {"name": "score", "number": 2, "type": "TYPE_FLOAT"},
        {"name": "type", "number": 3, "type": "TYPE_INT32", "defaultValue": "1"},
    ],
    "TrainerSpec": [
        {"name": "model_type", "number": 3, "type": "TYPE_INT32", "defaultValue": "1"},
        {"name": "treat_whitespace_as_suffix", "number": 24, "type": "TYPE_BOOL"},
        {"name": "byte_fallback", "number": 35, "type": "TYPE_BOOL"},
        {"name": "pad_piece", "number": 48, "type": "TYPE_STRING", "defaultValue": "<pad>"},
    ],
    "NormalizerSpec": [
        {"name": "precompiled_charsmap", "number": 2, "type": "TYPE_BYTES"},
        {"name": "add_dummy_prefix", "number": 3, "type": "TYPE_BOOL", "defaultValue": "true"},
        {"name": "remove_extra_whitespaces", "number": 4, "type": "TYPE_BOOL",
         "defaultValue": "true"},
        {"name": "escape_whitespaces", "number": 5, "type": "TYPE_BOOL", "defaultValue": "true"},
    ],
    "Model": [
        {"name": "pieces", "number": 1, "type": "TYPE_MESSAGE", "label": "LABEL_REPEATED",
         "typeName": ".anytime_jax.Piece"},
        {"name": "trainer_spec", "number": 2, "type": "TYPE_MESSAGE",
         "typeName": ".anytime_jax.TrainerSpec"},
        {"name": "normalizer_spec", "number": 3, "type": "TYPE_MESSAGE",
         "typeName": ".anytime_jax.NormalizerSpec"},
    ],
}  # fmt: skip


class ModelType(enum.IntEnum):
    """How a model cuts a text into pieces."""

    UNIGRAM = 1
    BPE = 2
    WORD = 3
    CHAR = 4


class PieceType(enum.IntEnum):
    """What a piece is for."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def parse_model(model: bytes) -> Any:
    """Reads a model that SentencePiece has read before, so that it is known to be one.

    Args:
      model: the content of the file.

    Returns:
      A protobuf message with `pieces` (`piece`, `score`, `type`), `trainer_spec` (`model_type`,
      `treat_whitespace_as_suffix`, `byte_fallback`, `pad_piece`) and `normalizer_spec`
      (`precompiled_charsmap`, `add_dummy_prefix`, `remove_extra_whitespaces`,
      `escape_whitespaces`).
    """
    return _message_class().FromString(model)


@functools.cache
def _message_class() -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

    messages = [
        {"name": name, "field": [{"label": "LABEL_OPTIONAL", **field} for field in fields]}
        for name, fields in _FIELDS.items()
    ]
    schema = {"name": "model.proto", "package": "anytime_jax", "messageType": messages}
    file = json_format.ParseDict(schema, descriptor_pb2.FileDescriptorProto())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("anytime_jax.Model"))
