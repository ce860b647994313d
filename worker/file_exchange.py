"""Files that a worker exchanges with its aggregator: it fetches a job's inputs, and describes the model.

All of it runs on the event loop. A transfer that the link's end interrupts is continued on the next link.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc

from protos.files_pb2 import FileRef
from services.errors import Refused, TiermeshError
from services.files.memory import FilesInMemory
from services.files.transfer import upload
from services.pipeline.split import StageRun
from services.protocol.file_refs import MAX_TEXT_BYTES, check_ref, make_ref
from services.tasks import describe_error, start_task
from worker.core import events as ev
from worker.job_inputs import JobInputs


@dataclass(frozen=True)
class ModelFiles:
    """Description of the model whose initial weights an INITIALISE lease has made.

    Attributes:
        lease: id of the lease.
        layout: reference to the model's layout.
        files: references to the files of its checkpoints, by name.
        contents: contents of all of them, by SHA-256.
    """

    lease: int
    layout: FileRef
    files: Mapping[str, FileRef]
    contents: Mapping[str, bytes]

    @classmethod
    def make(cls, lease: int, layout_json: str, files: Mapping[str, bytes]) -> ModelFiles:
        """Return the description, with the references computed."""
        contents = {make_ref(each).sha256: each for each in (layout_json.encode(), *files.values())}
        refs = {name: make_ref(content) for name, content in files.items()}
        return cls(lease, make_ref(layout_json.encode()), refs, contents)

    def check_sizes(self) -> str | None:
        """Return why a file is too large for a checkpoint; None if none is."""
        for name, ref in (("the layout", self.layout), *self.files.items()):
            refusal = check_ref(ref, MAX_TEXT_BYTES)
            if refusal is not None:
                return f"{name}: {refusal}"
        return None


class FileExchange:
    """Transfers of one worker.

    Args:
        feed: passes the core an input.
        build: builds a job on the mesh, given its id, its spec, the places of inputs that were fetched, the stages, and
            the number of the Build.
        inputs: finds and fetches the job's inputs.
    """

    def __init__(
        self,
        feed: Callable[[ev.Input], None],
        build: Callable[[str, str, Mapping[str, Path], StageRun | None, int], None],
        inputs: JobInputs,
    ) -> None:
        self._feed = feed
        self._build = build
        self._inputs = inputs
        self._channel: grpc.aio.Channel | None = None
        self._aggregator = ""
        self._wanted: ev.Build | None = None  # job whose spec or inputs are being fetched
        self._fetching: asyncio.Task[None] | None = None
        self._sending: dict[int, asyncio.Task[None]] = {}  # by lease

    def connect(self, channel: grpc.aio.Channel, aggregator: str) -> None:
        """Use a new link's channel, and go on fetching what the core waits for."""
        self._channel, self._aggregator = channel, aggregator
        if self._wanted is not None:
            self.fetch_job(self._wanted)

    def disconnect(self) -> None:
        """Stop all transfers. The core drops its leases, and with them what is being sent."""
        self._channel = None
        for task in (self._fetching, *self._sending.values()):
            if task is not None:
                task.cancel()
        self._fetching = None
        self._sending.clear()

    # ---- the job ----

    def fetch_job(self, effect: ev.Build) -> None:
        """Fetch the inputs of a job that this host lacks, and build the job."""
        self.drop_job()
        self._wanted = effect
        if self._channel is not None:
            self._fetching = start_task(
                self._fetch(effect, self._channel),
                f"job {effect.job}: its spec and inputs",
                lambda error: self._build_failed(effect, error),
            )

    def drop_job(self) -> None:
        """Stop fetching for the job, which is not wanted, and let go of its inputs."""
        self._wanted = None
        self._inputs.close()
        if self._fetching is not None:
            self._fetching.cancel()
            self._fetching = None

    async def _fetch(self, effect: ev.Build, channel: grpc.aio.Channel) -> None:
        def report(field: str, here: int, size: int, problem: str) -> None:
            self._feed(ev.Fetching(effect.job, field, here, size, problem))

        places: dict[str, Path] = {}
        try:
            if effect.damaged is not None:
                await self._inputs.remove(effect.damaged)
            missing = await self._inputs.find_missing(effect.spec_json, effect.stages)
            if missing:
                places = await self._inputs.fetch(missing, channel, self._aggregator, report)
        except TiermeshError as error:
            self._build_failed(effect, error)
            return
        self._wanted = None
        self._build(effect.job, effect.spec_json, places, effect.stages, effect.number)

    def _build_failed(self, effect: ev.Build, error: Exception) -> None:
        self._wanted = None
        passes = not isinstance(error, Refused)
        self._feed(ev.BuildFailed(effect.job, describe_error(error), unfit=passes, number=effect.number))

    # ---- the model's files ----

    def send(self, files: ModelFiles) -> None:
        """Send the description of a model. The core gets an input when the aggregator has it, or when that fails."""
        if self._channel is not None:
            self._sending[files.lease] = start_task(
                self._send(files, self._channel),
                f"lease {files.lease}: the model's files",
                lambda error: self._feed(ev.LeaseFailed(files.lease, describe_error(error))),
            )

    def drop_lease(self, lease: int) -> None:
        """Stop sending a lease's files, if that is under way."""
        task = self._sending.pop(lease, None)
        if task is not None:
            task.cancel()

    async def _send(self, files: ModelFiles, channel: grpc.aio.Channel) -> None:
        refs = (files.layout, *files.files.values())
        refusal = files.check_sizes()
        try:
            if refusal is None:
                await upload(channel, FilesInMemory(files.contents), refs, self._aggregator)
        except TiermeshError as error:
            refusal = f"the model's files could not be sent: {error}"
        self._sending.pop(files.lease, None)
        if refusal is not None:
            self._feed(ev.LeaseFailed(files.lease, refusal))
        else:
            self._feed(ev.InitialWeightsMade(files.lease, files.layout, dict(files.files)))
