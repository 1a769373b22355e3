"""Checks of single settings, in one voice: what was given, what is allowed."""

import math
from typing import Any

import numpy as np

LARGEST_COUNT = 2**31  # counts are int32 on device
SMALLEST, LARGEST = 1.2e-38, 3.4e38  # numbers are float32 on device
_SHOWN = 120  # characters of a value in a message


def require(ok: Any, name: str, value: Any, allowed: str) -> None:
    """Raises a ValueError that names the setting, what was given and what is allowed."""
    if not ok:
        raise ValueError(f"{name} = {shown(value)} is not allowed: it must be {allowed}")


def shown(value: Any) -> str:
    """Returns a value as a message shows it: as Python writes it, on one line and not too long."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # anyone's __repr__, or a whole number of too many digits
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 20]} ... {text[-15:]}"


def is_number(value: Any) -> bool:
    """Whether a value is a finite real number (a bool is not one)."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number too large for a float
        return False


def require_fraction(name: str, value: Any) -> None:
    """Raises unless the value is a number from 0 to 1."""
    require(is_number(value) and 0 <= value <= 1, name, value, "a fraction from 0 to 1")


def require_positive(name: str, value: Any) -> None:
    """Raises unless the value is a number above 0 that float32 holds with all its digits."""
    require(is_number(value) and value > 0, name, value, "a number above 0")
    allowed = f"from {SMALLEST:g} to {LARGEST:g}, as float32 holds"
    require(SMALLEST <= value <= LARGEST, name, value, allowed)


def require_count(name: str, value: Any, least: int = 0) -> None:
    """Raises unless the value is a whole number of at least `least`."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    ok = whole and least <= value < LARGEST_COUNT
    require(ok, name, value, f"a whole number from {least} to below 2^31")


def require_word(name: str, value: str) -> None:
    """Raises unless the text can be shown to people."""
    ok = value.strip() and value.isprintable() and len(value) <= 200
    require(ok, name, value, "a word or a few, in printable characters")


def require_directory(name: str, value: str) -> None:
    """Raises unless the text can be the path of a directory."""
    ok = value.strip() and value.isprintable() and not value.startswith("~")
    require(ok, name, value, "a directory, in printable characters and with ~ written out")


def require_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raises unless the value is one of the choices."""
    require(value in choices, name, value, "one of " + ", ".join(map(str, choices)))
