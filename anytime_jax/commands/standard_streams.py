"""Standard streams and end of a process: closed pipes, missing characters, logs of libraries."""

import atexit
import contextlib
import inspect
import io
import logging
import os
import select
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from anytime_jax.commands import interrupts

BROKEN_PIPE = 141  # 128 + SIGPIPE: what a shell reports for a program that a closed pipe ended


def configure() -> None:
    """Opens closed standard streams as `/dev/null`, and makes writes to the others safe.

    A file opened later would otherwise become standard output. Characters that the encoding of a
    stream lacks are escaped, and what cannot be written to standard error is dropped.
    """
    # Registered first, this runs last at exit; after that, Python no longer handles signals.
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    sys.unraisablehook = _handle_unraisable
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(descriptor)
        except OSError:
            _discard(descriptor)
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if sys.stderr is sys.__stderr__ and isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = _lossy(sys.stderr)


def leave_out_raised_errors() -> None:
    """Leaves out what libraries print about errors that they also raise, which a command reports.

    Orbax logs the tracebacks of its threads, and abandons reads when one of them fails; gcsfs and
    fsspec log every request that fails. tensorboardX warns of every value that is not finite.
    """
    logging.getLogger("absl").addFilter(lambda record: not _is_of_orbax(record))
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    for name in ("gcsfs", "fsspec", "tensorboardX"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _is_of_orbax(record: logging.LogRecord) -> bool:
    """Whether a record has an error that was caught in Orbax.

    The path of the record itself is absl's, if the logger was made before absl was imported.
    """
    traceback = record.exc_info and record.exc_info[2]
    return bool(traceback) and "orbax" in Path(traceback.tb_frame.f_code.co_filename).parts


@contextlib.contextmanager
def lossy_stdout() -> Iterator[None]:
    """Drops what cannot be written to standard output, such as to a terminal that was closed."""
    stdout = sys.stdout
    if stdout is not sys.__stdout__ or not isinstance(stdout, io.TextIOWrapper):
        yield  # standard output was replaced
        return
    flush()
    sys.stdout = _lossy(stdout)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stdout = stdout


def _lossy(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    """Returns a stream to the same file that drops what it cannot write."""
    buffer = io.BufferedWriter(_LossyFile(stream.fileno(), "w", closefd=False))
    return io.TextIOWrapper(buffer, stream.encoding, "backslashreplace", line_buffering=True)


class _LossyFile(io.FileIO):
    """File that drops what it cannot write."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def print_error(line: str) -> None:
    """Prints a line to standard error, unless that is closed."""
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def discard_closed() -> bool:
    """Discards further output if its reader has gone, as with `| head`; returns whether it has."""
    closed = [descriptor for descriptor in (1, 2) if _has_no_reader(descriptor)]
    for descriptor in closed:
        _discard(descriptor)
    return bool(closed)


def flush() -> None:
    """Writes what is buffered, or discards it if it cannot be written."""
    for descriptor, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            if stream is not None:
                stream.flush()
        except OSError:  # the interpreter would try again at its end, and fail with status 120
            _discard(descriptor)


def exit_process(status: int) -> NoReturn:
    """Ends this process with an exit status; at once, without cleaning up, unless it is 0.

    Otherwise threads of Orbax and of the multi-host runtime may wait for minutes, threads of
    TensorStore and JAX may crash while the interpreter ends, and leftover objects print warnings.
    """
    flush()
    if status:
        os._exit(status)
    # The work is done: Ctrl-C ends what is left of this process, with its status.
    interrupts.on_interrupt(lambda number, frame: os._exit(status))
    sys.exit(status)


def _handle_unraisable(unraisable: Any) -> None:
    """Ends the process on a KeyboardInterrupt in a callback; Python would only report it."""
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        interrupts.end_interrupted()
    # Orbax raises the error of the first array that it cannot read, and abandons the reads of
    # others, whose coroutines raise theirs when they are garbage-collected. So does an event loop
    # for which no descriptor was left, after it has raised the error itself.
    is_loop = getattr(unraisable.object, "__qualname__", "") == "BaseEventLoop.__del__"
    if not (is_loop or inspect.iscoroutine(unraisable.object)):
        sys.__unraisablehook__(unraisable)


def _discard(descriptor: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, descriptor)  # children inherit the new descriptor
    if null != descriptor:
        os.close(null)


def _has_no_reader(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
