"""Exceptions that a command reports in one line."""


class InputError(ValueError):
    """Bad input: a command prints the message and exits with status 2.

    The message is one line: the value, what is allowed, what to do. It is raised before anything
    expensive, and leaves everything on disk as it was.
    """


class RunError(RuntimeError):
    """A failure of a run: a command prints the message and exits with status 1.

    The message says what happened and names the last good checkpoint.
    """


class ProcessLostError(RunError):
    """The end of a process because another one of its run was lost: status 75 (`os.EX_TEMPFAIL`).

    The message names the last good checkpoint. The scripts of `launch/` start all processes again.
    """


class BucketError(RunError):
    """The end of a process because a bucket is out of reach: status 75 (`os.EX_TEMPFAIL`)."""
