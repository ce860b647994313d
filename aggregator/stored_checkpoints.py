"""The checkpoints on the optimizer's disk, which the aggregator asks for and has removed."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc

from aggregator.core.retention import StoredCheckpoint
from aggregator.core.running_job import RunningJob
from aggregator.optimizer_links.link import OptimizerLink
from protos.cluster_pb2 import (
    CheckpointFiles,
    CheckpointRequest,
    ListCheckpointsRequest,
    RemoveCheckpointsRequest,
)
from protos.files_pb2 import FilePiece, ReadFileRequest
from services.checkpoints.format import STATE_FILE, State
from services.errors import Failed, Refused
from services.files.errors import FileMissing
from services.files.store import FileStore
from services.json_text import CHECKPOINT_STATE
from services.protocol.file_refs import MAX_PIECE_BYTES
from services.tasks import start_awaited
from services.tensors.layout import Layout

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

    async def read_layout(self, job: str) -> bytes:
        """Return the file of a job's layout, as its newest checkpoint has it.

        Raises:
            FileMissing: the job has no checkpoint.
            Failed: the checkpoint is damaged, or the optimizer is not connected or does not answer.
        """
        found = await self.list_files(CheckpointRequest(job=job, newest=True))
        ref, content = found.files[STATE_FILE], bytearray()
        request = ReadFileRequest(sha256=ref.sha256, length=MAX_PIECE_BYTES, job=job, step=found.step)
        while len(content) < min(ref.size, CHECKPOINT_STATE.limit_bytes):
            request.offset = len(content)
            piece = await self.read_piece(request)
            if not piece.data:
                break
            content += piece.data
        try:
            return await asyncio.to_thread(_find_layout, bytes(content))
        except ValueError as error:
            raise Failed(f"job {job}: {STATE_FILE} of its newest checkpoint is damaged: {error}") from None

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


async def restore_layout(
    stored: StoredCheckpoints, files: FileStore, runs: Mapping[str, RunningJob], sha256: str
) -> None:
    """Put the layout of a running job into the store, from its checkpoint; do nothing for another file.

    A job that starts from a checkpoint has no worker that uploads its layout.

    Raises:
        TiermeshError: there is no checkpoint, the optimizer does not answer, or the disk failed.
    """
    job = next((job for job, run in runs.items() if run.admission.layout_hash == sha256), None)
    if job is not None:
        await asyncio.to_thread(files.put, await stored.read_layout(job))


def _find_layout(state: bytes) -> bytes:
    """Return the layout's file, given the bytes of `state.json` (ValueError)."""
    return Layout.from_json(State.load(state).layout).dumps().encode()


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
