"""The aggregator that leads a process at the moment, and the service of a process that leads from its start."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, Any

import grpc

from aggregator.broken_jobs import JobsCrashed
from aggregator.core.succession import EpochBehind
from aggregator.service import AggregatorService
from aggregator.storage.job_queue import JobQueue, open_queue
from services.errors import Failed, NotYet
from services.printable import printable_path
from services.runtime.cluster_identity import StateDirUse
from services.runtime.file_locks import try_lock
from services.timeouts import STANDARD_TIMEOUTS, Timeouts
from services.transport.http2.server import Handler

log = logging.getLogger("tiermesh.aggregator")

TENSOR_METHODS = ("/tiermesh.Cluster/Exchange", "/tiermesh.Cluster/MeasureLink")
LEADER_LOCK = "leader.lock"
"""File of a state folder that the process that leads has locked."""


class LeaderHandlers:
    """The handlers of the aggregator that leads in this process. Without one, they refuse every call.

    Args:
        describe_refusal: returns the reason that refused callers get.

    Attributes:
        leading: the aggregator that leads; None while there is none.
    """

    def __init__(self, describe_refusal: Callable[[], str]) -> None:
        self.leading: AggregatorService | None = None
        self._describe_refusal = describe_refusal
        self._refusing = [_RefusingHandler(AggregatorService.service_names, describe_refusal)]
        self._handlers: Sequence[grpc.GenericRpcHandler] = self._refusing

    def set_leading(self, leading: AggregatorService | None) -> None:
        """Pass calls to this aggregator from now on; None to refuse them."""
        self.leading = leading
        self._handlers = self._refusing if leading is None else leading.handlers()

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """Return the gRPC handlers."""
        return [_CurrentHandlers(lambda: self._handlers)]

    def tensor_methods(self) -> dict[str, Handler]:
        """Return the handlers of the tensor port, by method."""
        return {method: partial(self._serve, method) for method in TENSOR_METHODS}

    async def _serve(self, method: str, stream: Any) -> None:
        if self.leading is None:
            await stream.abort(grpc.StatusCode.UNAVAILABLE, self._describe_refusal())
        else:
            await self.leading.tensor_methods()[method](stream)


class LeaderService:
    """The service of an aggregator that leads from its start to its end.

    Args:
        name: the aggregator's name.
        state_dir: the state folder.
        timeouts: the cluster's timeouts.
        make: makes an aggregator that leads, from the queue, whose epoch was raised, and the tensor port.
    """

    service_names = AggregatorService.service_names

    def __init__(
        self,
        *,
        name: str,
        state_dir: Path,
        timeouts: Timeouts,
        make: Callable[[JobQueue, int], AggregatorService],
    ) -> None:
        self._name = name
        self._state_dir = state_dir
        self._timeouts = timeouts
        self._make = make
        self._tensor_port = 0
        self._locks = ExitStack()
        self._queue: JobQueue
        self._handlers = LeaderHandlers(lambda: f"aggregator {name} does not lead yet, or no longer")
        self.handlers = self._handlers.handlers
        self.tensor_methods = self._handlers.tensor_methods

    async def start(self, tensor_port: int = 0) -> None:
        """Open the state folder under a new epoch, and lead. Wait for an aggregator that is still ending.

        Raises:
            Refused: the state folder can't be used.
            NotYet: another aggregator leads on it.
        """
        self._tensor_port = tensor_port
        self._locks.callback(StateDirUse(self._state_dir).close)
        self._locks.callback((await self._lock()).close)
        self._lead()

    async def _lock(self) -> IO[str]:
        """Return the lock of leading on this state folder.

        Without it, two aggregators that are restarted whenever they end would depose each other again and again.
        """
        loop, waits = asyncio.get_running_loop(), False
        limit_seconds, began = self._timeouts.stop, loop.time()
        where = f"--state-dir {printable_path(self._state_dir)}: another aggregator leads on it"
        while (lock := try_lock(self._state_dir / LEADER_LOCK)) is None:
            if loop.time() - began > limit_seconds:
                raise NotYet(
                    f"{where} and has not ended within {limit_seconds:g} s; stop it, or start both with --standby"
                )
            if not waits:
                waits = True
                log.warning("%s; waiting up to %g s for its end", where, limit_seconds)
            await asyncio.sleep(self._timeouts.tick)
        return lock

    def _lead(self) -> None:
        queue = open_queue(self._state_dir, self._timeouts)
        queue.raise_epoch(self._name, self._timeouts.takeover)
        self._queue = queue
        self._handlers.set_leading(self._make(queue, self._tensor_port))

    async def run(self) -> None:
        """Serve until cancelled, or until the disk or the leadership fails.

        After an unexpected error while jobs ran, the memory is discarded and read from disk again.
        """
        while True:
            leading = self._handlers.leading
            assert leading is not None, "start has returned"
            try:
                return await leading.run()
            except JobsCrashed as crash:
                leading.note_crash(crash)
            except EpochBehind as behind:
                skip_epochs(self._queue, behind)
            await self._discard(leading)
            del leading  # with its tensors, before the next one loads them
            self._lead()

    async def _discard(self, leading: AggregatorService) -> None:
        """Stop an aggregator whose memory can't be trusted, or whose epoch is too low.

        Raises:
            Failed: it does not stop, so this process must end.
        """
        self._handlers.set_leading(None)
        limit_seconds = STANDARD_TIMEOUTS.stop
        try:
            await asyncio.wait_for(leading.stop(), limit_seconds)
        except asyncio.TimeoutError:
            raise Failed(
                f"the aggregator did not stop within {limit_seconds:g} s after an internal error; start it again"
            ) from None

    async def stop(self) -> None:
        """End all streams and threads, after finishing a checkpoint that is being written."""
        with self._locks:
            if self._handlers.leading is not None:
                await self._handlers.leading.stop()


def skip_epochs(queue: JobQueue, behind: EpochBehind) -> None:
    """End the leadership of a restored queue, so that the next one is above every epoch that was obeyed.

    Raises:
        Deposed: the queue was not restored: another aggregator has taken over through it.
        Failed: the queue can't be written.
    """
    queue.skip_epochs(behind.obeyed_epoch)
    log.warning("%s: this queue is an older copy; it goes on above that epoch", behind)


class _CurrentHandlers:
    """A `grpc.GenericRpcHandler` that uses the handlers of the moment a call comes."""

    def __init__(self, current: Callable[[], Sequence[grpc.GenericRpcHandler]]) -> None:
        self._current = current

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """Return the handler of a call; None if it belongs to another service."""
        found = (handler.service(details) for handler in self._current())
        return next((each for each in found if each is not None), None)


class _RefusingHandler:
    """A `grpc.GenericRpcHandler` that ends every call of some services with UNAVAILABLE and a reason."""

    def __init__(self, names: Sequence[str], reason: Callable[[], str]) -> None:
        self._names = names
        self._reason = reason

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """Return the handler of a call; None if it belongs to another service."""
        if details.method.split("/")[1] in self._names:
            return grpc.stream_stream_rpc_method_handler(self._refuse)
        return None

    async def _refuse(self, _: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await context.abort(grpc.StatusCode.UNAVAILABLE, self._reason())
