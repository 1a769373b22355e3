"""Faults of a process, applied in it before its command runs."""

import importlib
import os
import resource
import sys
import time

_ENCODINGS = {"ascii": "ascii", "latin": "latin-1"}


def apply(spec: dict) -> None:
    """Applies faults: "environment", "limits", "clock", "after", "umask", "stdout", "stderr".

    With "python", a folder and a seed, it makes odd calls of the Python API in place of a command.
    With "wandb", the client of Weights & Biases is `wandb_stub`.
    """
    if "wandb" in spec:
        sys.modules["wandb"] = importlib.import_module("wandb_stub")
    for name, value in spec.get("environment", {}).items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    if "umask" in spec:
        os.umask(spec["umask"])
    _set_clock(spec.get("clock"), spec.get("after", 0.0))
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        _change_stream(descriptor, name, spec.get(name))
    for name, value in spec.get("limits", {}).items():
        resource.setrlimit(getattr(resource, name), (value, value))
    if "python" in spec:
        import odd_calls

        odd_calls.make(*spec["python"])
        sys.exit(0)


def _set_clock(kind: str | None, after: float) -> None:
    real, start = time.time, time.time()
    still = {name: getattr(time, name)() for name in ("monotonic", "perf_counter")}
    days = {"forward": 400, "back": -400}.get(kind or "", 0)
    if days:
        time.time = lambda: real() + days * 86_400 * (real() - start > after)
    elif kind == "frozen":
        time.time = lambda: start
        time.perf_counter = lambda: still["perf_counter"]


def _change_stream(descriptor: int, name: str, kind: str | None) -> None:
    if kind == "closed":
        os.close(descriptor)
    elif kind == "unread":
        reader, writer = os.pipe()
        os.close(reader)
        _replace(descriptor, name, writer)
    elif kind == "full":
        _replace(descriptor, name, os.open("/dev/full", os.O_WRONLY))
    elif kind in _ENCODINGS:
        _replace(descriptor, name, os.dup(descriptor), _ENCODINGS[kind])


def _replace(descriptor: int, name: str, other: int, encoding: str | None = None) -> None:
    """Replaces a standard stream as if the interpreter had been started with another file."""
    os.dup2(other, descriptor)
    os.close(other)
    stream = open(descriptor, "w", encoding=encoding, closefd=False)  # noqa: SIM115
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)
