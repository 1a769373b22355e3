"""Processes of a multi-host run: rendezvous, barriers, shared failure and preemption.

JAX's distributed runtime watches every process. When one is lost, it ends the others within a
minute, as `lost_process_exit` describes, instead of letting them wait forever. It forwards a
SIGTERM from one process to all, so that all save after the same update.
"""

import contextlib
import itertools
import re
import time
from collections.abc import Callable, Iterator

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from anytime_jax.distributed import lost_process_exit
from anytime_jax.errors import InputError

_HEARTBEAT_SECONDS = 30  # a process silent for this long counts as lost
_RENDEZVOUS_SECONDS = 300
_LAST_PORT = 2**16 - 1
_BARRIER_MILLISECONDS = 7 * 24 * 3600 * 1000
_VISIBILITY_SECONDS = 60  # how long a shared file system may take to show what another host wrote
# Starts of runtime errors that another process may have caused. RESOURCE_EXHAUSTED (out of memory),
# INVALID_ARGUMENT, NOT_FOUND and UNIMPLEMENTED concern this process alone.
_STATUS_OF_LOSS = re.compile(
    "(ABORTED|CANCELLED|DEADLINE_EXCEEDED|FAILED_PRECONDITION|INTERNAL|UNAVAILABLE|UNKNOWN): "
)
_barrier_ids = itertools.count()  # every barrier needs a name of its own


def initialize(
    coordinator: str | None,
    processes: int | None,
    process: int | None,
    cluster: bool,
    describe_checkpoint: Callable[[], str] = str,
) -> None:
    """Joins the processes of a run and opens their devices; must be called before anything does.

    `coordinator` is the address `HOST:PORT` on which process 0 listens, `processes` the number of
    processes and `process` the index of this one, from 0. With `cluster`, these three are detected
    from Slurm, Open MPI, a TPU slice or GKE. Without any of the four, this is a single process. The
    text that `describe_checkpoint` returns is part of the message with which this process ends when
    another one is lost.

    Raises an InputError if the arguments contradict each other or this process cannot connect, and
    a ProcessLostError if another one is lost meanwhile.
    """
    options = {"--coordinator": coordinator, "--processes": processes, "--process": process}
    missing = [name for name, value in options.items() if value is None]
    if cluster and len(missing) < 3:
        raise InputError(f"--cluster sets {', '.join(options)} itself: leave them out")
    if not cluster:
        if len(missing) == 3:
            return
        if missing:
            raise InputError(
                f"without --cluster, give all of {', '.join(options)}: no {' and '.join(missing)}"
            )
        _check(str(coordinator), int(processes or 0), int(process or 0))
    option = "--cluster" if cluster else f"--coordinator={coordinator}"
    advice = "start all of them within five minutes, with the same address and number of processes"
    lost_process_exit.set_message(
        lambda cause: f"{option}: the processes did not connect ({cause}): {advice}"
    )
    lost_process_exit.handle_abort()
    try:
        jax.distributed.initialize(
            coordinator,
            processes,
            process,
            cluster_detection_method=None if cluster else "deactivate",
            initialization_timeout=_RENDEZVOUS_SECONDS,
            heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
        )
    except (ValueError, KeyError) as error:  # of the variables, before any connection
        what = "no Slurm step, Open MPI job, TPU slice or GKE job found"
        raise InputError(f"{option}: {what} in this process's environment ({error})") from error
    except RuntimeError as error:
        cause = " ".join(str(error).split())[:200]
        raise InputError(f"{option}: the processes did not connect ({cause}): {advice}") from error
    lost_process_exit.set_message(
        lambda cause: (
            f"another process of this run was lost or failed ({cause}); {describe_checkpoint()}. "
            "Start all processes again with the same command, which resumes the run"
        )
    )
    _open_devices()
    lost_process_exit.handle_abort()  # set again, as the TPU runtime may have set its own handler


def _open_devices() -> None:
    try:
        jax.devices()  # known once all processes have exchanged theirs
    except RuntimeError as error:
        if not any(status in str(error) for status in ("UNAVAILABLE", "DEADLINE_EXCEEDED")):
            raise
        raise lost_process_exit.make_error(error) from error


def _check(coordinator: str, processes: int, process: int) -> None:
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= _LAST_PORT:
        raise InputError(
            f"--coordinator={coordinator} is not an address: set HOST:PORT of process 0, such as "
            f"node1:1234, with a port from 1 to {_LAST_PORT}"
        )
    if processes < 1 or not 0 <= process < processes:
        raise InputError(
            f"--process={process} is not below --processes={processes}: the first process is 0"
        )


def is_single() -> bool:
    """Returns whether this is the only process of the run; does not initialize devices."""
    return not jax.distributed.is_initialized() or jax.process_count() == 1


def is_sign_of_loss(error: Exception) -> bool:
    """Returns whether an error means that another process was lost or failed.

    A collective raises a JaxRuntimeError, or a ValueError when its result is copied to the host.
    """
    return not is_single() and _STATUS_OF_LOSS.match(str(error)) is not None


def is_primary() -> bool:
    """Returns whether this is process 0, which prints and writes for all."""
    return jax.process_index() == 0


def broadcast(value: int) -> int:
    """Returns process 0's value, an int32, in every process.

    Use it for values read from a shared file system, which hosts may see change at different times.
    """
    if is_single():
        return value
    barrier()
    return int(multihost_utils.broadcast_one_to_all(np.int32(value)))


def broadcast_text(text: str) -> str:
    """Returns process 0's text in every process."""
    if is_single():
        return text
    content = np.frombuffer(text.encode("utf-8"), np.uint8)
    size = broadcast(len(content))
    sent = multihost_utils.broadcast_one_to_all(np.resize(content, size))
    return np.asarray(sent, np.uint8).tobytes().decode("utf-8")


def gather(array: jax.Array) -> np.ndarray:
    """Returns the whole of an array of all processes, which each must call this for."""
    if array.is_fully_addressable:
        return np.asarray(array)
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def barrier() -> None:
    """Waits, without a time limit, until every process has called this."""
    if not is_single():
        # The runtime's barrier waits without limit; device collectives give up on a slow process.
        key = f"anytime_jax/{next(_barrier_ids)}"
        ocp.multihost.get_barrier_sync_fn()(key=key, timeout_ms=_BARRIER_MILLISECONDS)


@contextlib.contextmanager
def fail_together(
    action: str = "start", error_type: type[Exception] = InputError
) -> Iterator[None]:
    """Raises in every process if the body raises in any; all processes must enter it.

    A process whose body failed raises its own error, the others an `error_type` that says which
    processes could not do `action`.
    """
    error: Exception | None = None
    try:
        yield
    except Exception as caught:
        error = caught
    if not is_single():
        barrier()
        succeeded = multihost_utils.process_allgather(np.int32(error is None))
        failed = [str(i) for i, success in enumerate(succeeded) if not success]
        if failed and error is None:
            raise error_type(
                f"process {' and '.join(failed)} of {len(succeeded)} could not {action}: see its "
                "output"
            )
    if error is not None:
        raise error


def wait_until_visible(is_visible: Callable[[], bool]) -> bool:
    """Waits up to a minute for a file that another process wrote; returns whether it is visible."""
    deadline = time.monotonic() + _VISIBILITY_SECONDS
    while not (visible := is_visible()) and time.monotonic() < deadline:
        time.sleep(0.5)
    return visible


class PreemptionSignal:
    """Whether any process received SIGTERM; true in all after the same number of calls."""

    def __init__(self) -> None:
        self._calls = 0
        self._received = False

    def __call__(self) -> bool:
        """Returns the flag; every process must call this equally often."""
        if not self._received:
            self._calls += 1
            self._received = multihost_utils.reached_preemption_sync_point(self._calls)
        return self._received
