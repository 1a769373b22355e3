"""Packages of the extra `export`, which are imported where they are used."""

from __future__ import annotations

import importlib
from typing import Any

from anytime_jax.errors import InputError

EXPORT = ("google.protobuf", "safetensors", "tokenizers", "yaml")


def import_optional(name: str) -> Any:
    """Imports a module of the extra `export`; raises an InputError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(
            f"the package {name.partition('.')[0]} cannot be imported ({error}); install the extra "
            "with pip install -e '.[export]' in the repository of anytime_jax"
        ) from error
