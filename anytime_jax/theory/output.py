"""Output of the theory: tables for a terminal, JSON files and the directory for them."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from anytime_jax.atomic import atomic_write, make_writable_directory
from anytime_jax.checks import format_value, require_directory


def new_table(title: str, columns: Sequence[str]) -> Table:
    """Returns an empty table, its first column aligned left and numbers right."""
    table = Table(title=title, box=box.SIMPLE, padding=(0, 1, 0, 0), title_justify="left")
    for k, name in enumerate(columns):
        table.add_column(name, justify="left" if k == 0 else "right", no_wrap=True)
    return table


def prepare_directory(setting: str, path: Path) -> Path:
    """Creates a directory and requires that it can be written to."""
    require_directory(setting, str(path))
    try:
        make_writable_directory(path)
    except OSError as error:
        raise ValueError(
            f"{setting} = {format_value(str(path))} cannot be written to ({error.strerror}): "
            "choose another directory"
        ) from error
    return path


def write_json(path: Path, content: Any) -> Path:
    """Writes a file whole or not at all; numbers that are not finite become null."""
    text = json.dumps(_finite(content), indent=1, allow_nan=False)
    with atomic_write(path) as part:
        part.write_text(text + "\n", encoding="utf-8")
    return path


def _finite(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {name: _finite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
