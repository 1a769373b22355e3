"""Event loops that outlive their closing."""

import asyncio

import pytest

from anytime_jax.checkpoints.orbax_event_loop import EventLoopPolicy


def test_closed_loop_drops_callbacks_of_other_threads():
    loop, calls = EventLoopPolicy().new_event_loop(), []
    loop.call_soon_threadsafe(calls.append, 1)
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert loop.call_soon_threadsafe(calls.append, 2) is None
    assert calls == [1]
    with pytest.raises(RuntimeError, match="closed"):
        loop.call_soon(calls.append, 3)
