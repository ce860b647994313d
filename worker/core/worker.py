"""The worker's mind: which job is on its mesh, which weights it holds, which leases it owes. Pure.

It keeps the sums of its leases until weights of another version begin to arrive: that is how it learns of a COMMIT. A
lease is begun with the first chunk of its version's weights, and may be granted before that has come.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from protos import cluster_pb2 as pb
from protos.tensors_pb2 import GRADIENT, INITIAL_WEIGHTS, WEIGHTS, ChunkHeader, NonFinite
from services.protocol.plan import WINDOW_CHUNKS
from services.protocol.versions import PROTOCOL_VERSION
from services.tensors.chunk_ranges import from_ranges
from services.tensors.layout import chunk_count, chunk_range
from worker.core.events import (
    Build,
    BuildDue,
    BuildFailed,
    BuildLater,
    Built,
    Connected,
    Described,
    Disconnected,
    DropJob,
    DropLease,
    Effect,
    Input,
    LeaseComputed,
    LeaseEvaluated,
    LeaseFailed,
    Load,
    Loaded,
    NodeReady,
    Ordered,
    Perform,
    Say,
    WeightsArrived,
)

RETRY_SECONDS, LONGEST_RETRY_SECONDS = 5.0, 300.0
"""A mesh that can't be opened is tried again after so long, each time after twice as long, up to the other."""
MOST_LEASES = 256
"""That a worker takes: an aggregator grants a few, whose number grows with that of dead workers."""
MOST_WINDOWS = 8
"""Versions whose windows are kept: one is needed, and that of the next step."""


@dataclass
class HeldLease:
    """A lease that this worker owes, and what of it is still to be sent.

    Attributes:
        lease: as granted.
        queue: chunks to send, in the agreed order.
        ready_from: chunks from this one to the last are in place.
        begun: whether it is being performed; before, the first of its weights is waited for.
        losses: of the node's micro-batches, once the last chunk to be sent, chunk 0, is in place.
        non_finite: those of them whose gradients are not finite; known with the losses.
    """

    lease: pb.Lease
    queue: list[int]
    ready_from: int
    begun: bool = False
    losses: tuple[float, ...] = ()
    non_finite: tuple[NonFinite, ...] = ()

    @property
    def version(self) -> tuple[int, int]:
        """(generation, step) of the weights that it is computed with."""
        return self.lease.generation, self.lease.step


@dataclass
class BuiltJob:
    """The job on this worker's mesh.

    Attributes:
        job: its id.
        built: what was said of it when it was built; None while it is being built.
        receiving: the version whose chunks arrived last.
        received: those chunks.
        holds: the version whose complete weights are on the mesh.
        unfit: why the mesh could not be opened; empty if it was, or was not tried yet.
        failures: how often it could not, until the pause between two tries is the longest.
        attempt: the BuildLater that is waited for; 0 for none.
    """

    job: str
    spec_json: str
    built: Built | None = None
    receiving: tuple[int, int] | None = None
    received: set[int] = field(default_factory=set)
    holds: tuple[int, int] | None = None
    unfit: str = ""
    failures: int = 0
    attempt: int = 0

    @property
    def chunks(self) -> int:
        """Chunks of its layout."""
        return chunk_count(self.built.elements) if self.built else 0


class WorkerCore:
    """The state machine of one worker process."""

    def __init__(self, *, name: str) -> None:
        self.name = name
        self.epoch = 0
        self.job: BuiltJob | None = None
        self.leases: dict[int, HeldLease] = {}
        self._limits: dict[tuple[int, int], int] = {}
        self._welcome = False
        self._attempts = 0
        self._out: list[Effect] = []

    def hello(self, incarnation: str) -> pb.Hello:
        """What this worker says first on a new connection."""
        built = self.job.built if self.job else None
        return pb.Hello(
            protocol=PROTOCOL_VERSION,
            role="worker",
            name=self.name,
            incarnation=incarnation,
            epoch_seen=self.epoch,
            layout_hash=built.layout_hash if built else "",
            shard_index=0,
            shard_count=1,
            fingerprint=built.fingerprint if built else {},
        )

    def next_chunk(self, lane: int = 0, lanes: int = 1) -> ChunkHeader | None:
        """The header of the next chunk to send, counted as sent; None: nothing may go now.

        Args:
            lane: number of the data stream that asks; it takes every `lanes`-th chunk of the layout.
            lanes: how many data streams there are.
        """
        if not self._welcome or self.job is None:
            return None
        for held in self.leases.values():
            place = next((at for at, chunk in enumerate(held.queue) if chunk % lanes == lane), None)
            if place is not None and self._may_go(held, held.queue[place]):
                return self._header(held, held.queue.pop(place))
        return None

    def handle(self, event: Input) -> list[Effect]:
        """Take one input; return what is to be done, in order."""
        match event:
            case WeightsArrived():
                self._weights(event.header)
            case NodeReady():
                held = self.leases.get(event.lease)
                if held is not None:
                    held.ready_from, held.losses, held.non_finite = (
                        event.chunk,
                        event.losses,
                        event.non_finite,
                    )
            case Ordered():
                self._ordered(event)
            case Loaded():
                self._loaded(event)
            case LeaseComputed():
                self._computed(event)
            case LeaseEvaluated():
                self._evaluated(event)
            case Described():
                if event.lease in self.leases and self.job is not None:
                    self.leases[event.lease].ready_from = 0
                    self._say(
                        pb.Description(
                            job=self.job.job,
                            lease=event.lease,
                            layout_json=event.layout_json,
                            files=event.files,
                        )
                    )
            case Built():
                self._built(event)
            case BuildFailed():
                self._build_failed(event)
            case BuildDue():
                if self.job is not None and self.job.attempt == event.attempt:
                    self.job.attempt = 0
                    self._out.append(Build(self.job.job, self.job.spec_json))
            case LeaseFailed():
                if event.lease in self.leases and self.job is not None:
                    self._drop_lease(event.lease)
                    self._say(pb.Failure(job=self.job.job, lease=event.lease, reason=event.reason))
            case Connected():
                self._welcome = False
                self._limits.clear()  # another aggregator has its own windows
            case Disconnected():
                self._welcome = False
                self._drop_leases()
        effects, self._out = self._out, []
        return effects

    def _say(
        self, body: pb.Ready | pb.Description | pb.WeightsLoaded | pb.Computed | pb.Evaluated | pb.Failure
    ) -> None:
        if self._welcome:
            self._out.append(Say(body))

    # ---- orders ----

    def _ordered(self, event: Ordered) -> None:
        body = event.body
        if event.epoch < self.epoch:
            return  # a former aggregator
        if isinstance(body, pb.Welcome):
            self.epoch, self._welcome = event.epoch, True
            return
        if not self._welcome or isinstance(body, pb.Heartbeat | pb.Hello):
            return
        if isinstance(body, pb.Join):
            self._join(body)
            return
        if self.job is None or self.job.job != body.job:
            return
        match body:
            case pb.Lease():
                self._leased(body)
            case pb.Revoke():
                self._drop_lease(body.lease)
            case pb.Resend():
                self._resend(body)
            case pb.Window():
                version = (body.generation, body.step)
                self._limits[version] = body.limit
                if len(self._limits) > MOST_WINDOWS:
                    del self._limits[min(self._limits)]
            case pb.Leave():
                self._drop_job()

    def _join(self, order: pb.Join) -> None:
        if self.job is not None and (self.job.job, self.job.spec_json) == (order.job, order.spec_json):
            if self.job.built is not None:
                self._tell_ready(self.job, self.job.built)
            elif self.job.unfit:
                self._tell_unfit(self.job)
            return
        self._drop_job()
        self.job = BuiltJob(order.job, order.spec_json)
        self._out.append(Build(order.job, order.spec_json))

    def _built(self, event: Built) -> None:
        if self.job is None or self.job.job != event.job:
            return
        self.job.built = event
        self.job.unfit, self.job.failures, self.job.attempt = "", 0, 0
        self._tell_ready(self.job, event)

    def _build_failed(self, event: BuildFailed) -> None:
        if self.job is None or self.job.job != event.job:
            return
        if not event.unfit:
            self.job = None
            self._say(pb.Failure(job=event.job, reason=event.reason))
            return
        self._attempts += 1
        job = self.job
        job.unfit, job.attempt = event.reason, self._attempts
        seconds = min(RETRY_SECONDS * 2**job.failures, LONGEST_RETRY_SECONDS)
        if seconds < LONGEST_RETRY_SECONDS:
            job.failures += 1
        self._tell_unfit(job)
        self._out.append(BuildLater(job.attempt, seconds))

    def _tell_unfit(self, job: BuiltJob) -> None:
        self._say(pb.Failure(job=job.job, reason=job.unfit, retries=True))

    def _tell_ready(self, job: BuiltJob, built: Built) -> None:
        generation, step = job.holds or (0, 0)
        self._say(
            pb.Ready(
                job=job.job,
                layout_hash=built.layout_hash,
                elements=built.elements,
                evaluation_batches=built.evaluation_batches,
                fingerprint=built.fingerprint,
                holds=job.holds is not None,
                generation=generation,
                step=step,
                tokens_per_micro_batch=built.tokens_per_micro_batch,
            )
        )

    def _drop_job(self) -> None:
        self._drop_leases()
        self._limits.clear()
        if self.job is not None:
            self.job = None
            self._out.append(DropJob())

    # ---- leases ----

    def _leased(self, lease: pb.Lease) -> None:
        assert self.job is not None
        if lease.lease in self.leases or self.job.built is None:
            return
        needs_weights = lease.phase != pb.INITIALISE
        receiving = self.job.receiving or (0, 0)
        if needs_weights and (lease.generation, lease.step) < receiving:
            return  # stale: the aggregator has gone on, or this worker has
        if len(self.leases) >= MOST_LEASES:
            reason = f"it holds {MOST_LEASES} leases already, the most that a worker takes"
            self._say(pb.Failure(job=lease.job, lease=lease.lease, reason=reason))
            return
        chunks = self.job.chunks
        queue: list[int] = []
        if lease.phase == pb.TRAIN:
            wanted = from_ranges(lease.chunks, chunks) if lease.chunks else range(chunks)
            queue = sorted(wanted, reverse=True)
        held = self.leases[lease.lease] = HeldLease(lease, queue, chunks)
        if not needs_weights or held.version == self.job.receiving:
            self._begin(held)

    def _begin(self, held: HeldLease) -> None:
        held.begun = True
        self._out.append(Perform(held.lease))

    def _resend(self, order: pb.Resend) -> None:
        held = self.leases.get(order.lease)
        if held is None or self.job is None:
            return
        wanted = {*held.queue, *from_ranges(order.chunks, self.job.chunks)}
        held.queue = sorted(wanted, reverse=held.lease.phase == pb.TRAIN)

    def _drop_lease(self, lease: int) -> None:
        held = self.leases.pop(lease, None)
        if held is not None and held.begun:
            self._out.append(DropLease(lease))

    def _drop_leases(self) -> None:
        for lease in list(self.leases):
            self._drop_lease(lease)

    def _drop_leases_before(self, version: tuple[int, int]) -> None:
        for held in list(self.leases.values()):
            if held.version < version:
                self._drop_lease(held.lease.lease)

    def _computed(self, event: LeaseComputed) -> None:
        held = self.leases.get(event.lease)
        if held is None:
            return
        lease = held.lease
        if lease.phase == pb.VERIFY:
            self._drop_lease(lease.lease)
        self._say(
            pb.Computed(
                job=lease.job,
                generation=lease.generation,
                step=lease.step,
                lease=lease.lease,
                seconds=event.seconds,
                tokens=event.tokens,
                checksums=event.checksums,
            )
        )

    def _evaluated(self, event: LeaseEvaluated) -> None:
        held = self.leases.pop(event.lease, None)
        if held is None:
            return
        lease = held.lease
        self._say(
            pb.Evaluated(
                job=lease.job,
                generation=lease.generation,
                step=lease.step,
                lease=lease.lease,
                losses=event.losses,
            )
        )

    def _may_go(self, held: HeldLease, chunk: int) -> bool:
        if chunk < held.ready_from:
            return False
        if held.lease.phase == pb.INITIALISE:
            return True
        assert self.job is not None
        limit = self._limits.get((held.lease.generation, held.lease.step), WINDOW_CHUNKS)
        return self.job.chunks - 1 - chunk < limit

    def _header(self, held: HeldLease, chunk: int) -> ChunkHeader:
        assert self.job is not None and self.job.built is not None
        lease = held.lease
        start, stop = chunk_range(self.job.built.elements, chunk)
        kind = GRADIENT if lease.phase == pb.TRAIN else INITIAL_WEIGHTS
        header = ChunkHeader(
            job=lease.job,
            epoch=self.epoch,
            generation=lease.generation,
            step=lease.step,
            lease=lease.lease,
            kind=kind,
            index=chunk,
            offset=start,
            elements=stop - start,
            dtype=self.job.built.wire.dtype_of(kind),
        )
        if chunk == 0:
            header.losses.extend(held.losses)
            header.non_finite.extend(held.non_finite)
        return header

    # ---- weights ----

    def _weights(self, header: ChunkHeader) -> None:
        job = self.job
        if job is None or job.built is None or header.job != job.job or header.epoch != self.epoch:
            return
        if header.kind != WEIGHTS or header.index >= job.chunks:
            return
        version = (header.generation, header.step)
        if version != job.receiving:
            if job.receiving is not None and version < job.receiving:
                return  # an older version, overtaken on the way
            job.receiving, job.holds = version, None
            job.received.clear()
            self._drop_leases_before(version)
            self._limits = {key: limit for key, limit in self._limits.items() if key >= version}
        if header.index in job.received:
            return
        job.received.add(header.index)
        self._out.append(Load(header))
        for held in self.leases.values():
            if held.version == version and not held.begun:
                self._begin(held)

    def _loaded(self, event: Loaded) -> None:
        job = self.job
        version = (event.generation, event.step)
        if job is None or job.job != event.job or job.receiving != version:
            return
        job.holds = version
        self._say(pb.WeightsLoaded(job=job.job, generation=event.generation, step=event.step))
