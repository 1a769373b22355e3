"""Train step that a test puts in place of a compiled one."""

import types
from collections.abc import Callable
from typing import Any


class WrappedStep:
    """A function `(state, tokens, update_averages)` that can be lowered and compiled like a jit."""

    def __init__(self, function: Callable[..., Any], update_averages: bool = True):
        self._function, self._update_averages = function, update_averages

    def __call__(self, state: Any, tokens: Any, update_averages: bool | None = None) -> Any:
        chosen = self._update_averages if update_averages is None else update_averages
        return self._function(state, tokens, chosen)

    def lower(self, state: Any, tokens: Any, update_averages: bool) -> "WrappedStep":
        return WrappedStep(self._function, update_averages)

    def compile(self) -> "WrappedStep":
        return self

    def memory_analysis(self) -> Any:
        return types.SimpleNamespace(temp_size_in_bytes=0, argument_size_in_bytes=0)
