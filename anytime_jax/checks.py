"""Checks of single settings, in one voice: what was given, what is allowed."""

import math
from typing import Any

import numpy as np

LARGEST_COUNT = 2**31  # counts are int32 on device


def require(ok: Any, name: str, value: Any, allowed: str) -> None:
    """Raises a ValueError that names the setting, what was given and what is allowed."""
    if not ok:
        raise ValueError(f"{name} = {value!r} is not allowed: it must be {allowed}")


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
    """Raises unless the value is a finite number above 0."""
    require(is_number(value) and value > 0, name, value, "a number above 0")


def require_count(name: str, value: Any, least: int = 0) -> None:
    """Raises unless the value is a whole number of at least `least`."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    ok = whole and least <= value < LARGEST_COUNT
    require(ok, name, value, f"a whole number from {least} to below 2^31")


def require_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raises unless the value is one of the choices."""
    require(value in choices, name, value, "one of " + ", ".join(map(str, choices)))
