"""The interface of links to the optimizer.

Links call back on the event loop, and never from within a call to them, so the aggregator's core is not re-entered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from protos.cluster_pb2 import (
    CheckpointFiles,
    CheckpointRequest,
    Hello,
    ListCheckpointsRequest,
    RemoveCheckpointsReply,
    RemoveCheckpointsRequest,
)
from protos.files_pb2 import FilePiece, ReadFileRequest
from protos.jobs_pb2 import Connection
from services.protocol.envelope import OptimizerBody, OptimizerOrder
from services.tensors.chunk_messages import Message, TensorChunk


@dataclass(frozen=True)
class OptimizerLinkCallbacks:
    """Callbacks of a link, called on the event loop.

    Attributes:
        connected: called with the optimizer's name when the link is up, and with its Hello if it is another process.
        lost: called with the reason when the link is down.
        message: called with each control message.
        weights: called with each chunk of weights from another process and, unless it was in shared memory, its
            message. Raises Refused if the chunk is damaged.
    """

    connected: Callable[[str, Hello | None], None]
    lost: Callable[[str], None]
    message: Callable[[OptimizerBody], None]
    weights: Callable[[TensorChunk, Message | None], None]


class OptimizerLink(Protocol):
    """A link to the optimizer."""

    async def run(self) -> None:
        """Keep the link up until cancelled.

        Raises:
            Failed: the optimizer refuses this aggregator for good.
        """

    def send_order(self, body: OptimizerOrder) -> None:
        """Send an order."""

    def connection(self) -> Connection | None:
        """Return what is known of the connection; None if the optimizer is in this process, or not connected."""

    async def list_files(self, request: CheckpointRequest) -> CheckpointFiles | None:
        """Return the files of a checkpoint; None if the answer was damaged on the way.

        Raises:
            FileMissing: there is no such checkpoint.
            Failed: the optimizer is not connected.
        """

    async def read_piece(self, request: ReadFileRequest) -> FilePiece:
        """Return the piece of a checkpoint's file that begins at a request's offset.

        Raises:
            FileMissing: the checkpoint was removed.
            Failed: the optimizer is not connected, or its disk failed.
        """

    def list_checkpoints(self, request: ListCheckpointsRequest) -> Any:
        """Return an async iterator over the checkpoints of some jobs, a `StoredCheckpoint` each.

        Raises:
            Failed: the optimizer is not connected.
        """

    async def remove_checkpoints(self, request: RemoveCheckpointsRequest) -> RemoveCheckpointsReply | None:
        """Remove checkpoints of a job that has ended; return None if the answer was damaged on the way.

        Raises:
            Failed: the optimizer is not connected, or its disk failed.
        """
