"""Packages of the extra `export`, which are imported where they are used."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from anytime_jax.errors import InputError


@contextlib.contextmanager
def export_packages() -> Iterator[None]:
    """Names the extra `export` in an InputError if an import of the block fails."""
    try:
        yield
    except ImportError as error:
        raise InputError(
            f"a package cannot be imported ({error}); install those of the extra with "
            "pip install 'anytime_jax[export]', or in the repository pip install -e '.[export]'"
        ) from error


def require_export_packages() -> None:
    """Raises an InputError if a package of the extra is not installed."""
    with export_packages():
        import safetensors.numpy  # noqa: F401
        import tokenizers  # noqa: F401
        import yaml  # noqa: F401
        from google.protobuf import text_format  # noqa: F401
