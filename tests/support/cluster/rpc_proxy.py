"""A gRPC proxy that passes every call as raw messages, except for one fault that a test chooses.

It has no tensor port, so data streams use the main port, and all messages between roles pass through it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from cli.chaos.proxy import ProxyTarget
from tests.support.cluster.harness import Cluster
from tests.support.cluster.relay import choose_host

SLOW_SECONDS = 1.0
REORDER_SECONDS = 0.3
"""Time after which a reordered message is sent even without a next one, which may wait for it."""
OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.http2.max_ping_strikes", 0),  # without jobs, streams are idle but for keepalive
)
BREAKING = {
    "before": grpc.StatusCode.UNAVAILABLE,
    "midway": grpc.StatusCode.UNAVAILABLE,
    "after": grpc.StatusCode.UNAVAILABLE,
    "cancelled": grpc.StatusCode.CANCELLED,
}
"""Status with which each fault ends the call, for those faults that do."""


@dataclass
class Fault:
    """A fault that happens once.

    Attributes:
        method: path `/package.Service/Method`.
        direction: up (messages of the caller) or down (answers).
        kind: before, midway, after, cancelled, slow, stalled, duplicated, reordered, truncated or bit-flipped.
            What is stalled waits until its caller ends the call.
        passing: number of messages that pass before the fault.
        least_bytes: minimum size of messages that count; smaller ones pass.
    """

    method: str
    direction: str
    kind: str
    passing: int = 0
    least_bytes: int = 0


class Struck(Exception):
    """End of a call by the fault."""


class Over(Exception):
    """End of a call by the peer."""


class RpcProxy:
    """Proxy for `target`, with the interface of a `Relay`.

    Args:
        target: the daemon that calls are passed to.
        host: address of the proxy; empty for one of its own.
        port: its port; 0 for any free one.
    """

    _loop: asyncio.AbstractEventLoop | None = None  # one for all proxies, as grpc.aio needs
    _channel: Any

    def __init__(self, target: ProxyTarget, host: str = "", port: int = 0) -> None:
        self.host = host or choose_host()
        self.tensor_port = 0
        self.struck = threading.Event()
        self._fault: Fault | None = None
        self._refusing = ""  # method whose next call is refused
        self._calls: list[tuple[str, asyncio.Future[None]]] = []  # method, and future that breaks the call
        self.port = self._do(self._start(target.address, port))

    @classmethod
    def _do(cls, work: Any) -> Any:
        if cls._loop is None:
            cls._loop = asyncio.new_event_loop()
            threading.Thread(target=cls._loop.run_forever, name="rpc-proxies", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(work, cls._loop).result(20)

    @property
    def address(self) -> str:
        """`HOST:PORT` to which callers connect."""
        return f"{self.host}:{self.port}"

    def close(self) -> None:
        """Break all calls."""
        self._do(self._stop())

    def aim(self, target: ProxyTarget) -> None:
        """Forward later calls to another process."""
        self._do(self._aim(target.address))

    async def _aim(self, address: str) -> None:
        former = self._channel
        self._channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        await former.close()

    def strike(self, fault: Fault) -> None:
        """Inject this fault. `struck` is set once it has happened."""
        self.struck.clear()
        self._do(self._arm(fault))

    async def _arm(self, fault: Fault) -> None:
        self._fault = fault
        if fault.kind == "before":
            self._refusing = fault.method
            for method, broken in self._calls:
                if method == fault.method and not broken.done():
                    broken.set_exception(Struck("midway"))  # so that the caller calls again

    async def _start(self, address: str, wanted_port: int) -> int:
        self._channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        self._server = grpc.aio.server(options=OPTIONS)
        self._server.add_generic_rpc_handlers((_AnyMethod(self._serve),))
        port: int = self._server.add_insecure_port(f"{self.host}:{wanted_port}")
        await self._server.start()
        return port

    async def _stop(self) -> None:
        await self._server.stop(0)
        await self._channel.close()

    async def _serve(self, method: str, _: Any, context: Any) -> None:
        if self._refusing == method:
            self._refusing = ""
            self.struck.set()
            await context.abort(BREAKING["before"], "struck before")
        metadata = [pair for pair in context.invocation_metadata() if pair[0].startswith("tiermesh-")]
        call = self._channel.stream_stream(method)(metadata=metadata)
        broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._calls.append((method, broken))
        up = asyncio.ensure_future(self._up(method, call, context))
        down = asyncio.ensure_future(self._down(method, call, context))
        try:
            await asyncio.wait((up, down, broken), return_when=asyncio.FIRST_EXCEPTION)
            for task in (up, down, broken):
                if task.done() and isinstance(task.exception(), Struck):
                    kind = str(task.exception())
                    call.cancel()
                    await context.abort(BREAKING[kind], f"struck {kind}")
            code, details = await call.code(), await call.details()
            if code is not grpc.StatusCode.OK:
                # To the caller, a call that the proxy has cancelled is a broken connection.
                await context.abort(grpc.StatusCode.UNAVAILABLE if call.cancelled() else code, details or "")
        finally:
            self._calls.remove((method, broken))
            call.cancel()
            for task in (up, down, broken):
                task.cancel()
            await asyncio.gather(up, down, return_exceptions=True)

    async def _up(self, method: str, call: Any, context: Any) -> None:
        try:
            await self._pump(method, "up", context.read, call.write)
            await call.done_writing()
        except (grpc.RpcError, asyncio.InvalidStateError):
            await call.code()  # the call has ended, and the other direction reports why

    async def _down(self, method: str, call: Any, context: Any) -> None:
        await context.send_initial_metadata(await call.initial_metadata() or ())
        await self._pump(method, "down", call.read, context.write)
        raise Over  # even if the caller would send more

    async def _pump(
        self, method: str, direction: str, read: Callable[[], Any], write: Callable[[bytes], Awaitable[None]]
    ) -> None:
        while isinstance(message := await read(), bytes):
            kind = self._strikes(method, direction, message)
            if kind in ("midway", "cancelled"):
                raise Struck(kind)
            if kind == "reordered":
                following = asyncio.ensure_future(read())
                await asyncio.wait((following,), timeout=REORDER_SECONDS)
                if following.done() and isinstance(following.result(), bytes):
                    await write(following.result())
                await write(message)
                if not following.done():
                    message = await following
                    if not isinstance(message, bytes):
                        return
                    await write(message)
                continue
            if kind == "stalled":
                await asyncio.Event().wait()
            if kind == "slow":
                await asyncio.sleep(SLOW_SECONDS)
            elif kind == "truncated":
                message = message[: len(message) // 2]
            elif kind == "bit-flipped":
                message = message[:-1] + bytes([message[-1] ^ 1])
            for _ in range(2 if kind == "duplicated" else 1):
                await write(message)
            if kind == "after":
                raise Struck(kind)

    def _strikes(self, method: str, direction: str, message: bytes) -> str:
        """Return the kind of fault for this message; empty for none."""
        fault = self._fault
        if fault is None or (fault.method, fault.direction) != (method, direction):
            return ""
        if fault.kind == "before" or len(message) < fault.least_bytes:
            return ""
        if fault.passing:
            fault.passing -= 1
            return ""
        self._fault = None
        self.struck.set()
        return fault.kind


class _AnyMethod:
    """Handler of any method, as a stream of bytes in both directions."""

    def __init__(self, serve: Any) -> None:
        self._serve = serve

    def service(self, details: Any) -> Any:
        return grpc.stream_stream_rpc_method_handler(partial(self._serve, details.method))


class ProxiedCluster(Cluster):
    """A cluster whose roles call each other through RPC proxies."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(folder, **settings)
        self.proxies: list[RpcProxy] = []

    def relay(self, target: ProxyTarget, **_: object) -> Any:
        """Return a new proxy, which is closed with the cluster."""
        proxy = RpcProxy(target)
        self.proxies.append(proxy)
        return proxy

    def proxy_of(self, service: str) -> RpcProxy:
        """Return the proxy for calls of this service."""
        proxy = self.to_optimizer if service == "Optimizer" else self.to_aggregator
        assert isinstance(proxy, RpcProxy)
        return proxy

    def close(self) -> None:
        """End all daemons and proxies."""
        super().close()
        for proxy in self.proxies:
            proxy.close()
