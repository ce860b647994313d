"""Orders to an optimizer on another host: the files that an order refers to are uploaded before it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc

from protos import cluster_pb2 as pb
from protos.files_pb2 import FileRef
from services.errors import TiermeshError
from services.files.store import FileStore
from services.files.transfer import upload
from services.protocol.envelope import OptimizerBody, OptimizerOrder
from services.tasks import start_awaited, start_task
from services.transport.mailbox import Mailbox


class OrdersWithFiles:
    """Orders, each behind the upload of its files and the earlier orders of its job; jobs don't wait for each other.

    A job that is closed gives up its upload.

    Args:
        files: the aggregator's files.
    """

    def __init__(self, files: FileStore) -> None:
        self._files = files
        self._orders: Mailbox[OptimizerOrder] = Mailbox()
        self._uploads: dict[str, asyncio.Task[None]] = {}  # by job

    def reset(self) -> None:
        """Forget the orders of the previous link."""
        self._orders = Mailbox()

    def put(self, body: OptimizerOrder) -> None:
        """Append an order."""
        if isinstance(body, pb.Close) and body.job in self._uploads:
            self._uploads[body.job].cancel()
        self._orders.put(body)

    async def run(
        self,
        channel: grpc.aio.Channel,
        optimizer: str,
        send: Callable[[OptimizerOrder], None],
        report: Callable[[OptimizerBody], None],
    ) -> None:
        """Upload files and send orders until cancelled.

        Args:
            channel: the connection for files.
            optimizer: the optimizer's name, for log and errors.
            send: sends an order whose files the optimizer has; raises MessageTooLarge.
            report: called with the job's failure if the optimizer does not accept its files, or the order is too large.
                Called with CheckpointMissed while the optimizer's disk is full, which the upload waits for.

        Raises:
            LinkClosed: the optimizer has left too many orders unread.
        """
        unsent: dict[str, asyncio.Task[None]] = {}  # by job: the sending of its last order

        async def send_behind(before: asyncio.Task[None] | None, job: str, body: OptimizerOrder) -> None:
            if before is not None:
                await asyncio.wait((before,))
            try:
                if await self._upload(channel, optimizer, job, _list_refs(body), report):
                    send(body)
            except TiermeshError as error:
                report(pb.Failure(job=job, reason=f"{type(body).__name__} was not sent: {error}"))

        try:
            while True:
                body = await self._orders.take()
                job = "" if isinstance(body, pb.Hello | pb.Heartbeat) else body.job
                unsent = {each: task for each, task in unsent.items() if not task.done()}
                if job in unsent or _list_refs(body):
                    sending = send_behind(unsent.get(job), job, body)
                    what = f"{type(body).__name__} of job {job} to {optimizer}"
                    unsent[job] = start_task(sending, what, lambda error: self._orders.close(str(error)))
                else:
                    await send_behind(None, job, body)
        finally:
            for task in unsent.values():
                task.cancel()

    async def _upload(
        self,
        channel: grpc.aio.Channel,
        optimizer: str,
        job: str,
        refs: list[FileRef],
        report: Callable[[OptimizerBody], None],
    ) -> bool:
        """Upload a job's files; return False if the job was closed meanwhile."""
        if not refs:
            return True

        def tell_no_room(reason: str) -> None:
            report(pb.CheckpointMissed(job=job, reason=reason))

        task = start_awaited(upload(channel, self._files, refs, optimizer, on_no_room=tell_no_room))
        self._uploads[job] = task
        try:
            await asyncio.wait((task,))
            if not task.cancelled():
                task.result()
            return not task.cancelled()
        finally:
            del self._uploads[job]
            task.cancel()


def _list_refs(body: OptimizerOrder) -> list[FileRef]:
    """Return the files that an order refers to."""
    match body:
        case pb.Initialise():
            return [body.layout, *body.files.values()]
    return []
