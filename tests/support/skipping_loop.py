"""An event loop whose time passes only while everything waits."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any


class SkippingSelector(selectors.SelectSelector):
    """A selector that does not wait: it adds the time to `now`."""

    now = 0.0
    waits = 0

    def select(self, timeout: float | None = None) -> list[Any]:
        """Return what is ready."""
        if timeout:
            self.now += timeout
            self.waits += 1
        return super().select(0)


class SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop with the time of its selector."""

    def __init__(self, selector: SkippingSelector) -> None:
        super().__init__(selector)
        self._skipping = selector

    def time(self) -> float:
        """Return the selector's time."""
        return self._skipping.now


def run_skipping(scenario: Callable[[Callable[[], float]], Coroutine[Any, Any, None]]) -> None:
    """Run a scenario, given what returns the time, to its end."""
    loop = SkippingLoop(SkippingSelector())
    try:
        loop.run_until_complete(scenario(loop.time))
    finally:
        loop.close()
