"""SentencePiece models as protobuf messages: pieces and text normalization.

SentencePiece's generated classes need a protobuf as new as their compiler, which other packages
may exclude; so the fields used are declared here.
"""

from __future__ import annotations

import enum
import functools
from typing import Any

from anytime_jax.errors import needs_extra

# The fields of sentencepiece_model.proto used here, with enumerations as integers.
_SCHEMA = """
name: "anytime_jax/sentencepiece_model.proto"
package: "anytime_jax"
message_type {
  name: "Piece"
  field { name: "piece" number: 1 type: TYPE_STRING }
  field { name: "score" number: 2 type: TYPE_FLOAT }
  field { name: "type" number: 3 type: TYPE_INT32 default_value: "1" }
}
message_type {
  name: "TrainerSpec"
  field { name: "model_type" number: 3 type: TYPE_INT32 default_value: "1" }
  field { name: "treat_whitespace_as_suffix" number: 24 type: TYPE_BOOL }
  field { name: "byte_fallback" number: 35 type: TYPE_BOOL }
  field { name: "pad_piece" number: 48 type: TYPE_STRING default_value: "<pad>" }
}
message_type {
  name: "NormalizerSpec"
  field { name: "precompiled_charsmap" number: 2 type: TYPE_BYTES }
  field { name: "add_dummy_prefix" number: 3 type: TYPE_BOOL default_value: "true" }
  field { name: "remove_extra_whitespaces" number: 4 type: TYPE_BOOL default_value: "true" }
  field { name: "escape_whitespaces" number: 5 type: TYPE_BOOL default_value: "true" }
}
message_type {
  name: "Model"
  field { name: "pieces" number: 1 type_name: ".anytime_jax.Piece" label: LABEL_REPEATED }
  field { name: "trainer_spec" number: 2 type_name: ".anytime_jax.TrainerSpec" }
  field { name: "normalizer_spec" number: 3 type_name: ".anytime_jax.NormalizerSpec" }
}
"""

ModelType = enum.IntEnum("ModelType", ["UNIGRAM", "BPE", "WORD", "CHAR"])
PieceType = enum.IntEnum(
    "PieceType", ["NORMAL", "UNKNOWN", "CONTROL", "USER_DEFINED", "UNUSED", "BYTE"]
)


def parse_sentencepiece(content: bytes) -> Any:
    """Parses a valid `.model` file into a message with the fields of the schema."""
    return _message_class().FromString(content)


@functools.cache
def _message_class() -> Any:
    with needs_extra("export"):
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(_SCHEMA, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("anytime_jax.Model"))
