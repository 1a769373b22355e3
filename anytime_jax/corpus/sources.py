"""Sources of text: the kinds that `prepare --source` takes.

A source is a frozen dataclass, a subclass of `Source` with a method `parts`, whose fields are
options of `prepare`. One of your own is named `package.module:Class` (docs/extend.md).
"""

from anytime_jax.config.kinds import Kinds
from anytime_jax.corpus.builtin_source import BuiltinSource
from anytime_jax.corpus.file_source import FileSource
from anytime_jax.corpus.source_interface import Part, Source
from anytime_jax.corpus.tfds_source import TfdsSource

SOURCES = Kinds("source", Source, default="files", setting="--source")

__all__ = ["SOURCES", "BuiltinSource", "FileSource", "Part", "Source", "TfdsSource"]
