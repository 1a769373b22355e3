"""Sweeps: step sizes to try, lengths to report, the best of a sweep, and several sweeps at once."""

import concurrent.futures
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from anytime_jax.checks import require
from anytime_jax.theory.risk import Risks

T = TypeVar("T")
Report = Callable[[float], None]

# Exponents of the decay of horizon-free schedules, by name. Update t uses count t - 1, so that
# `Power(peak, gamma)`, whose alpha is 1, is peak / t^gamma.
GAMMAS: Mapping[str, float] = {"constant": 0.0, "inverse_sqrt": 0.5}


def lengths(steps: int, through: int, per_octave: float = 2.0) -> list[int]:
    """Returns numbers of updates in geometric order that end at `steps` and pass `through`.

    Args:
      steps: the last one.
      through: one in between, 1 or more.
      per_octave: how many there are for each doubling, about.
    """
    ok = 1 <= through <= steps
    require(ok, "through", through, f"a number of updates from 1 to {steps}")
    above = max(1, int(per_octave * np.log2(steps / through)))
    later = through * (steps / through) ** (np.arange(above) / above)
    ratio = max(2 ** (1 / per_octave), (steps / through) ** (1 / above))
    earlier = through * ratio ** np.arange(-int(np.log(through) / np.log(ratio)), 0.0)
    return sorted({*(round(float(x)) for x in (*earlier, *later)), through, steps})


def best(risks: Risks, noise: float, label: str, at: int) -> int:
    """Returns which schedule has the lowest risk at a checkpoint.

    Args:
      risks: the risks of a sweep.
      noise: sigma^2.
      label: the average that is judged.
      at: the checkpoint.

    Raises:
      ValueError: if every run has diverged there.
    """
    found = risks.excess(noise, label)[:, list(risks.checkpoints).index(at)]
    if not np.isfinite(found).any():
        raise ValueError(f"every run of the sweep has diverged by update {at}: try smaller rates")
    return int(np.argmin(np.where(np.isfinite(found), found, np.inf)))


def in_parallel(
    tasks: Sequence[Callable[[Report], T]], sizes: Sequence[float], report: Report
) -> list[T]:
    """Does tasks on all cores, with one progress, so that Ctrl-C ends them all.

    Args:
      tasks: each is called with what it reports its own progress to, from 0 to 1.
      sizes: how much work each is.
      report: called in this thread with the part that is done.

    Returns:
      what the tasks return, in their order.
    """
    ended = threading.Event()
    done = np.zeros(len(tasks))

    def run(k: int) -> T:
        def told(part: float) -> None:
            done[k] = part
            if ended.is_set():
                raise KeyboardInterrupt

        return tasks[k](told)

    pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1)
    try:
        futures: list[concurrent.futures.Future[Any]] = [
            pool.submit(run, k) for k in range(len(tasks))
        ]
        waiting = set(futures)
        while waiting:
            finished, waiting = concurrent.futures.wait(
                waiting, 0.2, concurrent.futures.FIRST_COMPLETED
            )
            for future in finished:
                future.result()  # the first error ends the rest
            report(float(done @ np.asarray(sizes) / np.sum(sizes)))
        return [future.result() for future in futures]
    finally:
        ended.set()
        pool.shutdown(wait=True, cancel_futures=True)
