"""Validation of single values: each error names the setting, the value and what is allowed.

NumPy is imported where a value is an array: every command imports this module, and its import takes
a tenth of a second.
"""

import dataclasses
import math
import numbers
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args, get_origin

from anytime_jax.errors import InputError

if TYPE_CHECKING:
    import numpy as np

LARGEST_COUNT = 2**31  # counts are int32 on device
SMALLEST, LARGEST = 1.2e-38, 3.4e38  # normal float32 numbers
_BELOW_ONE = 1 - 2**-25  # float32 rounds numbers from here to 1 up to 1


def require(ok: Any, name: str, value: Any, allowed: str) -> None:
    """Raises an InputError of a setting, its value and what is allowed, unless `ok`."""
    if not ok:
        reject(name, value, allowed)


def reject(name: str, value: Any, allowed: str) -> NoReturn:
    """Raises the InputError of `require`."""
    raise InputError(f"it must be {allowed}", name, value)


def _is(value: Any, types: Any, kind: type) -> bool:
    """Whether a value is one of Python's types, or a NumPy scalar of a kind of numbers."""
    return isinstance(value, types) or (
        isinstance(value, kind) and type(value).__module__ == "numpy"
    )


def is_number(value: Any) -> bool:
    """Returns whether a value is a finite real number; a bool is not."""
    if isinstance(value, bool) or not _is(value, int | float, numbers.Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int too large for a float
        return False


def plain_number(value: Any) -> Any:
    """Returns a NumPy number as Python's, and any other value as it is."""
    return value.item() if _is(value, (), numbers.Number) else value


def conform_to_types(settings: Any) -> None:
    """Gives a dataclass that code constructs the types that `settings_reader` gives settings.

    NumPy numbers become Python's, and integers floats where declared: JAX would compute with an
    integer in int32, which overflows. Raises an InputError for a word that its Literal does not
    have.
    """
    for field in (x for x in dataclasses.fields(settings) if x.init):
        value = plain_number(getattr(settings, field.name))
        if get_origin(field.type) is Literal:
            require_choice(field.name, value, get_args(field.type))
        # A module may postpone its annotations, which are then text.
        if str(field.type) in ("<class 'float'>", "float", "float | str") and is_number(value):
            value = float(value)
        object.__setattr__(settings, field.name, value)  # it is frozen


def require_bool(name: str, value: Any) -> None:
    """Requires True or False; neither 0 nor NumPy's, which would be true for `is not False`."""
    require(isinstance(value, bool), name, value, "True or False")


def require_fraction(name: str, value: Any) -> None:
    """Requires a number from 0 to 1."""
    require(is_number(value) and 0 <= value <= 1, name, value, "a fraction from 0 to 1")


def require_positive(name: str, value: Any) -> None:
    """Requires a number above 0 in the range of normal float32 numbers."""
    require(is_number(value) and value > 0, name, value, "a number above 0")
    allowed = f"from {SMALLEST:g} to {LARGEST:g}, the range of float32"
    require(SMALLEST <= value <= LARGEST, name, value, allowed)


def require_decay(name: str, value: Any) -> None:
    """Requires a number from 0 to below 1, also after it is rounded to float32."""
    ok = is_number(value) and 0 <= value < _BELOW_ONE
    require(ok, name, value, "from 0 to below 1, in float32 too")


def require_inside(name: str, value: Any) -> None:
    """Requires a number above 0 and below 1 whose inverse is a float32 number too."""
    ok = is_number(value) and 2**-126 <= value < _BELOW_ONE
    require(ok, name, value, "above 0 and below 1, in float32 too")


def require_count(name: str, value: Any, least: int = 0) -> None:
    """Requires an integer from `least` to below 2^31."""
    whole = _is(value, int, numbers.Integral) and not isinstance(value, bool)
    ok = whole and least <= value < LARGEST_COUNT
    require(ok, name, value, f"a whole number from {least} to below 2^31")


def read_times(times: Any, least: int = 0) -> "np.ndarray":
    """Returns times as int64; raises a ValueError unless all are counts from `least`."""
    import numpy as np

    array = np.asarray(times)
    ok = array.dtype.kind in "iu" or not array.size
    require(ok, "time", times, f"a whole number from {least} to below 2^31")
    for time in (array.min(), array.max()) if array.size else ():
        require_count("time", int(time), least)
    return array.astype(np.int64)


def require_not_negative(name: str, value: Any) -> None:
    """Requires a number from 0 in the range of float32 numbers."""
    ok = is_number(value) and 0 <= value <= LARGEST
    require(ok, name, value, "a number from 0, in the range of float32")


def require_directory(name: str, value: Any) -> None:
    """Requires a path, or its text, that can be a directory's; it need not exist."""
    is_path = isinstance(value, str) or hasattr(value, "parents")  # in a bucket it is no Path
    text = str(value) if is_path else ""
    ok = text.strip() and text.isprintable() and not text.startswith("~")
    require(ok, name, value, "a directory, in printable characters and with ~ written out")


def require_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Requires one of the choices."""
    ok = any(isinstance(value, type(x)) and value == x for x in choices)
    require(ok, name, value, "one of " + ", ".join(map(str, choices)))
