"""Event loop for Orbax's saves, which may end before the writes that they started.

Orbax runs a save in an event loop of its own. If one write fails, or Ctrl-C ends the save, Orbax
closes the loop while threads of TensorStore still write other arrays. Each of these threads then
calls the closed loop, and a standard asyncio loop would print a traceback.
"""

import asyncio
from collections.abc import Callable
from typing import Any


class EventLoop(asyncio.SelectorEventLoop):
    """Event loop that drops the callbacks of other threads once it is closed."""

    def call_soon_threadsafe(self, callback: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Calls `callback` in the loop; does nothing if the loop is closed."""
        try:
            return super().call_soon_threadsafe(callback, *args, **options)
        except RuntimeError:
            if not self.is_closed():
                raise


class EventLoopPolicy(asyncio.DefaultEventLoopPolicy):
    """Event loop policy whose loops are `EventLoop`s."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        """Returns a new event loop."""
        return EventLoop()
