"""The roles that serve calls, with a state in which their methods have something to do; no ports, processes or network.

Each has the job `JOB` with the layout `LAYOUT`, and peers that attend with the incarnation `INCARNATION`.
"""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import google_crc32c
import numpy as np
from google.protobuf.message import Message

from aggregator.leader import LeaderService
from aggregator.service import AggregatorService
from aggregator.shards.service import ShardService
from aggregator.storage.job_queue import JobQueue
from optimizer.service import OptimizerService
from plane.checkpoint_files import TensorFile, name_arrays
from plane.update_rules import initial_state
from protos import cluster_pb2 as cluster
from protos import files_pb2 as files
from protos import jobs_pb2 as jobs
from protos import plane_pb2 as plane
from protos.pipeline_pb2 import LinkState
from protos.tensors_pb2 import FLOAT32, INITIAL_WEIGHTS, Chunk, ChunkHeader
from services.caps import Caps
from services.checkpoints.hugging_face import CONFIG_FILE
from services.config.job import JobConfig
from services.config.load import load_job
from services.pipeline.exchange import ArraySizes
from services.pipeline.split import Split
from services.protocol.checksums import encode_with_checksum
from services.protocol.file_refs import make_ref
from services.protocol.hello import Role, make_hello
from services.runtime.aggregator_metrics import AggregatorMetrics
from services.runtime.metrics import OptimizerMetrics
from services.tensors.layout import Layout
from services.timeouts import STANDARD_TIMEOUTS
from services.transport.links import INCARNATION_KEY, SESSION_KEY
from services.transport.security import Security
from tests.fuzz.calls import LIMIT_SECONDS, Call, Metadata, Port, TensorPort
from tests.fuzz.draws import Known
from tests.support.cluster.bits import sized_config, write_config
from worker.cluster_check import NEIGHBOURS_METHOD, NeighbourCheck
from worker.pipeline.array_plan import ArrayPlan
from worker.pipeline.messages import encode_state
from worker.pipeline.row_links import RowLinks
from worker.pipeline.streams import PASS_METHOD

JOB = "20260101-000000-0123456789abcdef"
INCARNATION = "0123456789abcdef0123456789abcdef"
CLUSTER = "0123456789abcdef"
EPOCH = 1
LEASE = EPOCH << 32 | 1
LAYOUT = Layout.build([("w", (2, 3), True, "w", False)])
LAYOUT_TEXT = LAYOUT.dumps().encode()
FINGERPRINT = {"backend": "emulator"}
STATE_FOLDERS = next((each for each in ("/dev/shm", None) if each is None or os.access(each, os.W_OK)), None)
"""Folder of the roles' state folders: in memory where the system has one."""


def _make_spec() -> str:
    with TemporaryDirectory() as folder:
        return load_job(write_config(Path(folder), sized_config(3, 2)), [])[0].to_json()


SPEC = _make_spec()
_CONFIG = JobConfig.from_json(SPEC)
_ARRAYS = name_arrays(np.zeros(LAYOUT.elements, np.float32), initial_state(_CONFIG.optimizer, LAYOUT))
_FILE = TensorFile(JOB, {name: [array] for name, array in _ARRAYS.items()})
PART = _FILE.read(0, _FILE.size)
"""A checkpoint's part for the only shard."""
EVALUATION_BATCHES = _CONFIG.evaluation_batches
CONTENTS = (b"", b"x", SPEC.encode(), LAYOUT_TEXT, b"{}", bytes(3000))
"""Contents of files whose references peers know."""
ROW = cluster.Row(
    job=JOB,
    row=LEASE,
    seats=[
        cluster.RowSeat(name="worker", incarnation=INCARNATION, address="192.0.2.7:1", stages=1),
        cluster.RowSeat(name="peer", incarnation="peer", address="192.0.2.7:2", first_stage=1, stages=1),
    ],
)
STATE = LinkState(job=JOB, row=ROW.row, stage=1, name="peer", incarnation="peer")
ARRAYS = ArrayPlan(Split((1, 1)), "1f1b", ArraySizes(np.dtype(np.float32), 64, 64), FLOAT32)
REFS = [make_ref(each) for each in CONTENTS]
KNOWN: Known = {
    "job": [JOB],
    "cluster": [CLUSTER],
    "epoch": [EPOCH],
    "epoch_seen": [EPOCH, 0],
    "incarnation": [INCARNATION, "peer"],
    "name": ["peer"],
    "row": [LEASE],
    "stage": [1],
    "number": [1, 2],
    "shape": [2, 4],
    "lease": [LEASE, LEASE + 1],
    "layout_hash": [LAYOUT.hash],
    "elements": [LAYOUT.elements],
    "sha256": [each.sha256 for each in REFS],
    "size": [each.size for each in REFS],
    "generation": [0, 1],
    "step": [0, 1],
    "session": [1],
    "opening": [1],
    "protocol": [3],
    "protocol_min": [0, 1],
    "heartbeat_seconds": [5.0],
    "shard_count": [1],
    "spec_json": [SPEC, "{}"],
    "dtype": [1, "float32"],
}


class Attending(Call):
    """A call that goes on, with a peer that waits for answers.

    Attributes:
        task: task that serves it.
    """

    task: asyncio.Task[None]

    def __init__(self, metadata: Metadata = ()) -> None:
        super().__init__((), metadata, stays=True)
        self._sent: asyncio.Queue[bytes] = asyncio.Queue()
        self._heard: asyncio.Queue[Any] = asyncio.Queue()

    async def read(self) -> Any:
        """Return the next message that the peer sends."""
        content = await self._sent.get()
        self.moves += 1
        return content

    async def write(self, *parts: Any) -> None:
        """Take an answer."""
        await super().write(*parts)
        self._heard.put_nowait(parts[0])

    def send(self, message: Message) -> None:
        """Send a message, with its checksum if it has the field."""
        has_checksum = "own_crc32c" in message.DESCRIPTOR.fields_by_name
        self.send_bytes(encode_with_checksum(message) if has_checksum else message.SerializeToString())

    def send_bytes(self, content: bytes) -> None:
        """Send any bytes."""
        self._sent.put_nowait(content)

    async def hear(self, body: str) -> None:
        """Wait for an answer with this body."""

        async def listen() -> None:
            while body not in str(await self._heard.get()):
                pass

        await asyncio.wait_for(listen(), LIMIT_SECONDS)


def pieces_of(content: bytes) -> list[files.FilePiece]:
    """Return a file in two pieces."""
    half, ref = len(content) // 2, make_ref(content)
    found = []
    for start, data in ((0, content[:half]), (half, content[half:])):
        piece = files.FilePiece(offset=start, data=data, crc32c=google_crc32c.value(data))
        if not start:
            piece.file.CopyFrom(ref)
        found.append(piece)
    return found


class ServedRole(ABC):
    """A role that serves calls.

    Args:
        state_dir: its state folder.

    Attributes:
        port: its methods.
        metadata: metadata by which a call belongs to the peer that attends.
    """

    port: Port
    metadata: Metadata = ((INCARNATION_KEY, INCARNATION),)

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._calls: list[Attending] = []

    @abstractmethod
    async def start(self) -> None:
        """Start the role."""

    @abstractmethod
    async def attend(self) -> Attending:
        """Let a peer attend and the job begin, until its initial weights are awaited; return the peer's call."""

    @abstractmethod
    async def train(self) -> Attending:
        """Let a peer attend and send the initial weights, until there is a checkpoint; return the peer's call."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop the role, and check that it has not failed."""

    async def upload(self, *contents: bytes) -> None:
        """Upload files."""
        for content in contents:
            call = Call(each.SerializeToString() for each in pieces_of(content))
            await self.port.serve("/tiermesh.Files/Write", call)
            assert call.status is None, call.status

    async def _wait_for_checkpoint(self) -> None:
        folder = self._state_dir / "checkpoints" / JOB / "step-00000000"

        async def look() -> None:
            while not folder.exists():
                await asyncio.sleep(0.001)

        await asyncio.wait_for(look(), LIMIT_SECONDS)

    def _open(self, method: str, metadata: Metadata = ()) -> Attending:
        """Begin a call that goes on until the role stops."""
        call = Attending(metadata)
        call.task = asyncio.ensure_future(self.port.serve(method, call))
        self._calls.append(call)
        return call

    async def _leave(self) -> None:
        for each in self._calls:
            each.has_left = True
            each.task.cancel()
        for result in await asyncio.gather(*(each.task for each in self._calls), return_exceptions=True):
            if isinstance(result, Exception):
                raise result


class ServedAggregator(ServedRole):
    """An aggregator in 2 tiers."""

    async def start(self) -> None:
        """Lead on a new queue with one job."""

        def make(queue: JobQueue, tensor_port: int) -> AggregatorService:
            return AggregatorService(
                name="aggregator",
                state_dir=self._state_dir,
                optimizer=None,
                security=Security(),
                caps=Caps(),
                metrics=AggregatorMetrics(),
                queue=queue,
                tensor_port=tensor_port,
            )

        self._service = LeaderService(
            name="aggregator", state_dir=self._state_dir, timeouts=STANDARD_TIMEOUTS, make=make
        )
        await self._service.start()
        self._running = asyncio.ensure_future(self._service.run())
        self.port = Port(self._service.handlers())
        with patch("aggregator.storage.job_queue.draw_job_id", return_value=JOB):
            submit = Call([jobs.SubmitRequest(spec_json=SPEC).SerializeToString()])
            await self.port.serve("/tiermesh.Jobs/Submit", submit)

    async def attend(self) -> Attending:
        """Let a worker attend that has the lease to make the initial weights, and has described the model."""
        worker = self._open("/tiermesh.Cluster/Attend")
        worker.send(cluster.WorkerMessage(hello=make_hello(Role.WORKER, "worker", incarnation=INCARNATION)))
        await worker.hear("welcome")
        self._stream = self._open(
            "/tiermesh.Cluster/Exchange", self.metadata
        )  # leases go to workers with one
        await worker.hear("join")
        ready = cluster.Ready(
            job=JOB,
            build=1,
            layout_hash=LAYOUT.hash,
            elements=LAYOUT.elements,
            evaluation_batches=EVALUATION_BATCHES,
            fingerprint=FINGERPRINT,
            tokens_per_micro_batch=8,
        )
        worker.send(cluster.WorkerMessage(epoch=EPOCH, ready=ready))
        await worker.hear("lease")
        await self.upload(LAYOUT_TEXT, b"{}")
        described = cluster.Description(
            job=JOB, lease=LEASE, layout=make_ref(LAYOUT_TEXT), files={CONFIG_FILE: make_ref(b"{}")}
        )
        worker.send(cluster.WorkerMessage(epoch=EPOCH, description=described))
        await worker.hear("resend")  # the layout is known now, and its chunks are missing
        return worker

    async def train(self) -> Attending:
        """Let a worker attend that has made the initial weights, loaded them, and got a lease to train."""
        worker = await self.attend()
        self._stream.send(initial_weights(LEASE))
        await self._wait_for_checkpoint()
        loaded = cluster.WeightsLoaded(job=JOB, generation=1)
        worker.send(cluster.WorkerMessage(epoch=EPOCH, weights_loaded=loaded))
        await worker.hear("phase: TRAIN")
        return worker

    async def stop(self) -> None:
        """Stop, and check that nothing has ended the aggregator."""
        await self._leave()
        leads = not self._running.done()
        self._running.cancel()
        with suppress(asyncio.CancelledError):
            await self._running
        await self._service.stop()
        assert leads, "the aggregator has ended"


class ServedOptimizer(ServedRole):
    """An optimizer."""

    async def start(self) -> None:
        """Start with an empty state folder."""
        metrics = OptimizerMetrics(AggregatorMetrics().registry)
        self._service = OptimizerService(name="optimizer", state_dir=self._state_dir, metrics=metrics)
        await self._service.start()
        self.port = Port(self._service.handlers())

    async def attend(self) -> Attending:
        """Let an aggregator attend that has opened the job and announced its initial weights."""
        await self.upload(LAYOUT_TEXT, b"{}")
        aggregator = self._open("/tiermesh.Optimizer/Attend")
        hello = make_hello(
            Role.AGGREGATOR,
            "aggregator",
            incarnation=INCARNATION,
            epoch_seen=EPOCH,
            cluster=CLUSTER,
            heartbeat_seconds=5.0,
        )
        aggregator.send(cluster.OptimizerCommand(epoch=EPOCH, hello=hello))
        opened = cluster.Open(job=JOB, spec_json=SPEC)
        aggregator.send(cluster.OptimizerCommand(epoch=EPOCH, open=opened))
        await aggregator.hear("optimizer_status")
        described = cluster.Initialise(
            job=JOB, layout=make_ref(LAYOUT_TEXT), files={CONFIG_FILE: make_ref(b"{}")}
        )
        aggregator.send(cluster.OptimizerCommand(epoch=EPOCH, initialise=described))
        await aggregator.hear("RECEIVING")
        return aggregator

    async def train(self) -> Attending:
        """Let an aggregator attend that has sent the initial weights."""
        aggregator = await self.attend()
        self._open("/tiermesh.Optimizer/Exchange", self.metadata).send(initial_weights(0))
        await self._wait_for_checkpoint()
        return aggregator

    async def stop(self) -> None:
        """Stop."""
        await self._leave()
        await self._service.stop()


class ServedShard(ServedRole):
    """The only shard of an aggregator."""

    metadata: Metadata = (*ServedRole.metadata, (SESSION_KEY, "1"))

    async def start(self) -> None:
        """Start with an empty state folder."""
        self._service = ShardService(name="shard", state_dir=self._state_dir, metrics=AggregatorMetrics())
        await self._service.start()
        self.port = Port(self._service.handlers())

    async def attend(self) -> Attending:
        """Let an aggregator attend, and a worker of it, with the job's tensors allocated."""
        await self.upload(SPEC.encode(), LAYOUT_TEXT)
        aggregator = self._open("/tiermesh.Shard/Attend")
        hello = make_hello(
            Role.AGGREGATOR,
            "aggregator",
            incarnation=INCARNATION,
            epoch_seen=EPOCH,
            cluster=CLUSTER,
            heartbeat_seconds=5.0,
        )
        aggregator.send(orders(plane.PlaneOrder(hello=hello)))
        opened = plane.OpenPart(opening=1, job=JOB, spec_json=SPEC, layout=make_ref(LAYOUT_TEXT))
        attends = plane.WorkerAttends(session=1, incarnation=INCARNATION, name="worker")
        aggregator.send(orders(plane.PlaneOrder(open_part=opened), plane.PlaneOrder(worker_attends=attends)))
        await aggregator.hear("part_opened")
        return aggregator

    async def train(self) -> Attending:
        """Let an aggregator attend that has sent the weights of a checkpoint, and asked for a copy."""
        aggregator = await self.attend()
        await self.upload(LAYOUT_TEXT)
        opened = plane.OpenPart(
            opening=2, job=JOB, spec_json=SPEC, layout=make_ref(LAYOUT_TEXT), tensors=make_ref(PART)
        )
        aggregator.send(orders(plane.PlaneOrder(open_part=opened)))
        await aggregator.hear("part_opened")
        await self.upload(PART)
        made = plane.PlaneOrder(make_weights=plane.MakeWeights(job=JOB, generation=1))
        copied = plane.PlaneOrder(copy=plane.CopyPart(job=JOB, copy=1))
        aggregator.send(orders(made, copied))
        return aggregator

    async def stop(self) -> None:
        """Stop."""
        await self._leave()
        await self._service.stop()


class ServedWorker(ServedRole):
    """A worker of the first stage of two; the peer is that of the second stage."""

    async def start(self) -> None:
        """Start without a row."""
        self._links = RowLinks("worker", INCARNATION, Security())
        check = NeighbourCheck(has_job=lambda: False)
        self.port = TensorPort({**self._links.handlers(), NEIGHBOURS_METHOD: check.serve})

    async def attend(self) -> Attending:
        """Form the row, and let the peer open its stream."""
        self._links.set_row(ROW, EPOCH)
        peer = self._open(PASS_METHOD)
        peer.send_bytes(encode_state(STATE))
        await asyncio.wait_for(peer.answered.wait(), LIMIT_SECONDS)
        return peer

    async def train(self) -> Attending:
        """Let the peer open its stream, and open a lease."""
        peer = await self.attend()
        lease = cluster.Lease(job=JOB, generation=1, step=1, lease=LEASE, row=ROW.row, phase=cluster.TRAIN)
        self._links.open_lease(lease, ARRAYS)
        return peer

    async def stop(self) -> None:
        """Leave the row."""
        self._links.set_row(None, EPOCH)
        await self._leave()


def initial_weights(lease: int) -> Chunk:
    """Return the only chunk of the initial weights."""
    header = ChunkHeader(
        job=JOB, epoch=EPOCH, lease=lease, kind=INITIAL_WEIGHTS, elements=LAYOUT.elements, dtype=FLOAT32
    )
    payload = bytes(4 * LAYOUT.elements)
    header.crc32c = google_crc32c.value(payload)
    return Chunk(header=header, payload=payload)


def orders(*each: plane.PlaneOrder) -> plane.PlaneOrders:
    """Return orders to a shard as one message."""
    return plane.PlaneOrders(epoch=EPOCH, orders=each)


@asynccontextmanager
async def serving(kind: type[ServedRole]) -> AsyncIterator[ServedRole]:
    """Serve a role in a new state folder, and check afterwards that nothing has gone wrong in the background."""
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    with TemporaryDirectory(dir=STATE_FOLDERS, prefix="tiermesh-fuzz-") as folder:
        role = kind(Path(folder))
        await role.start()
        try:
            yield role
        finally:
            await asyncio.wait_for(role.stop(), LIMIT_SECONDS)
        assert not errors, errors


def serves(kind: type[ServedRole]) -> Sequence[str]:
    """Return the full names of the services that a role serves."""
    names = {
        ServedAggregator: AggregatorService.service_names,
        ServedOptimizer: OptimizerService.service_names,
        ServedShard: ShardService.service_names,
        ServedWorker: (PASS_METHOD.split("/")[1],),
    }
    return names[kind]
