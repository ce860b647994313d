"""The checkpoints on the optimizer's disk, which the aggregator asks for and has removed."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc

from aggregator.core.retention import StoredCheckpoint
from aggregator.optimizer_links.link import OptimizerLink
from protos.cluster_pb2 import (
    CheckpointFiles,
    CheckpointRequest,
    ListCheckpointsRequest,
    RemoveCheckpointsRequest,
)
from protos.files_pb2 import FilePiece, ReadFileRequest
from services.errors import Failed, Refused
from services.files.errors import FileMissing
from services.tasks import start_awaited

Answer = TypeVar("Answer")


@dataclass
class StoredJob:
    """Checkpoints of a job, oldest first, and why none of them can be removed; empty if they can."""

    checkpoints: list[StoredCheckpoint] = field(default_factory=list)
    problem: str = ""


class StoredCheckpoints:
    """Asks the optimizer for checkpoints.

    Args:
        link: the link to the optimizer.
    """

    def __init__(self, link: OptimizerLink) -> None:
        self._link = link

    async def list(self, jobs: Collection[str], *, hashes: bool = False) -> dict[str, StoredJob]:
        """Return the checkpoints of each job.

        Args:
            jobs: ids of jobs.
            hashes: whether the hashes of their files are wanted too, which takes longer.

        Raises:
            Failed: the optimizer is not connected, or does not answer.
        """
        return await _answer(self._collect(ListCheckpointsRequest(jobs=jobs, hashes=hashes)))

    async def _collect(self, request: ListCheckpointsRequest) -> dict[str, StoredJob]:
        found = {job: StoredJob() for job in request.jobs}
        async for each in self._link.list_checkpoints(request):
            if each is None or each.job not in found:
                raise Failed("the optimizer's answer to ListCheckpoints was damaged; try again")
            stored = found[each.job]
            if each.problem:
                stored.problem = each.problem
            else:
                stored.checkpoints.append(
                    StoredCheckpoint(
                        each.step, each.bytes, each.model_sha256, each.in_use, each.tokenizer_sha256
                    )
                )
        return found

    async def list_files(self, request: CheckpointRequest) -> CheckpointFiles:
        """Return the files of a checkpoint.

        Raises:
            FileMissing: there is no such checkpoint.
            Failed: the optimizer is not connected, or does not answer.
        """
        reply = await _answer(self._link.list_files(request))
        if reply is None:
            raise Failed("the optimizer's answer to Checkpoint was damaged; try again")
        return reply

    async def read_piece(self, request: ReadFileRequest) -> FilePiece:
        """Return the piece of a checkpoint's file that begins at a request's offset.

        Raises:
            FileMissing: the checkpoint was removed.
            FileDamaged: the piece was damaged on the way.
            Failed: the optimizer is not connected, or does not answer.
        """
        return await _answer(self._link.read_piece(request))

    async def remove(self, request: RemoveCheckpointsRequest) -> None:
        """Have the optimizer remove checkpoints.

        Raises:
            Failed: some are still there.
        """
        reply = await _answer(self._link.remove_checkpoints(request))
        if reply is None:
            raise Failed("the optimizer's answer to RemoveCheckpoints was damaged; try again")
        if reply.kept:
            raise Failed(reply.kept)


async def _answer(call: Coroutine[Any, Any, Answer]) -> Answer:
    """Return the answer of a call to the optimizer.

    Raises:
        FileMissing: the optimizer lacks what was asked for.
        Failed: there is none. When the link ends, grpcio cancels the call; that must not look as if this task were
            cancelled, so the call has one of its own.
    """
    task = start_awaited(call)
    try:
        await asyncio.wait((task,))
        if task.cancelled():
            raise Failed("the optimizer was lost; try again when it is connected")
        return task.result()
    except grpc.aio.AioRpcError as error:
        details = error.details() or error.code().name.lower()
        if error.code() is grpc.StatusCode.NOT_FOUND:
            raise FileMissing(details) from None
        raise Failed(f"the optimizer has not answered: {details}; try again") from None
    except asyncio.TimeoutError:
        raise Failed("the optimizer has not answered; try again") from None
    except FileMissing:
        raise
    except Refused as refused:
        raise Failed(str(refused)) from None
    finally:
        task.cancel()
