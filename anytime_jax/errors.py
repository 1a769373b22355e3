"""Exceptions that a command reports in a line; any other one has its traceback printed."""

import contextlib
import difflib
import traceback
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

_NOT_GIVEN = object()
_LONGEST = 120  # characters of a value in a message


def format_value(value: Any) -> str:
    """Formats a value for a message: its `repr`, on one line and cut to 120 characters."""
    try:
        text = " ".join(repr(value).split())
    # __repr__ may raise anything, and an int may have more digits than Python converts.
    except Exception:
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 20]} ... {text[-15:]}"


def nearest(name: Any, allowed: Collection[str]) -> str:
    """Returns the end of a message about an unknown name: the nearest allowed one, if one is near.

    Examples:
      >>> nearest("adam", ["adamw", "muon"]), nearest("sgd", ["adamw", "muon"])
      ("; did you mean 'adamw'?", '')
    """
    near = difflib.get_close_matches(str(name), allowed, 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def describe_failure(error: BaseException, is_own: Callable[[types.FrameType], bool]) -> str:
    """Returns what code raised, after the last line of its own frames that the error passed."""
    frames = [x for x in traceback.walk_tb(error.__traceback__) if is_own(x[0])]
    place = ""
    if frames:
        code, line = frames[-1][0].f_code, frames[-1][1]
        place = f"{Path(code.co_filename).name}, line {line}, in {code.co_name}: "
    return f"{place}{type(error).__name__}: {error}"


class InputError(ValueError):
    """Bad input: a command prints a line for each of its `errors`, and exits with status 2.

    It is raised before anything expensive, and before a run or a dataset is changed.

    Attributes:
      reason: what is wrong, or what is allowed; and what to do.
      setting: the setting, option or argument that is wrong, by its dotted name; "" for none.
      value: its value, if that is what is wrong.
    """

    def __init__(self, reason: str, setting: str = "", value: Any = _NOT_GIVEN):
        super().__init__(reason)
        self.reason, self.setting = reason, setting
        self._value = () if value is _NOT_GIVEN else (value,)

    @property
    def value(self) -> Any:
        """The value; None if none is given."""
        return self._value[0] if self._value else None

    def __str__(self) -> str:
        values = [self.setting, *map(format_value, self._value)]
        return f"{' = '.join(values)}: {self.reason}" if self.setting else self.reason

    @property
    def errors(self) -> tuple["InputError", ...]:
        """What is wrong, each on its own."""
        return (self,)

    def move_into(self, group: str) -> None:
        """Makes the setting one of a group; the group itself, for an error without a setting."""
        for error in self.errors:
            error.setting = f"{group}.{error.setting}" if error.setting else group


class _InputErrors(InputError):
    """Several InputErrors."""

    def __init__(self, errors: Sequence[InputError]):
        super().__init__("several settings are wrong")
        self.args = (errors,)  # of which another process makes a copy

    @property
    def errors(self) -> tuple[InputError, ...]:
        """What is wrong, each on its own."""
        return tuple(one for error in self.args[0] for one in error.errors)

    def __str__(self) -> str:
        return "\n".join(map(str, self.errors))


def raise_all(errors: Sequence[InputError]) -> None:
    """Raises an InputError of all errors; nothing, if there are none."""
    if errors:
        raise errors[0] if len(errors) == 1 else _InputErrors(errors)


class InUseError(InputError):
    """Another process has locked what is named.

    Attributes:
      holder: the process that has it.
    """

    def __init__(self, name: str, holder: str):
        super().__init__(f"{name} is in use ({holder}): wait for that process, or stop it")
        self.args = self.name, self.holder = name, holder


class RunError(RuntimeError):
    """A failure of a run: a command prints the message and exits with status 1.

    The message says what happened; if a training ends by it, also the last good checkpoint.
    """


class ProcessLostError(RunError):
    """Another process of the run was lost, so this one ends: status 75 (`os.EX_TEMPFAIL`).

    The message names the last good checkpoint. The scripts of `launch/` start all processes again.
    """


class BucketError(RunError):
    """A bucket is out of reach: the process ends with status 75 (`os.EX_TEMPFAIL`)."""


@contextlib.contextmanager
def within(name: str) -> Iterator[None]:
    """Names what the ValueErrors of a block are about: a setting, or a group of settings.

    A setting that an InputError names becomes one of the group; any other ValueError becomes an
    InputError that names the setting or the group itself.
    """
    try:
        yield
    except InputError as error:
        error.move_into(name)
        raise
    except ValueError as error:
        raise InputError(str(error), name) from error


@contextlib.contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """If an import in the block fails, raises an InputError that says which extra to install."""
    try:
        yield
    except ImportError as error:
        raise InputError(
            f"a package cannot be imported ({error}); install the packages of the extra with "
            f"pip install 'anytime_jax[{extra}]', or in the repository pip install -e '.[{extra}]'"
        ) from error
