"""Workers in this process that are a row: their cores and device threads. Their aggregator is the test."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np

from mesh.device import Mesh, open_mesh
from plane.lease_sums import LeaseSums
from plane.sum_queue import SumQueue
from protos import cluster_pb2 as pb
from protos.tensors_pb2 import WEIGHTS, ChunkHeader
from services.config.job import JobConfig
from services.pipeline.exchange import ArraySizes, ExactArray, ReceivedKind
from services.pipeline.schedule import Pass
from services.pipeline.split import StageRun
from services.runtime.metrics import WorkerMetrics
from services.tensors.chunk_messages import pack_chunk
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.stripes import Stripe
from tests.support.compute_thread import in_thread
from worker.core import events as ev
from worker.core.worker import WorkerCore
from worker.device_thread import DeviceThread
from worker.file_exchange import ModelFiles
from worker.job_on_mesh import JobBuilder
from worker.row_exchange import LeaseDropped

LIMIT_SECONDS = 60
JOB = "a"

Body = TypeVar("Body")


class MeshOfRow:
    """A mesh with a submesh for each of several workers, which stand for processes with meshes of their own.

    Args:
        workers: number of workers; one alone gets a mesh of the shape it asks for.

    Attributes:
        opened: the meshes that workers have opened.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._lock = threading.Lock()
        self._mesh: Mesh | None = None
        self._free: list[Mesh] = []
        self.opened: list[Mesh] = []

    def open(self, mesh_shape: tuple[int, int], **settings: Any) -> Mesh:
        """Return a worker's mesh."""
        if self._workers == 1:
            self.opened.append(open_mesh(mesh_shape, **settings))
            return self.opened[-1]
        with self._lock:
            if self._mesh is None:
                self._mesh = open_mesh((self._workers * mesh_shape[0], mesh_shape[1]), **settings)
                self._free = list(self._mesh.split(self._workers, settings["axes"]))
            mesh = self._free.pop(0)
        assert mesh.shape == mesh_shape
        vars(mesh)["close"] = partial(self._free.append, mesh)
        self.opened.append(mesh)
        return mesh

    def close(self) -> None:
        """Close the mesh, after the workers."""
        if self._mesh is not None:
            self._mesh.close()


class ArrayBoard:
    """Where the workers of a row leave arrays for each other.

    Attributes:
        dropped: leases that were dropped.
        lost: what is raised where a worker takes an array; None for nothing.
    """

    def __init__(self) -> None:
        self._arrays: dict[tuple[Any, ...], ExactArray] = {}
        self._changed = threading.Condition()
        self._waiting: set[int] = set()
        self.dropped: set[int] = set()
        self.lost: Exception | None = None

    def open_exchange(self, lease: pb.Lease, config: JobConfig, sizes: ArraySizes) -> BoardExchange:
        """Open the exchange of a lease."""
        del config, sizes
        return BoardExchange(self, lease.lease)

    def put(self, key: tuple[Any, ...], array: ExactArray) -> None:
        """Leave an array."""
        with self._changed:
            assert key not in self._arrays, f"{key}: sent twice"
            self._arrays[key] = array.copy()
            self._changed.notify_all()

    def take(self, key: tuple[Any, ...]) -> ExactArray:
        """Wait for an array, unless its lease is dropped."""
        with self._changed:
            if self.lost is not None:
                raise self.lost
            self._waiting.add(key[0])
            self._changed.notify_all()
            came = self._changed.wait_for(
                lambda: key in self._arrays or key[0] in self.dropped, 2 * LIMIT_SECONDS
            )
            assert came, f"{key}: never sent"
            if key[0] in self.dropped:
                raise LeaseDropped(f"lease {key[0]}: dropped")
            return self._arrays.pop(key)

    def wait_for_waiting(self, lease: int) -> None:
        """Return when a worker has begun to wait for an array of a lease."""
        with self._changed:
            assert self._changed.wait_for(lambda: lease in self._waiting, LIMIT_SECONDS)

    def drop(self, lease: int) -> None:
        """Wake those that wait for arrays of a lease."""
        with self._changed:
            self.dropped.add(lease)
            self._changed.notify_all()


@dataclass(frozen=True)
class BoardExchange:
    """A lease's exchange over an `ArrayBoard`."""

    board: ArrayBoard
    lease: int

    def send(self, to: Pass, array: ExactArray) -> None:
        """Send a pass its array."""
        self.board.put((self.lease, to), array)

    def receive(self, one: Pass) -> ExactArray:
        """Return a pass's array."""
        return self.board.take((self.lease, one))

    def send_tied(self, micro_batch: int, array: ExactArray) -> None:
        """Send the tied part."""
        self.board.put((self.lease, "tied", micro_batch), array)

    def receive_tied(self, micro_batch: int) -> ExactArray:
        """Return the tied part."""
        return self.board.take((self.lease, "tied", micro_batch))

    def worker_of(self, range_index: int) -> str:
        """Return a name for the worker of a range."""
        return f"the worker of range {range_index}"

    def sender_of(self, kind: ReceivedKind) -> str:
        """Return a name for the worker that sends arrays of a kind."""
        return f"the sender of each {kind}"

    def drop(self) -> None:
        """Wake what waits."""
        self.board.drop(self.lease)

    def close(self) -> None:
        """End the passes."""


class RowWorker:
    """A worker without sockets.

    Args:
        config: config of the job.
        stages: its stages; None for the whole model.
        board: where it exchanges arrays.
        builder: builder of jobs.
    """

    def __init__(
        self,
        config: JobConfig,
        stages: StageRun | None,
        board: ArrayBoard,
        builder: JobBuilder,
    ) -> None:
        self.config = config
        self.core = WorkerCore(name=str(stages))
        self.metrics = WorkerMetrics()
        self.messages: list[Any] = []
        self._from_device: queue.Queue[ev.Input | ModelFiles] = queue.Queue()
        self.queue = SumQueue()
        self.sums = LeaseSums()
        self.device = DeviceThread(
            self._from_device.put, self.metrics, builder, sums=self.sums, open_exchange=board.open_exchange
        )
        self.feed(ev.Connected())
        self.order(pb.Welcome(name="agg"))
        self.join(stages)

    def join(self, stages: StageRun | None) -> None:
        """Order it to build stages."""
        ordered = stages or StageRun(0, 0)
        self.is_first = ordered.first == 0
        spec_json = self.config.to_json()
        self.order(pb.Join(job=JOB, spec_json=spec_json, first_stage=ordered.first, stages=ordered.count))

    def order(self, body: Any) -> None:
        """Give it an order."""
        self.feed(ev.Ordered(1, body))

    def feed(self, event: ev.Input, chunk: Any = None) -> None:
        """Give its core an input and carry out the effects."""
        for effect in self.core.handle(event):
            if isinstance(effect, ev.PlaneOrder):
                self.queue.carry_out(effect)
                continue
            match effect:
                case ev.ToAggregator():
                    self.messages.append(effect.body)
                case ev.Build():
                    self.device.build(effect.job, self.config.to_json(), {}, effect.stages, effect.number)
                case ev.OpenRow() | ev.CloseRow():
                    pass
                case _:
                    self.device.carry_out(effect, chunk)

    def wait_for(self, kind: type[Body]) -> Body:
        """Wait for its next message of a kind; messages before it are dropped."""
        while True:
            while self.messages:
                message = self.messages.pop(0)
                if isinstance(message, kind):
                    return message
                assert not isinstance(message, pb.Failure), message
            self.turn()

    def turn(self) -> None:
        """Pass its core what its device thread reports next."""
        event = self._from_device.get(timeout=LIMIT_SECONDS)
        if isinstance(event, ModelFiles):
            event = ev.InitialWeightsMade(event.lease, event.layout, dict(event.files))
        self.feed(event)

    def take_pieces(self, out: Float32Array) -> int:
        """Write all pieces that it may send now to a layout's array, and return the number of elements."""
        elements = 0
        while headers := self.queue.take(Stripe(), 1):
            header = headers[0]
            found = self.sums.find(header.lease)
            assert found is not None
            place = slice(header.offset, header.offset + header.elements)
            assert np.isnan(out[place]).all(), "sent once"
            out[place] = found.piece(header.offset, header.elements)
            elements += header.elements
        return elements

    def load(self, weights: Float32Array, step: int) -> None:
        """Send it its pieces of weights."""
        built = self.core.job.built if self.core.job else None
        assert built is not None
        for place in range(len(built.loads)):
            piece = built.loads[place]
            header = ChunkHeader(
                job=JOB, epoch=1, generation=1, step=step, kind=WEIGHTS, dtype=built.wire.weights
            )
            chunk = pack_chunk(header, piece.chunk, weights[piece.offset : piece.offset + piece.elements])
            chunk.header.offset = piece.offset
            self.feed(ev.WeightsArrived(chunk.header), chunk)


@dataclass
class Row:
    """Workers that have all stages, and an aggregator's orders to them.

    Attributes:
        workers: the workers, in the order of their stages.
        mesh: their meshes.
        board: where they exchange arrays.
        elements: number of elements of the layout.
        covered: number of elements of the workers' parts: all, unless others have been left out.
        row: id of the row; 0 for one worker with the whole model.
    """

    workers: Sequence[RowWorker]
    mesh: MeshOfRow
    board: ArrayBoard
    elements: int
    covered: int
    row: int
    _lease: int = field(default=0, init=False)

    @classmethod
    def build(
        cls, config: JobConfig, stages: Sequence[StageRun | None], board: ArrayBoard | None = None
    ) -> Row:
        """Build workers, and introduce them to each other.

        Args:
            config: config of the job.
            stages: stages of each; one None for the whole model.
            board: where they exchange arrays; None for a new one.
        """
        board, mesh = board or ArrayBoard(), MeshOfRow(len(stages))
        builder = JobBuilder(in_thread(open_mesh=mesh.open))
        row = cls.introduce([RowWorker(config, each, board, builder) for each in stages], mesh, board)
        assert row.covered == row.elements
        return row

    @classmethod
    def introduce(cls, workers: Sequence[RowWorker], mesh: MeshOfRow, board: ArrayBoard) -> Row:
        """Wait until workers have built their stages, and introduce them to each other."""
        ready = [worker.wait_for(pb.Ready) for worker in workers]
        assert len({each.layout_hash for each in ready}) == 1
        elements = ready[0].elements
        if not ready[0].stages:
            return cls(workers, mesh, board, elements, elements, 0)
        for worker in workers:
            worker.order(pb.Row(job=JOB, row=1))
        covered = sum(part.elements for each in ready for part in each.parts)
        return cls(workers, mesh, board, elements, covered, 1)

    def lease(self, phase: Any, *, to: Sequence[int] | None = None, step: int = 0, **fields: Any) -> int:
        """Grant a lease to all workers, or to some; return its id."""
        self._lease += 1
        for worker in self.workers if to is None else [self.workers[each] for each in to]:
            lease = pb.Lease(
                job=JOB, generation=1, step=step, lease=self._lease, phase=phase, row=self.row, **fields
            )
            worker.order(lease)
        return self._lease

    def initialise(self, out: Float32Array | None = None) -> Float32Array:
        """Return the initial weights, of which each worker sends its part; `out` takes them if it is given."""
        lease = self.lease(pb.INITIALISE)
        if self.workers[0].is_first:
            self.workers[0].wait_for(pb.Description)
        weights = self._blank(out)
        everything = pb.Range(first=0, count=1 << 20)
        sent = 0
        for worker in self.workers:
            worker.order(pb.Resend(job=JOB, lease=lease, chunks=[everything]))
            while not (elements := worker.take_pieces(weights)):
                worker.turn()
            sent += elements
            worker.order(pb.Revoke(job=JOB, lease=lease))
        assert sent == self.covered
        return weights

    def load(self, weights: Float32Array, step: int = 0) -> None:
        """Give all workers a version's weights."""
        for worker in self.workers:
            worker.load(weights, step)
        for worker in self.workers:
            worker.wait_for(pb.WeightsLoaded)

    def train(
        self, out: Float32Array | None = None, *, step: int = 0, **fields: Any
    ) -> tuple[Float32Array, list[pb.Computed]]:
        """Return the sum of a lease's gradients, and what each worker reports; `out` takes the sum if it is given."""
        lease = self.lease(pb.TRAIN, step=step, **fields)
        computed = [worker.wait_for(pb.Computed) for worker in self.workers]
        total, sent = self._blank(out), 0
        for worker in self.workers:
            worker.order(pb.Window(job=JOB, generation=1, step=step, limit=1 << 20))
            sent += worker.take_pieces(total)
            worker.order(pb.Revoke(job=JOB, lease=lease))
        assert sent == self.covered
        return total, computed

    def evaluate(self, **fields: Any) -> list[pb.BatchLoss]:
        """Return the losses of held-out batches."""
        self.lease(pb.EVALUATE, **fields)
        reports = [worker.wait_for(pb.Evaluated) for worker in self.workers]
        return [loss for report in reports for loss in report.losses]

    def verify(self, indices: Sequence[int]) -> list[list[pb.Checksum]]:
        """Return the checksums of micro-batches that each worker reports."""
        self.lease(pb.VERIFY, checksums=indices)
        return [list(worker.wait_for(pb.Computed).checksums) for worker in self.workers]

    def _blank(self, out: Float32Array | None) -> Float32Array:
        blank = np.empty(self.elements, np.float32) if out is None else out
        blank.fill(np.nan)
        return blank

    def close(self) -> None:
        """End the device threads."""
        for worker in self.workers:
            worker.device.close()
        self.mesh.close()


MakeRow = Callable[..., Row]
