"""The simulated worker: its mesh is a dict of chunks, and its device runs one task after the other."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from plane.sum_queue import SumQueue
from protos import cluster_pb2 as pb
from protos.tensors_pb2 import INITIAL_WEIGHTS, ChunkHeader
from services.protocol.envelope import CheckOrder, CheckReport
from services.protocol.file_refs import make_ref
from services.tensors.layout import MAX_ELEMENTS, Layout
from services.tensors.layout_parts import LayoutParts
from services.tensors.reduction_tree import Node
from services.tensors.stripes import Stripe
from services.timeouts import STANDARD_TIMEOUTS
from tests.simulation.job_model import CRASH, SICK, TOKENS, SimulatedJob, node_sum, require
from tests.simulation.links import Link, is_end
from tests.simulation.network import Pipe
from tests.simulation.pipeline_model import join_weights
from tests.simulation.process import Process
from tests.simulation.row_links import RowLinks
from tests.simulation.scenario import CHUNKS_IN_FLIGHT, IMPOSTOR, LIAR, OVERSTATER
from tests.simulation.shard_streams import ShardStreams
from tests.simulation.simulated_device import WAIT, DeviceQueue, LeaseState, Task
from tests.simulation.simulated_mesh import SimulatedMesh
from tests.simulation.simulated_passes import perform_whole
from tests.simulation.simulated_stages import perform_in_row
from worker.core import events as ev
from worker.core.worker import WorkerCore

if TYPE_CHECKING:
    from tests.simulation.simulated_cluster import SimulatedCluster

OTHER_LAYOUT = make_ref(b"another layout")
"""Layout that an impostor claims."""
INVALID_SECONDS = (math.nan, math.inf, -1.0, 0.0, 1e300)
"""Invalid durations that the clocks of some workers report for a lease."""
REFUSED_SECONDS = 20.0
"""Time after which a user restarts a refused worker."""
UNFIT = 0.1
"""Probability that a mesh can't be opened, as long as there are faults."""
HUGE_LAYOUT = Layout.build([("weight", (MAX_ELEMENTS,), True, "weight", False)]).dumps().encode()
HUGE_LAYOUT_REF = make_ref(HUGE_LAYOUT)
"""What a worker describes that overstates the size of a job's model."""
LIE = 0.2
"""Probability that a liar corrupts a micro-batch."""


class SimulatedWorker(Process):
    """One life of a worker's process."""

    row_links_type: type[RowLinks] = RowLinks

    def __init__(
        self,
        cluster: SimulatedCluster,
        name: str,
        incarnation: int,
        fingerprint: str,
        code: str,
    ) -> None:
        super().__init__(cluster, f"{name}.{incarnation}")
        self.name = name
        self.core = WorkerCore(name=name)
        self.queue = SumQueue()
        self.device = DeviceQueue(self)
        self.lies = LIE * (name == LIAR)
        self.leaves = name == IMPOSTOR and cluster.scenario.impostor_leaves
        self.left = False
        self.layout = OTHER_LAYOUT if name == IMPOSTOR and cluster.scenario.impostor == "layout" else None
        self.overstates = cluster.scenario.overstates if name == OVERSTATER else ""
        if self.overstates == "Description":
            self.layout = HUGE_LAYOUT_REF
        self.sick_leases = 0
        self.failed_in_a_row = 0
        self.clock_rate = cluster.rng.choice((1.0, 1.0, 0.9, 1.5))
        self.fingerprint = fingerprint
        self.incarnation = f"{name}-{incarnation}"
        self._fingerprint = {"backend": "emulator", "kernel": fingerprint, "code": code}
        self.seconds = cluster.scenario.compute_seconds * 2 ** cluster.rng.randint(0, 3)
        self._reported_seconds = cluster.rng.choice((None, None, None, *INVALID_SECONDS))
        self._link: Link | None = None
        self._shard_streams: ShardStreams | None = None
        self._job: SimulatedJob | None = None
        self._mesh = SimulatedMesh(self.title)
        self.row_links = self.row_links_type(self)
        self._sums: dict[int, LeaseState] = {}
        self._heard_seconds = 0.0
        self._events = Pipe(
            cluster.loop,
            cluster.rng,
            self._from_device,
            receiver=self,
            seconds=0.001,
            injected=cluster.injected,
        )
        self.dial()
        self._beat()

    # ---- the link ----

    def dial(self) -> None:
        """Connect to the aggregator, and retry until it is alive."""
        aggregator = self.cluster.aggregator
        if aggregator is None or not aggregator.alive:
            self.later(0.01 + self.cluster.rng.random() ** 4, self.dial)
            return
        link = self._link = Link(self.cluster, aggregator.new_session())
        self._heard_seconds = self.now
        link.connect(
            up_control=lambda epoch, body: aggregator.worker_message(link, epoch, body),
            up_data=lambda header, payload: self._up_arrived(link, aggregator, header, payload),
            down_control=lambda epoch, body: self.ordered(link, epoch, body),
            down_data=lambda header, payload: self.received(link, aggregator, header, payload),
            lost_above=lambda reason: aggregator.worker_lost(link, reason),
            lost_below=lambda reason: self.link_lost(link, reason),
            ends=(aggregator, self),
        )
        self.cluster.links.append(link)
        self.feed(ev.Connected())
        hello = self.core.hello(self.incarnation)
        link.up_control.send(0, hello)

    def ordered(self, link: Link, epoch: int, body: Any) -> None:
        """Handle an order."""
        if not self.alive or link is not self._link:
            return
        if is_end(epoch):
            link.closed(body)
            return
        self._heard_seconds = self.now
        if self.leaves and isinstance(body, pb.Lease) and body.phase == pb.TRAIN:
            self.left = True
            self.die()
            return
        if isinstance(body, CheckOrder):
            self._take_check_order(link, body)
            return
        self.feed(ev.Ordered(epoch, body))
        if isinstance(body, pb.Welcome) and self.alive:
            self.cluster.obeyed(self.name, link.ends[0])
            self._open_data_streams(link, body)

    def refused(self, job: str) -> None:
        """Restart some time after a job has refused this worker, as a user does."""
        if self.is_sound and self.cluster.disk.is_running(job):
            # The others take over a row's stages before: else the worker might get the work that it fails at again.
            in_row = self.cluster.jobs[job].pipeline is not None
            self.later(REFUSED_SECONDS * (1 + 2 * in_row), self.die)

    def _open_data_streams(self, link: Link, welcome: pb.Welcome) -> None:
        if not welcome.shards:
            link.up_data.send(None, None)
        elif self._shard_streams is None:
            self._shard_streams = ShardStreams(self, link, len(welcome.shards))

    def _take_check_order(self, link: Link, order: CheckOrder) -> None:
        """Answer an order of a check: the device checks the mesh, after all else that it has to do."""

        def answer(report: CheckReport) -> None:
            link.up_control.send(self.core.epoch, report)

        if isinstance(order, pb.CheckLink):
            self.later(self.cluster.rng.random(), answer, pb.LinkChecked(number=order.number))
        elif self.core.job is not None:
            answer(pb.MeshChecked(number=order.number))
        else:
            check = self._check_mesh(partial(answer, pb.MeshChecked(number=order.number)))
            self.device.submit(pb.CHECK_THE_MESH, check)

    def _check_mesh(self, done: Callable[[], None]) -> Task:
        yield 10 * self.cluster.rng.random()
        done()

    def received(self, link: Link, aggregator: Any, header: ChunkHeader, payload: int) -> None:
        """Handle a chunk of weights from the aggregator."""
        if self.take_weights(link, header, payload) and aggregator.alive:
            aggregator.pump(link)

    def take_weights(self, link: Link, header: ChunkHeader, payload: int) -> bool:
        """Take a chunk of weights; return False if it belongs to an earlier connection."""
        if not self.alive or link is not self._link:
            return False
        self.feed(ev.WeightsArrived(header), payload)
        return True

    def _up_arrived(self, link: Link, aggregator: Any, header: ChunkHeader | None, payload: Any) -> None:
        aggregator.worker_sent(link, header, payload)
        self.pump()

    def link_lost(self, link: Link, reason: str) -> None:
        """Handle the loss of the link."""
        if self.alive and link is self._link:
            self._link = None
            if self._shard_streams is not None:
                self._shard_streams.abandon(reason)
                self._shard_streams = None
            self.feed(ev.Disconnected())
            self.later(0.01 + self.cluster.rng.random() ** 4 * 3, self.dial)

    def _beat(self) -> None:
        if self._link is not None:
            self._link.up_control.send(self.core.epoch, pb.Heartbeat(device=self.device.report()))
            silent = self.now - self._heard_seconds
            if silent > STANDARD_TIMEOUTS.deaf:
                self._link.abandon(f"silent for {silent:.1f} s")
        self.row_links.beat()
        self.later(STANDARD_TIMEOUTS.beat, self._beat)

    def thawed(self) -> None:
        """Continue after a freeze."""
        self.pump()

    def pump(self) -> None:
        """Send the chunks that may be sent now."""
        link = self._link
        if link is None or not self.running:
            return
        for stripe, stream in self._shard_streams or [(Stripe(), link)]:
            self._pump(stream, stripe)

    def _pump(self, link: Link, stripe: Stripe) -> None:
        """Send the chunks of a stripe that may be sent now."""
        while link.up and link.up_data.in_flight < CHUNKS_IN_FLIGHT:
            header = next(iter(self.queue.take(stripe, 1)), None)
            if header is None:
                return
            state = self._sums.get(header.lease)
            require(state is not None, f"{header} of a lease that is not kept")
            assert state is not None and self._job is not None
            if header.kind == INITIAL_WEIGHTS:
                link.up_data.send(header, self._job.weights[0][header.index])
                continue
            require(header.offset >= state.ready_from, f"chunk {header.index} is sent before it is computed")
            node = Node(state.lease.first, state.lease.count)
            key = state.key_in(header.offset, header.offset + header.elements)
            link.up_data.send(header, node_sum(node, header.index, key))

    # ---- the core ----

    def feed(self, event: ev.Input, payload: Any = None) -> None:
        """Give the core an input and carry out its effects."""
        if not self.alive:
            return
        for effect in self.effects(self.core.handle, event):
            self._carry_out(effect, payload)
        self.pump()

    def _carry_out(self, effect: ev.Effect, payload: Any) -> None:
        if isinstance(effect, ev.PlaneOrder):
            self.queue.carry_out(effect)
            return
        match effect:
            case ev.Load():
                self._mesh.put(effect.header, payload)
                self.device.submit(pb.LOAD_WEIGHTS, self._load())
                self.device.wake()
            case ev.Perform():
                state = self._sums[effect.lease.lease] = LeaseState(effect.lease)
                self._check_bound(effect.lease)
                self.device.submit(pb.COMPUTE_GRADIENTS, self._perform(state))
            case ev.DropLease():
                state = self._sums.pop(effect.lease)
                state.dropped = True
                if state.is_under_way:
                    self.row_links.drop(effect.lease)
                self.device.wake()
            case ev.ToAggregator():
                if self._link is not None:
                    self._link.up_control.send(self.core.epoch, effect.body)
            case ev.Build():
                self.device.submit(pb.BUILD_JOB, self._build(effect))
            case ev.BuildLater():
                self.later(effect.seconds, lambda: self.feed(ev.BuildDue(effect.attempt)))
            case ev.DropJob():
                self.device.submit(pb.CLOSE_MESH, self._drop())
            case ev.OpenRow():
                self.row_links.set_row(effect.row, self.cluster.jobs[effect.row.job].pipeline)
            case ev.CloseRow():
                self.row_links.set_row(None, None)

    def _check_bound(self, lease: pb.Lease) -> None:
        """Check that sums of one version only are kept (except initial weights, until there are newer ones)."""
        version = (lease.generation, lease.step)
        for other in self._sums.values():
            require(
                other.lease.phase != pb.TRAIN or (other.lease.generation, other.lease.step) == version,
                f"{self.title} still keeps lease {other.lease.lease} when it is to compute {version}",
            )

    # ---- the device ----

    def _from_device(self, event: ev.Input) -> None:
        if isinstance(event, ev.LeaseEvaluated):
            self._sums.pop(event.lease, None)
        self.feed(event)

    def _build(self, effect: ev.Build) -> Task:
        for here in (0, 1):
            self.report(ev.Fetching(effect.job, "training_config.data_path", here, 1))
        yield self.cluster.rng.random() * (not self.overstates)  # a liar builds nothing, and answers first
        if self.cluster.faults.active and self.cluster.rng.random() < UNFIT:
            reason = "the mesh can't be opened"
            self.report(ev.BuildFailed(effect.job, reason, unfit=True, number=effect.number))
            return
        if self.cluster.compute_dies():
            self.cluster.checks.compute_died(effect.job)
            self.report(ev.BuildFailed(effect.job, CRASH, died=True, number=effect.number))
            return
        self._job = job = self.cluster.jobs[effect.job]
        pipeline = job.pipeline
        require((effect.stages is None) == (pipeline is None), f"{self.title} is to build {effect.stages}")
        parts = shared = LayoutParts(())
        if pipeline is not None and effect.stages is not None:
            if effect.stages.count > pipeline.most_stages:
                self.cluster.injected["stages too large"] += 1
                reason = f"{effect.stages} do not fit"
                self.report(ev.BuildFailed(effect.job, reason, too_large=True, number=effect.number))
                return
            parts, shared = pipeline.gradients_of(effect.stages), pipeline.shared_of(effect.stages)
        built = ev.Built(
            job=job.id,
            layout_hash=job.layout.hash if self.layout is None else self.layout.sha256,
            elements=job.elements + 1000 * (self.overstates == "Ready"),
            evaluation_batches=job.evaluation_batches if job.counts_batches(effect.stages) else 0,
            tokens_per_micro_batch=TOKENS,
            fingerprint=self._fingerprint,
            stages=effect.stages,
            parts=parts,
            shared=shared,
            number=effect.number,
        )
        self._mesh.build(built.loads)
        self.report(built)

    def _drop(self) -> Task:
        self._mesh.clear()
        return
        yield

    def _load(self) -> Task:
        """Load the chunks that have arrived onto the mesh, and report a complete version."""
        yield 0.0
        self._take()

    def _take(self) -> None:
        for job, version in self._mesh.load():
            self.report(ev.Loaded(job, version))

    def await_pieces(self, state: LeaseState, parts: LayoutParts) -> Task:
        """Wait for each piece of these parts in layout order, as a pass does. The lease may be dropped meanwhile."""
        version = (state.lease.generation, state.lease.step)
        for piece in self._mesh.pieces_in(parts):
            while True:
                self._take()
                if state.dropped or self._mesh.version_of(piece) == version:
                    break
                yield WAIT
            if state.dropped:
                return
            yield self.seconds * self.cluster.rng.random() * 0.1

    def await_weights(self, state: LeaseState) -> Task:
        """Wait for all weights. Those that the lease has begun with must be there."""
        lease, job = state.lease, self.cluster.jobs[state.lease.job]
        version = (lease.generation, lease.step)
        require(
            any(self._mesh.version_of(piece) == version for piece in self._mesh.pieces),
            f"{self.title} begins lease {lease.lease} of {version} on weights of other versions",
        )
        yield from self.await_pieces(state, LayoutParts([(0, job.elements)]))

    def weights_of(self, lease: pb.Lease, parts: LayoutParts) -> dict[int, int]:
        """Return the weights of parts of the layout, by chunk. Check that they are those of the lease's version."""
        job = self.cluster.jobs[lease.job]
        require(self._job is job, f"{self.title} computes {lease.job} with {self._job} on its mesh")
        version = (lease.generation, lease.step)
        weights: dict[int, int] = {}
        for piece in self._mesh.pieces_in(parts):
            found = self._mesh.version_of(piece)
            require(
                found == version,
                f"{self.title} computes lease {lease.lease} of {version} on weights {found}",
            )
            weights = join_weights(weights, {piece.chunk: self._mesh.weights_of(piece)})
        return weights

    def whole_weights(self, lease: pb.Lease) -> tuple[int, ...]:
        """Return the weights of the whole layout."""
        weights = self.weights_of(lease, LayoutParts([(0, self.cluster.jobs[lease.job].elements)]))
        return tuple(weights.values())

    def _perform(self, state: LeaseState) -> Task:
        lease = state.lease
        if state.dropped:
            return
        job = self.cluster.jobs[lease.job]
        if self.cluster.rng.random() < 0.5 and self.falls_sick():
            yield self.seconds
            self.fail(lease, SICK)
            return
        if self.cluster.compute_dies():
            yield self.seconds
            self.lose_compute(lease)
            return
        if lease.row:
            yield from perform_in_row(self, job, state)
        else:
            yield from perform_whole(self, job, state)

    @property
    def is_sound(self) -> bool:
        """Whether the worker may rejoin after a user restarted it."""
        return self.fingerprint == "same" and not self.lies and self.name != IMPOSTOR

    def report_trained(self, lease: pb.Lease, seconds: float, checksums: tuple[pb.Checksum, ...]) -> None:
        """Report that a TRAIN lease is computed, with the time that this worker's clock has measured."""
        if self._reported_seconds is not None:
            seconds = self._reported_seconds
        self.failed_in_a_row = 0
        computed = ev.LeaseComputed(lease.lease, seconds * self.clock_rate, 100 * lease.count, checksums)
        self.report(computed)

    def falls_sick(self) -> bool:
        """Return whether a lease fails on this worker now, which happens a few times."""
        sick = self.sick_leases > 0
        self.sick_leases -= sick
        return sick

    def report(self, event: ev.Input) -> None:
        """Give the core what the device has to say, a little later."""
        self._events.send(event)

    def lose_neighbour(self, lease: pb.Lease, neighbour: str) -> None:
        """Fail a lease because another worker of the row can't be reached."""
        self.cluster.injected["neighbour lost"] += 1
        self.report(ev.LeaseFailed(lease.lease, "the link is broken", neighbour))

    def lose_compute(self, lease: pb.Lease) -> None:
        """Have the compute process die with a lease."""
        self.cluster.checks.compute_died(lease.job)
        self.report(ev.LeaseFailed(lease.lease, CRASH, died=True))

    def fail(self, lease: pb.Lease, reason: str) -> None:
        """Fail a lease."""
        self.failed_in_a_row += 1
        self.cluster.injected["lease fails"] += 1
        self.cluster.checks.lease_failed(self.name, lease)
        self.report(ev.LeaseFailed(lease.lease, reason))
