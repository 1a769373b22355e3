"""The two ways a run can end badly, each with its exit status."""


class InputError(ValueError):
    """Something the user gave cannot be used: the command line prints the message and exits 2.

    The message is one line that says what was given, what is allowed and what to do. It is raised
    before anything expensive has happened and leaves everything on disk as it was.
    """


class RunError(RuntimeError):
    """A run broke in flight: the command line prints the message and exits 1.

    The message says what happened and names the last good checkpoint to go on from.
    """
