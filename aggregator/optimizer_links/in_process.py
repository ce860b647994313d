"""The link to an optimizer in this process (2-tier), whose tensors are in a plane of this process or in shards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aggregator.optimizer_links.link import OptimizerLinkCallbacks
from optimizer.core.events import ChunksArrived, Ordered, TensorsLost
from optimizer.engine import EngineCallbacks, OptimizerEngine
from plane.group import PlaneGroup
from protos import cluster_pb2 as pb
from protos.files_pb2 import FilePiece, ReadFileRequest
from protos.plane_pb2 import FinishSum
from services.errors import Failed
from services.printable import counted
from services.protocol.envelope import OptimizerOrder
from services.protocol.hello import Role, make_hello
from services.transport.links import run_until_first_ends


class InProcessOptimizerLink:
    """An `OptimizerLink` that is up while all planes are.

    Args:
        engine: optimizer engine in this process.
        planes: links to the planes that have its tensors.
        name: name of this aggregator.
        epoch: epoch of this aggregator.
        callbacks: callbacks of the link; `lost` is called whenever the reason changes, too.
    """

    def __init__(
        self,
        engine: OptimizerEngine,
        planes: PlaneGroup,
        *,
        name: str,
        epoch: int,
        callbacks: OptimizerLinkCallbacks,
    ) -> None:
        self._engine = engine
        self._planes = planes
        self._epoch = epoch
        self._callbacks = callbacks
        self._loop = asyncio.get_running_loop()
        self._refused: asyncio.Future[None] = self._loop.create_future()
        self._hello = make_hello(Role.AGGREGATOR, name, epoch_seen=epoch)
        self._engine_callbacks = EngineCallbacks(
            send=lambda body: _later(self._loop, callbacks.message, body),
            refuse=lambda reason: self._refused.set_exception(Failed(reason)),
        )
        planes.on_ready.append(self._planes_ready)
        planes.on_lost.append(self._planes_lost)
        planes.on_waiting.append(callbacks.lost)

    async def run(self) -> None:
        """Keep the links to the planes up.

        Raises:
            EpochBehind: a shard has obeyed a newer epoch, whose aggregator is gone.
        """
        await run_until_first_ends(self._planes.run(), _wait(self._refused))

    def _planes_ready(self) -> None:
        self._engine.connect(self._hello, self._engine_callbacks)
        name = self._engine.name
        if self._planes.local is None:
            name += f", tensors in {counted(len(self._planes.links), 'shard')}"
        self._callbacks.connected(name, None)

    def _planes_lost(self, reason: str) -> None:
        self._engine.feed(TensorsLost())
        self._engine.disconnect(self._engine_callbacks)
        self._callbacks.lost(reason)

    def send_order(self, body: OptimizerOrder) -> None:
        """Queue an order to the engine."""
        _later(self._loop, self._order, body)

    def connection(self) -> None:
        """Return None, since there is no connection."""

    def _order(self, body: OptimizerOrder) -> None:
        if self._planes.ready:
            self._engine.feed(Ordered(self._epoch, body))

    def sums_finished(self, order: FinishSum) -> None:
        """Tell the engine that sums of chunks are finished and are in their plane."""
        _later(self._loop, self._engine.feed, ChunksArrived(order.header, list(order.chunks)))

    async def list_files(self, request: pb.CheckpointRequest) -> pb.CheckpointFiles:
        """Return the files of a checkpoint (FileMissing)."""
        return await asyncio.to_thread(self._engine.checkpoint_store.list_files, request)

    async def read_piece(self, request: ReadFileRequest) -> FilePiece:
        """Return the piece of a checkpoint's file that begins at a request's offset (TiermeshError)."""
        return await asyncio.to_thread(self._engine.checkpoint_store.read_piece, request)

    def list_checkpoints(self, request: pb.ListCheckpointsRequest) -> Any:
        """Return an async iterator over the checkpoints of some jobs."""
        return self._engine.list_checkpoints(request)

    async def remove_checkpoints(self, request: pb.RemoveCheckpointsRequest) -> pb.RemoveCheckpointsReply:
        """Remove checkpoints of a job that has ended."""
        return await self._engine.remove_checkpoints(request)


def _later(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *arguments: Any) -> None:
    loop.call_soon(call, *arguments)


async def _wait(future: asyncio.Future[None]) -> None:
    await future
