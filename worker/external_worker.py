"""The worker that a joined process makes of this daemon, from its first message to its end.

It is a worker as any other: a fresh one for each process, so that nothing is left of an earlier one.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from protos import cluster_pb2 as pb
from protos import compute_pb2 as pb_compute
from protos.files_pb2 import ReadFileRequest
from services.errors import Failed, TiermeshError
from services.files.transfer import receive_pieces
from services.json_text import LAYOUT
from services.pipeline.split import StageRun
from services.printable import FAILURE_CHARACTERS, printable
from services.protocol.envelope import unwrap
from services.tasks import start_awaited, start_task
from services.tensors.layout import Layout
from services.transport.server import open_channel
from worker.code_cache import OwnCode
from worker.core import events as ev
from worker.file_exchange import ModelFiles
from worker.job_on_mesh import JobBuilder, JobOnMesh
from worker.joining import JoinedProcess, JoinSocket
from worker.service import WorkerService

log = logging.getLogger("tiermesh.worker")

LEAVE_SECONDS = 5.0
"""Longest wait for the aggregator to hear that a process has left."""

STOPS = "the worker stops; join again when it runs"
"""What a process is told that could have gone on."""

FINGERPRINT = "fingerprint"
"""Name of the fact that a process says of its own code."""


@dataclass(frozen=True)
class ExternalJobs(JobBuilder):
    """Builder of the job that a process has joined for.

    Attributes:
        built: callback, called with the layout of the job as the process has it.
    """

    is_external: bool = True
    built: Callable[[Layout], None] = lambda layout: None

    def build(
        self,
        job: str,
        spec_json: str,
        places: Mapping[str, Path],
        stages: StageRun | None,
        own_code: OwnCode | None,
        **settings: Any,
    ) -> JobOnMesh:
        """Have the process build the job (Failed if it can't be that job's).

        The arguments are those of `JobBuilder.build`.
        """
        on_mesh = super().build(job, spec_json, places, stages, own_code, **settings)
        self.built(on_mesh.step.layout)
        if on_mesh.config.exact and not on_mesh.step.fingerprint.get(FINGERPRINT):
            on_mesh.close()
            raise Failed(
                "fingerprint: none given for a job with exact: true, expected a text that names the code and data of "
                "the process; give one, or submit the job with exact: false"
            )
        return on_mesh


class ExternalWorker(WorkerService):
    """The worker of one joined process.

    Args:
        joined: the process.
        options: those of `WorkerService`.
    """

    def __init__(self, joined: JoinedProcess, **options: Any) -> None:
        super().__init__(**options)
        self._joined = joined
        self._builder = ExternalJobs(joined.spawn, built=self._note_layout)
        self._layout: Layout | None = None
        self._leave: pb.Leave | None = None
        self._has_left = asyncio.Event()

    def _note_layout(self, layout: Layout) -> None:
        self._layout = layout

    def begin(self) -> pb.WorkerMessage:
        """Return the first message, with the job that the process has joined for."""
        message = super().begin()
        message.hello.external_job = self._joined.job
        return message

    async def stop(self) -> None:
        """Drop all leases, and close the job in the process."""
        await super().stop()
        self._metrics.set_connected(False)

    def _take_order(self, command: pb.WorkerCommand) -> None:
        super()._take_order(command)
        body = unwrap(command)
        if isinstance(body, pb.Leave) and body.final and self._leave is None and body.job == self._joined.job:
            self._leave = body
            self._has_left.set()

    def _feed_from_device(self, event: ev.Input | ModelFiles) -> None:
        if not self._joined.has_left:  # what follows from that is no fault of the job's
            super()._feed_from_device(event)

    # ---- the end ----

    async def wait_dismissed(self) -> None:
        """Wait until the process's part is over by the aggregator's word, and prepare what the process is told."""
        await self._has_left.wait()
        assert self._leave is not None
        if self._leave.succeeded:
            farewell = pb_compute.ToProcess(finished=pb_compute.Finished())
        else:
            farewell = pb_compute.ToProcess(refused=await self._explain(self._leave))
        self._joined.farewell = farewell

    async def leave(self) -> None:
        """Tell the aggregator that the process has ended, and why, and wait until it has heard."""
        await asyncio.to_thread(self._device.finish)  # what the process has said before is told first
        if self._core.job is None:
            return
        reason = await asyncio.to_thread(self._joined.describe_end)
        self._send(pb.Failure(job=self._joined.job, reason=reason))
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._has_left.wait(), LEAVE_SECONDS)

    async def _explain(self, leave: pb.Leave) -> pb_compute.Refused:
        """Return why the process takes no part; if its layout is another one than the job's, in what they differ."""
        own = self._layout
        if own is not None and leave.layout_hash not in ("", own.hash):
            try:
                return describe_difference(own, await self._read_layout(leave.layout_hash))
            except (TiermeshError, grpc.aio.AioRpcError, asyncio.TimeoutError, ValueError) as error:
                log.warning("job %s: its layout can't be read: %s", leave.job, error)
        return pb_compute.Refused(reason=leave.reason)

    async def _read_layout(self, sha256: str) -> Layout:
        content = bytearray()
        async with open_channel(self.address, self._security) as channel:
            async for piece in receive_pieces(channel, ReadFileRequest(sha256=sha256)):
                content += piece.data
                if len(content) > LAYOUT.limit_bytes:
                    raise ValueError(f"more than {LAYOUT.limit_bytes} bytes")
        if hashlib.sha256(content).hexdigest() != sha256:
            raise ValueError("damaged on its way")
        return Layout.loads(content.decode())


def describe_difference(own: Layout, job: Layout) -> pb_compute.Refused:
    """Return in what a process's parameters first differ from those of the job."""
    mine, expected = ({each.name: each for each in layout.entries} for layout in (own, job))
    fix = "join with the model that the job began with, or submit another job"
    field, value, wanted = "parameters", "their order, or which of them decay", "as in the job"
    for name in (*expected, *mine):
        found, wants = (
            str(list(each[name].shape)) if name in each else "absent" for each in (mine, expected)
        )
        if found != wants:
            field, value, wanted = name, found, wants
            break
    reason = f"parameter {field}: {value} in this process, the job's is {wanted}; {fix}"
    return pb_compute.Refused(
        reason=printable(reason, FAILURE_CHARACTERS), field=field, value=value, expected=wanted, fix=fix
    )


class ExternalService:
    """The service of a daemon at whose socket processes join, one at a time.

    Args:
        joins: the socket.
        make_worker: makes the worker of a process that has joined.
    """

    service_names: tuple[str, ...] = ()

    def __init__(self, joins: JoinSocket, make_worker: Callable[[JoinedProcess], ExternalWorker]) -> None:
        self._joins = joins
        self._make_worker = make_worker
        self._joined: JoinedProcess | None = None
        self._serving: asyncio.Task[None] | None = None

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """Return no handlers: a worker serves only health and reflection."""
        return []

    async def start(self, tensor_port: int = 0) -> None:
        """Open the socket."""
        self._joins.open()

    async def run(self) -> None:
        """Let processes join until cancelled."""
        while True:
            joined = await self._joins.accept()
            if self._serving is not None and self._joined is not None and self._joined.is_over:
                await asyncio.wait([self._serving])
            if self._joined is not None:
                joined.turn_away(
                    f"has to wait, as {self._joined} has joined", "give each process a worker of its own"
                )
                continue
            self._joined = joined
            self._serving = start_task(self._serve(joined), f"{joined}")

    async def _serve(self, joined: JoinedProcess) -> None:
        log.info("%s joins for job %s", joined, joined.job)
        worker = self._make_worker(joined)
        try:
            await worker.start()
            await self._attend(worker, joined)
        finally:
            joined.farewell = joined.farewell or pb_compute.ToProcess(
                refused=pb_compute.Refused(reason=STOPS)
            )
            await worker.stop()
            joined.stop(0, STOPS)
            log.info("%s", joined.describe_end())
            joined.close()
            self._joined = None

    async def _attend(self, worker: ExternalWorker, joined: JoinedProcess) -> None:
        running, ended = start_awaited(worker.run()), start_awaited(joined.wait_ended())
        dismissed = start_awaited(worker.wait_dismissed())
        tasks: list[asyncio.Task[Any]] = [running, ended, dismissed]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if ended in done and dismissed not in done:
                dismissed.cancel()
                await worker.leave()
            for each in done:
                each.result()
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def stop(self) -> None:
        """Part with the process that has joined, and remove the socket."""
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.gather(self._serving, return_exceptions=True)
        self._joins.close()
