"""What the time of a start goes into, by a clock that is set by hand."""

import time

import jax
import pytest

from anytime_jax.training.stopwatch import Stopwatch


@pytest.fixture(name="wait")
def wait_fixture(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def wait(seconds):
        now[0] += seconds

    return wait


def compile_for(seconds, wait):
    wait(seconds)
    jax.monitoring.record_event_duration_secs(
        "/jax/core/compile/backend_compile_duration", seconds, fun_name="f"
    )


def test_each_second_counts_once(wait):
    watch = Stopwatch()
    wait(1)
    with watch.spent("evaluation"):
        wait(2)
        compile_for(4, wait)
        with watch.spent("saving"):
            wait(8)
        wait(16)
    with watch.spent("compiling"):
        wait(32)
        compile_for(64, wait)
    compile_for(128, wait)
    wait(256)
    jax.monitoring.record_event_duration_secs("/jax/core/compile/jaxpr_trace_duration", 0.5)
    expected = {"updates": 257, "evaluation": 18, "saving": 8, "compiling": 228}
    assert watch.seconds() == expected
    watch.close()
    compile_for(1, wait)
    assert watch.seconds() == expected | {"updates": 258}


def test_block_that_raises_counts(wait):
    def fail(seconds):
        wait(seconds)
        raise ZeroDivisionError

    watch = Stopwatch()
    with pytest.raises(ZeroDivisionError), watch.spent("saving"):
        compile_for(2, fail)
    wait(1)
    assert watch.seconds() == {"updates": 1, "saving": 2}
    watch.close()
