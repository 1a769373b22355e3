"""The processes of a run, one a host: how they find each other, agree, and end together.

JAX's distributed runtime does the work. It watches over every process: when one is lost, the others
are ended by it within a minute, with a message, rather than wait for ever; and it carries a SIGTERM
that any of them gets to all, so that all save after the same update.
"""

import contextlib
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from anytime_jax.errors import InputError

# A process that has not been heard of for so long is lost.
_HEARTBEAT_SECONDS = 30
_START_SECONDS = 300
_LONGEST_MS = 7 * 24 * 3600 * 1000
_meetings = itertools.count()  # a barrier has a name of its own
_SHARED_SECONDS = 60  # until a shared file system shows what another host has written


def start(
    coordinator: str | None, processes: int | None, process: int | None, cluster: bool
) -> None:
    """Joins the processes of a run; must come before anything that looks for devices.

    Args:
      coordinator: address `HOST:PORT` of process 0, where it listens; None to stay alone or to be
        told by the cluster.
      processes: how many there are.
      process: number of this one, from 0.
      cluster: find the three in what SLURM, Open MPI, a TPU slice or GKE say.

    Raises:
      InputError: if they do not go together, or nothing tells them, or nobody answers.
    """
    given = {"coordinator": coordinator, "processes": processes, "process": process}
    missing = [f"--{name}" for name, value in given.items() if value is None]
    if len(missing) == 3 and not cluster:
        return
    if cluster and len(missing) < 3:
        raise InputError("--cluster finds --coordinator, --processes and --process: leave them out")
    if not cluster:
        if missing:
            told = ", ".join(f"--{name}" for name in given)
            raise InputError(f"{' and '.join(missing)} missing: give all of {told}, or --cluster")
        _check(str(coordinator), int(processes or 0), int(process or 0))
    try:
        jax.distributed.initialize(
            coordinator,
            processes,
            process,
            cluster_detection_method=None if cluster else "deactivate",
            initialization_timeout=_START_SECONDS,
            heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
        )
    except (ValueError, RuntimeError, KeyError) as error:
        what = "--cluster: " if cluster else f"--coordinator={coordinator}: "
        raise InputError(
            f"{what}the processes did not find each other ({' '.join(str(error).split())[:200]}): "
            "start all of them within five minutes, with the same address and number"
        ) from error


def _check(coordinator: str, processes: int, process: int) -> None:
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal():
        raise InputError(
            f"--coordinator={coordinator} is no address: give HOST:PORT of process 0, such as "
            "node1:1234"
        )
    if processes < 1 or not 0 <= process < processes:
        raise InputError(
            f"--process={process} of --processes={processes}: give 1 process or more, and numbers "
            "from 0 to below that"
        )


def count() -> int:
    """Returns how many processes there are."""
    return jax.process_count()


def is_alone() -> bool:
    """Whether this process has the run to itself; asks no device."""
    return not jax.distributed.is_initialized() or count() == 1


def is_first() -> bool:
    """Whether this is the process that speaks and writes for all."""
    return jax.process_index() == 0


def agree(value: int) -> int:
    """Returns the first process's value, in every process.

    What is read from a shared disk may differ for a moment from host to host.

    Args:
      value: a whole number below 2^31 in size.
    """
    if is_alone():
        return value
    wait()
    return int(multihost_utils.broadcast_one_to_all(np.int32(value)))


def wait() -> None:
    """Returns when every process has come here, however long the others take."""
    if not is_alone():
        # Of the runtime and not of the devices, whose exchanges give up on a slow process.
        key = f"anytime_jax/{next(_meetings)}"
        ocp.multihost.get_barrier_sync_fn()(key=key, timeout_ms=_LONGEST_MS)


@contextlib.contextmanager
def together(what: str = "begin", kind: type[Exception] = InputError) -> Iterator[None]:
    """Ends in every process what is done inside, if it cannot be done in any; all must enter it.

    Args:
      what: is done inside, for the message in the others.
      kind: of the error that the others raise.

    Raises:
      Exception: what is wrong here, as it is; or one of that kind if something is wrong elsewhere.
    """
    wrong: Exception | None = None
    try:
        yield
    except Exception as error:
        wrong = error
    if not is_alone():
        wait()
        fine = multihost_utils.process_allgather(np.int32(wrong is None))
        bad = [str(i) for i, x in enumerate(fine) if not x]
        if bad and wrong is None:
            told = f"process {' and '.join(bad)} of {count()} could not {what}"
            raise kind(f"{told}: its own output says why")
    if wrong is not None:
        raise wrong


def see(is_there: Callable[[], bool]) -> bool:
    """Whether something that another process has written is seen here too, soon."""
    until = time.monotonic() + _SHARED_SECONDS
    while not (there := is_there()) and time.monotonic() < until:
        time.sleep(0.5)
    return there


class Preempted:
    """Whether any process was told to save and end; all learn of it after the same update."""

    def __init__(self) -> None:
        """Lets Ctrl-C mean what SIGTERM does, which JAX watches for from `start` on."""
        self._calls = 0
        self._is_told = False
        signal.signal(signal.SIGINT, lambda number, frame: os.kill(os.getpid(), signal.SIGTERM))

    def __call__(self) -> bool:
        """Must be called as often in every process."""
        if not self._is_told:
            self._calls += 1
            self._is_told = multihost_utils.reached_preemption_sync_point(self._calls)
        return self._is_told


def leave(status: int) -> int:
    """Ends this process at once if others may wait for it; returns the status if there are none."""
    if status and not is_alone():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # JAX would wait for the others, and they for this one
    return status
