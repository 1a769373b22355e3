"""Exact risks of several sets of runs, computed in threads, with their joint progress."""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import NamedTuple

import numpy as np

from anytime_jax.schedules import Schedule
from anytime_lab.theory.batches import Batch
from anytime_lab.theory.problem import Problem
from anytime_lab.theory.risk import Risks, excess_risk
from anytime_lab.theory.tracked_averages import Average

Progress = Callable[[float], None]  # takes the fraction that is done


class RiskArguments(NamedTuple):
    """Arguments of `excess_risk`."""

    problem: Problem
    schedules: Sequence[Schedule]
    averages: Sequence[Average]
    checkpoints: Sequence[int]
    batches: Batch | Sequence[Batch] = 1
    power: int = 1


def compute_risks(arguments: Sequence[RiskArguments], progress: Progress) -> list[Risks]:
    """Returns `excess_risk` of each of the arguments, in order; an error or Ctrl-C ends them all.

    `progress` is called in this thread, several times a second.

    Examples:
      >>> problem = theory.Problem(a=1.5, b=3.0, dimension=1)
      >>> runs = [schedules.Power(0.5, gamma=0.0)]
      >>> arguments = [theory.parallel_risks.RiskArguments(problem, runs, [], [1, 2])]
      >>> (risks,) = theory.parallel_risks.compute_risks(arguments, lambda fraction: None)
      >>> risks.excess(noise=0.0, label="last")
      array([[0.375  , 0.28125]])
    """
    sizes = [len(x.schedules) * (1 + len(x.averages)) * x.checkpoints[-1] for x in arguments]
    done = np.zeros(len(arguments))
    stopped = threading.Event()

    def run(k: int) -> Risks:
        def report(fraction: float) -> None:
            done[k] = fraction
            if stopped.is_set():
                raise KeyboardInterrupt

        return excess_risk(**arguments[k]._asdict(), progress=report)

    pool = futures.ThreadPoolExecutor(os.cpu_count() or 1)
    try:
        results = [pool.submit(run, k) for k in range(len(arguments))]
        pending = set(results)
        while pending:
            finished, pending = futures.wait(pending, 0.2, futures.FIRST_COMPLETED)
            for result in finished:
                result.result()  # the first error ends the rest
            progress(float(done @ sizes / np.sum(sizes)))
        return [result.result() for result in results]
    finally:
        stopped.set()
        pool.shutdown(wait=True, cancel_futures=True)
