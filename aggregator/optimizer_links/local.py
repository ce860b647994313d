"""The link to an optimizer in this process (2-tier)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aggregator.optimizer_links.link import OptimizerLinkCallbacks
from optimizer.core.events import Ordered
from optimizer.engine import EngineCallbacks, OptimizerEngine
from protos import cluster_pb2 as pb
from protos.files_pb2 import FilePiece, ReadFileRequest
from protos.tensors_pb2 import ChunkHeader
from services.errors import Failed
from services.protocol.envelope import OptimizerOrder
from services.protocol.hello import Role, make_hello
from services.tensors.kernels.arithmetic import Float32Array
from services.transport.links import run_until_first_ends


class LocalOptimizerLink:
    """A `GradientLink` to an engine in this process.

    Args:
        engine: the optimizer's engine.
        name: the aggregator's name.
        epoch: the aggregator's epoch.
        callbacks: the link's callbacks.
    """

    def __init__(
        self, engine: OptimizerEngine, *, name: str, epoch: int, callbacks: OptimizerLinkCallbacks
    ) -> None:
        self._engine = engine
        self._epoch = epoch
        self._callbacks = callbacks
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._hello = make_hello(Role.AGGREGATOR, name, epoch_seen=epoch)
        self._refused: asyncio.Future[None] = self._loop.create_future()

    async def run(self) -> None:
        """Connect to the engine and pass on its weights until cancelled.

        Raises:
            Failed: the engine refused this aggregator.
        """
        callbacks = EngineCallbacks(
            send=lambda body: self._call_soon(self._callbacks.message, body),
            refuse=lambda reason: self._refused.set_exception(Failed(reason)),
            wake=self._wake.set,
        )
        self._engine.connect(self._hello, callbacks)
        self._callbacks.connected(self._engine.name)
        await run_until_first_ends(self._receive_weights(), self._until_refused())

    async def _until_refused(self) -> None:
        await self._refused

    async def _receive_weights(self) -> None:
        while True:
            self._wake.clear()
            header = await self._engine.next_weights()
            if header is None:
                await self._wake.wait()
            else:
                self._callbacks.weights(header, None, None)

    def send_order(self, body: OptimizerOrder) -> None:
        """Send an order."""
        self._call_soon(self._handle_order, body)

    def _handle_order(self, body: OptimizerOrder) -> None:
        self._engine.feed(Ordered(self._epoch, body))
        self._wake.set()

    def prepare(
        self, header: ChunkHeader, values: Float32Array, elements: int
    ) -> tuple[ChunkHeader, Float32Array]:
        """Return the sum unchanged, since the engine takes the array itself."""
        del elements
        return header, values

    def send(self, prepared: tuple[ChunkHeader, Float32Array]) -> None:
        """Give the engine a finished sum."""
        self._call_soon(self._engine.chunk_arrived, *prepared)

    async def wait_for_room(self) -> None:
        """Wait while too many sums wait for the engine's kernel thread."""
        await self._engine.wait_for_room()

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

    def _call_soon(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call after the current call has returned, so that the aggregator's core is not re-entered."""
        self._loop.call_soon(call, *arguments)
