"""Exceptions that a command reports in one line; any other one has its traceback printed."""

import contextlib
from collections.abc import Iterator


class InputError(ValueError):
    """Bad input: a command prints the message and exits with status 2.

    The message is one line: the value, what is allowed, what to do. It is raised before anything
    expensive, and leaves everything on disk as it was.
    """


class InUseError(InputError):
    """Another process has locked what is named."""


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
def input_errors() -> Iterator[None]:
    """Turns a ValueError of the block, which checks values, into an InputError."""
    try:
        yield
    except ValueError as error:
        raise InputError(str(error)) from error


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
