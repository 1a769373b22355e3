"""Exit status of a command, and its errors as one line each."""

import os
import sys
import traceback
from collections.abc import Callable

from anytime_jax.commands import interrupts, standard_streams
from anytime_jax.errors import BucketError, InputError, ProcessLostError, RunError
from anytime_jax.formatting import printable
from anytime_jax.storage.failures import is_temporary, storage_errors

TEXT = (
    "exit status: 0 done, or a training saved after a signal; 1 failed; 2 bad input;\n"
    "75 another process of the run was lost, a bucket is out of reach, or a training was stuck;\n"
    "130 interrupted; 141 output closed early"
)
_MAX_MESSAGE = 580  # characters of a message


def run(work: Callable[[], int], debug: bool = False) -> int:
    """Calls `work` and returns its exit status; prints an expected error, a line for each problem.

    The status is 2 for an InputError, 75 for a ProcessLostError or BucketError, 130 for Ctrl-C,
    141, without a message, if the reader of the output has gone (as with `| head`), and 1 for any
    other error. An error that nothing here expects, such as one of a class of the user's own, is
    printed with its traceback, and so is every error if `debug` is true.
    """
    try:
        status = work()
        if sys.stdout is not None:
            sys.stdout.flush()  # a failure to flush is reported here
        return status
    except KeyboardInterrupt:
        standard_streams.print_error("\ninterrupted")
        return interrupts.INTERRUPTED
    except Exception as error:
        if isinstance(error, BrokenPipeError) and standard_streams.discard_closed():
            return standard_streams.BROKEN_PIPE
        is_expected = isinstance(error, (InputError, RunError, *storage_errors()))
        if debug or not is_expected:
            lines = "".join(traceback.format_exception(error)).rstrip().split("\n")
            standard_streams.print_error("\n".join(map(printable, lines)))
        for one in getattr(error, "errors", [error]) if is_expected else ():
            standard_streams.print_error(f"error: {_one_line(str(one))}")
        if isinstance(error, (ProcessLostError, BucketError)) or is_temporary(error):
            return os.EX_TEMPFAIL
        return 2 if isinstance(error, InputError) else 1
    finally:
        standard_streams.flush()


def _one_line(text: str) -> str:
    """Returns a message as one printable line, shortened in the middle of a long one."""
    text = printable(" ".join(text.split()))
    return text if len(text) < _MAX_MESSAGE else f"{text[: _MAX_MESSAGE - 100]} ... {text[-90:]}"
