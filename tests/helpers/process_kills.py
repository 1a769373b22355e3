"""Kill of a process at a chosen moment of its run: it kills or stops itself there.

A configuration file calls `install`. The variable KILL_AT of a process is empty, or has four words:
MODULE:FUNCTION, the number of calls to skip, "before", "during" or "after" the call, and a signal.
"""

import functools
import importlib
import itertools
import os
import signal
import threading


def install() -> None:
    """Wraps the function that KILL_AT names."""
    if not os.environ.get("KILL_AT"):
        return
    name, skip, when, number = os.environ["KILL_AT"].split()
    module, _, path = name.partition(":")
    *owners, attribute = path.split(".")
    owner = functools.reduce(getattr, owners, importlib.import_module(module))
    function = getattr(owner, attribute)
    calls = itertools.count()

    def lose() -> None:
        os.kill(os.getpid(), getattr(signal, number))

    @functools.wraps(function)
    def wrapped(*arguments, **keywords):
        is_moment = next(calls) == int(skip)
        if is_moment and when == "before":
            lose()
        if is_moment and when == "during":
            threading.Timer(0.02, lose).start()
        result = function(*arguments, **keywords)
        if is_moment and when == "after":
            lose()
        return result

    setattr(owner, attribute, wrapped)
