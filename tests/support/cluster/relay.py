"""The proxy of `tiermesh chaos` for tests: on a thread of its own, with random delays and a gate."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import threading
from types import TracebackType

from cli.chaos.proxy import Line, Proxy, ProxyTarget
from tests.support.certificates import LOOPBACK_HOSTS

GATED_BYTES = 64 * 1024
"""Bytes that pass a closed gate on each connection: enough for orders, too few for weights."""

_HOSTS = range(10, LOOPBACK_HOSTS + 1)
"""Last numbers of addresses. Lower ones are for hosts of `tiermesh launch` and proxies of `tiermesh chaos`."""

_numbers = itertools.count()


def choose_host() -> str:
    """Return the loopback address of the next relay or proxy.

    Parallel pytest processes have different ones. A relay listens on the port number that its target has drawn, which
    another listener on the same address may have.
    """
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    own = _HOSTS[process::processes] or _HOSTS
    return f"127.0.0.{own[next(_numbers) % len(own)]}"


class _Jittered(Line):
    """Line with a random delay before each piece.

    Attributes:
        trickles: whether each connection gets a byte a second.
    """

    def __init__(self, draw: random.Random | None, most_delay_seconds: float) -> None:
        super().__init__()
        self.trickles = False
        self._random = draw
        self._most_delay_seconds = most_delay_seconds

    @property
    def piece_bytes(self) -> int:
        return 1 if self.trickles else super().piece_bytes

    async def admit(self, passed: int, count: int) -> None:
        if self.trickles:
            await asyncio.sleep(1.0)
        if self._random is not None:
            await asyncio.sleep(self._random.uniform(0, self._most_delay_seconds))
        await super().admit(passed, count)


class _Gated(_Jittered):
    """Line that delays bytes after the first `GATED_BYTES` of a connection while the gate is closed."""

    def __init__(self, draw: random.Random | None, most_delay_seconds: float, *, closed: bool) -> None:
        super().__init__(draw, most_delay_seconds)
        self.gate = asyncio.Event()
        if not closed:
            self.gate.set()
        self._allowed_bytes = 0
        self._allowed_more = asyncio.Event()

    def allow(self, count: int) -> None:
        self._allowed_bytes += count
        self._allowed_more.set()

    async def admit(self, passed: int, count: int) -> None:
        if passed + count > GATED_BYTES:
            await self._pass_gate(count)
        await super().admit(passed, count)

    async def _pass_gate(self, count: int) -> None:
        while not self.gate.is_set() and self._allowed_bytes < count:
            self._allowed_more.clear()
            opened, allowed = (asyncio.ensure_future(each.wait()) for each in (self.gate, self._allowed_more))
            try:
                await asyncio.wait((opened, allowed), return_when=asyncio.FIRST_COMPLETED)
            finally:
                opened.cancel()
                allowed.cancel()
        self._allowed_bytes -= count


class Relay:
    """Proxy that forwards connections to `target`, from a loopback address of its own.

    Args:
        target: daemon to forward to. `aim` changes it for new connections.
        seed: seed of random delays before each piece, in both directions; None for no delays.
        most_delay_seconds: longest delay.
        gate_closed: whether bytes from the target wait, after the first `GATED_BYTES` of a connection, until
            `open_gate` or `let_through`.
    """

    def __init__(
        self,
        target: ProxyTarget,
        *,
        seed: int | None = None,
        most_delay_seconds: float = 0.004,
        gate_closed: bool = False,
    ) -> None:
        self.host = choose_host()
        draw = None if seed is None else random.Random(seed)
        self._back = _Gated(draw, most_delay_seconds, closed=gate_closed)
        self._there = _Jittered(draw, most_delay_seconds)
        self._proxy = Proxy(self.host, to_target=self._there, from_target=self._back)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"relay-{self.host}", daemon=True)
        self._thread.start()
        self.aim(target)

    def __enter__(self) -> Relay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def address(self) -> str:
        """`HOST:PORT` to which callers connect."""
        return self._proxy.address

    @property
    def tensor_port(self) -> int:
        """Port that forwards to the target's tensor port."""
        return self._proxy.tensor_port

    def aim(self, target: ProxyTarget) -> None:
        """Forward new connections to another target."""
        asyncio.run_coroutine_threadsafe(self._proxy.aim(target), self._loop).result(10)

    def open_gate(self) -> None:
        """Open the gate for good."""
        self._loop.call_soon_threadsafe(self._back.gate.set)

    def let_through(self, count: int) -> None:
        """Let about this many more bytes through the closed gate, over all connections."""
        self._loop.call_soon_threadsafe(self._back.allow, count)

    def trickle(self, *, there: bool, back: bool) -> None:
        """Choose in which directions each connection gets a byte a second, from the next piece on."""

        def choose() -> None:
            self._there.trickles, self._back.trickles = there, back

        self._loop.call_soon_threadsafe(choose)

    def cut(self) -> None:
        """Break all connections."""
        self._loop.call_soon_threadsafe(self._proxy.reset)

    def close(self) -> None:
        """Break all connections and accept no new ones."""
        asyncio.run_coroutine_threadsafe(self._proxy.close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
