"""Tasks in parallel."""

import time

import pytest

from anytime_jax.theory.thread_pool import run_in_parallel


def test_results_are_in_order_and_progress_reaches_one():
    fractions = []
    tasks = [lambda progress, k=k: (progress(1.0), k)[1] for k in range(3)]
    assert run_in_parallel(tasks, [1.0, 2.0, 3.0], fractions.append) == [0, 1, 2]
    assert fractions[-1] == 1


def test_first_error_ends_all_tasks():
    def forever(progress):
        while True:
            time.sleep(0.01)
            progress(0.5)

    def fail(progress):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run_in_parallel([forever, fail], [1.0, 1.0], lambda fraction: None)
