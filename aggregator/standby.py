"""An aggregator that stands by: it leads when nobody else does, and again waits for that once another one leads."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc

from aggregator.core.succession import Deposed, LeaderSighting, Succession
from aggregator.service import AggregatorService
from aggregator.storage.job_queue import JobQueue, open_queue
from services.errors import TiermeshError
from services.runtime.metrics import AggregatorMetrics
from services.timeouts import Timeouts
from services.transport.http2.server import Handler

log = logging.getLogger("tiermesh.aggregator")


class StandbyService:
    """Serves what an aggregator does while it leads; else tells whom it stands by for, so that callers go to that one.

    Args:
        name: of this aggregator, as its leader and people know it.
        state_dir: on storage that it shares with the others.
        timeouts: how often to look (`tick`), and after how long to take over (`takeover`).
        metrics: of this aggregator.
        make: an aggregator that leads, with the queue whose epoch was raised for it.
    """

    service_names = AggregatorService.service_names

    def __init__(
        self,
        *,
        name: str,
        state_dir: Path,
        timeouts: Timeouts,
        metrics: AggregatorMetrics,
        make: Callable[[JobQueue], AggregatorService],
    ) -> None:
        self.name = name
        self.tensor_port = 0
        self._state_dir = state_dir
        self._timeouts = timeouts
        self._metrics = metrics
        self._make = make
        self._leading: AggregatorService | None = None
        self._turns_away: list[grpc.GenericRpcHandler] = [_TurnsAway(self.service_names, self._why_not)]
        self._handlers: Sequence[grpc.GenericRpcHandler] = self._turns_away
        self._sight: LeaderSighting | None = None
        self._said = ""

    # ---- life ----

    async def start(self) -> None:
        """Hold that the state folder can be used (Refused)."""
        (await asyncio.to_thread(open_queue, self._state_dir, self._timeouts)).close()

    async def run(self) -> None:
        """Stand by and lead in turn, until cancelled, or until something that must not fail has failed."""
        while True:
            queue = await self._stand_by()
            service = self._make(queue)
            service.tensor_port = self.tensor_port
            await service.start()
            self._leading, self._handlers = service, service.handlers()
            try:
                await service.run()
            except Deposed as deposed:
                log.warning("%s; it stands by from now on", deposed)
            finally:
                self._leading, self._handlers, self._sight = None, self._turns_away, None
                await service.stop()

    async def stop(self) -> None:
        """Nothing: what `run` began has ended with it."""

    async def _stand_by(self) -> JobQueue:
        """Wait until this one is to lead; the queue, whose epoch it has raised."""
        while (queue := await self._open()) is None:
            await asyncio.sleep(self._timeouts.tick)
        succession = Succession(self._timeouts.takeover)
        try:
            while not await self._takes_over(queue, succession):
                await asyncio.sleep(self._timeouts.tick)
        except BaseException:
            with suppress(TiermeshError):
                queue.leave(self.name)
            queue.close()
            raise
        return queue

    async def _open(self) -> JobQueue | None:
        try:
            return await asyncio.to_thread(open_queue, self._state_dir, self._timeouts)
        except TiermeshError as error:
            self._warn(error)
            return None

    async def _takes_over(self, queue: JobQueue, succession: Succession) -> bool:
        """Take a look, and if nobody leads, raise the epoch; whether that was done."""
        try:
            sight = await asyncio.to_thread(queue.look, self.name)
            if self._sight is None or sight.epoch != self._sight.epoch:
                log.info("standby of %s", _whom(sight))
            self._sight = sight
            now = time.monotonic()
            if not succession.is_due(sight, now):
                return False
            epoch = await asyncio.to_thread(queue.take_over, sight, self.name, self._timeouts.takeover)
        except TiermeshError as error:
            self._warn(error)
            return False
        if epoch is None:
            return False  # somebody else was faster, or the leader lives
        log.warning("takes over as epoch %d: %s", epoch, _why_gone(sight, succession.silent_seconds(now)))
        return True

    def _warn(self, error: TiermeshError) -> None:
        if str(error) != self._said:
            self._said = str(error)
            log.warning("%s; trying again", error)

    def _why_not(self) -> str:
        return f"standby of {_whom(self._sight)}"

    # ---- what is served ----

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """For the server."""
        return [_Switch(lambda: self._handlers)]

    def tensor_methods(self) -> dict[str, Handler]:
        """For the tensor port."""
        return {"/tiermesh.Cluster/Exchange": self._exchange}

    async def _exchange(self, stream: Any) -> None:
        if self._leading is None:
            await stream.abort(grpc.StatusCode.UNAVAILABLE, self._why_not())
        else:
            await self._leading.tensor_methods()["/tiermesh.Cluster/Exchange"](stream)


class _Switch:
    """A `grpc.GenericRpcHandler` that is whatever handlers there are when a call comes."""

    def __init__(self, now: Callable[[], Sequence[grpc.GenericRpcHandler]]) -> None:
        self._now = now

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """The handler of a call."""
        found = (handler.service(details) for handler in self._now())
        return next((each for each in found if each is not None), None)


class _TurnsAway:
    """A `grpc.GenericRpcHandler` that ends every call of some services, of whatever kind, with UNAVAILABLE and why."""

    def __init__(self, names: Sequence[str], why: Callable[[], str]) -> None:
        self._names = names
        self._why = why

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """The handler of a call."""
        if details.method.split("/")[1] in self._names:
            return grpc.stream_stream_rpc_method_handler(self._turn_away)
        return None

    async def _turn_away(self, _: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await context.abort(grpc.StatusCode.UNAVAILABLE, self._why())


def _whom(sight: LeaderSighting | None) -> str:
    if sight is None or not sight.epoch:
        return "nobody yet"
    return f"{sight.leader or 'an aggregator'} (epoch {sight.epoch})"


def _why_gone(sight: LeaderSighting, silent_seconds: float) -> str:
    if not sight.epoch:
        return "nobody led before"
    return f"{_whom(sight)} " + (
        f"was silent for {silent_seconds:.1f} s" if sight.takeover_seconds else "has left"
    )
