"""The worker's core: which job is on its mesh, which weights it has, and which leases it holds.

A worker keeps the sums of its leases until weights of another version begin to arrive: that is how it learns of a
COMMIT. A lease begins with the first chunk of its version's weights. It may be granted before that chunk has arrived.
"""

from __future__ import annotations

from collections.abc import Iterable

from protos import cluster_pb2 as pb
from protos import plane_pb2 as plane
from protos.tensors_pb2 import ChunkHeader, Findings
from services.pipeline.split import StageRun
from services.protocol.envelope import WorkerBody
from services.protocol.hello import Role, make_hello
from services.protocol.versions import Version
from worker.core.events import (
    Build,
    BuildDue,
    BuildFailed,
    BuildLater,
    Built,
    CloseRow,
    Connected,
    DamagedInput,
    Disconnected,
    DropJob,
    DropLease,
    Effect,
    Fetching,
    InitialWeightsMade,
    Input,
    InputDamaged,
    LeaseComputed,
    LeaseEvaluated,
    LeaseFailed,
    Load,
    Loaded,
    LoadFailed,
    NodeReady,
    OpenRow,
    Ordered,
    Perform,
    Printed,
    ToAggregator,
    WeightsArrived,
)
from worker.core.job import MOST_REPAIRS, JoinedJob, read_version
from worker.core.leases import MOST_LEASES, HeldLease, SendWindows, check_work


class WorkerCore:
    """The state machine of one worker process.

    Args:
        name: stable name of the worker, for people.

    Attributes:
        name: as above.
        epoch: epoch of the newest aggregator that has welcomed this worker; orders of older ones are ignored.
        cluster: cluster of that aggregator; before the first, that of the worker's former process.
        job: the job that the worker has joined, None without one.
        leases: the leases it holds, by their ids.
        windows: how far ahead it may send.
    """

    def __init__(self, *, name: str) -> None:
        self.name = name
        self.epoch = 0
        self.cluster = ""
        self.job: JoinedJob | None = None
        self.leases: dict[int, HeldLease] = {}
        self.windows = SendWindows()
        self._is_welcome = False
        self._attempts = 0
        self._builds = 0
        self._effects: list[Effect] = []

    def hello(self, incarnation: str) -> pb.Hello:
        """Return the first message of a new connection.

        Args:
            incarnation: id of this process start.
        """
        built = self.job.built if self.job else None
        stages = self.job.stages if self.job else None
        has_stages = {}
        if self.job is not None and stages is not None:
            has_stages = {"job": self.job.job, "first_stage": stages.first, "stages": stages.count}
        return make_hello(
            Role.WORKER,
            self.name,
            incarnation=incarnation,
            epoch_seen=self.epoch,
            cluster=self.cluster,
            layout_hash=built.layout_hash if built else "",
            fingerprint=built.fingerprint if built else {},
            **has_stages,
        )

    def handle(self, event: Input) -> list[Effect]:
        """Take one input and return its effects, in the order in which they must be carried out."""
        match event:
            case WeightsArrived():
                self._receive_weights(event.header)
            case NodeReady():
                self._note_ready(event)
            case Ordered():
                self._obey(event)
            case Loaded():
                self._note_loaded(event)
            case LeaseComputed():
                self._report_computed(event)
            case LeaseEvaluated():
                self._report_evaluated(event)
            case InitialWeightsMade():
                self._report_initial_weights(event)
            case Built():
                self._note_built(event)
            case BuildFailed():
                self._note_build_failed(event)
            case LoadFailed():
                if self.job is not None and self.job.job == event.job and self.job.built is not None:
                    self._give_up(self.job, event.reason, too_large=event.too_large, died=event.died)
                    self._drop_job()
            case InputDamaged():
                self._note_damaged(event)
            case Fetching():
                if self.job is not None and self.job.job == event.job and self.job.is_building:
                    self._report_fetching(event)
            case Printed():
                if self.job is not None and self.job.job == event.job:
                    self._send(pb.Printed(job=event.job, lines=event.lines))
            case BuildDue():
                if self.job is not None and self.job.attempt == event.attempt:
                    self.job.attempt = 0
                    self._build(self.job)
            case LeaseFailed():
                if event.lease in self.leases and self.job is not None:
                    self._fail_lease(self.job, event)
            case Connected():
                self._is_welcome = False
                self.windows.clear()  # each aggregator sets windows of its own
            case Disconnected():
                self._is_welcome = False
                self._close_row()
        effects, self._effects = self._effects, []
        return effects

    def _send(self, body: WorkerBody) -> None:
        if self._is_welcome:
            self._effects.append(ToAggregator(body))

    # ---- orders ----

    def _obey(self, event: Ordered) -> None:
        order = event.body
        if event.epoch < self.epoch:
            return  # an aggregator that has been replaced
        if isinstance(order, pb.Welcome):
            self.epoch, self.cluster, self._is_welcome = event.epoch, order.cluster, True
            return
        if not self._is_welcome or isinstance(order, pb.Heartbeat | pb.Hello):
            return
        if isinstance(order, pb.Join):
            self._join(order)
            return
        if self.job is None or self.job.job != order.job:
            return
        match order:
            case pb.Row():
                self._open_row(self.job, order)
            case pb.Lease():
                self._accept_lease(order)
            case pb.Revoke():
                self._drop_lease(order.lease)
            case pb.Resend():
                held = self.leases.get(order.lease)
                if held is not None:
                    self._send_sum(held, order.chunks)
            case pb.Window():
                version = Version(order.generation, order.step)
                self.windows.set(version, order.limit)
                for held in self.leases.values():
                    if held.version == version:
                        self._send_sum(held)
            case pb.Leave():
                self._drop_job()

    def _join(self, order: pb.Join) -> None:
        stages = StageRun(order.first_stage, order.stages) if order.stages else None
        joined = JoinedJob(order.job, order.spec_json, stages, order.build)
        if self.job is not None and self.job.is_same(joined):
            self.job.build = order.build
            if self.job.built is not None:
                self._report_ready(self.job, self.job.built)
            elif self.job.unfit_reason:
                self._report_unfit(self.job)
            return
        self._drop_job()
        self.job = joined
        self._build(joined)

    def _build(self, job: JoinedJob, damaged: DamagedInput | None = None) -> None:
        self._builds += 1
        job.number = self._builds
        self._effects.append(Build(job.job, job.spec_json, damaged, job.stages, job.number))

    # ---- the job ----

    def _note_built(self, event: Built) -> None:
        if self.job is not None and self.job.number == event.number:
            self.job.note_built(event)
            passed = plane.PassJob(
                job=event.job,
                elements=event.elements,
                gradients=event.wire.gradients,
                weights=event.wire.weights,
                pieces=event.stages is not None,
                parts=event.sends.to_messages(),
            )
            self._effects.append(passed)
            self._report_ready(self.job, event)

    def _note_build_failed(self, event: BuildFailed) -> None:
        job = self.job
        if job is None or job.number != event.number:
            return
        if not event.unfit:
            self.job = None
            self._give_up(job, event.reason, too_large=event.too_large, died=event.died)
            return
        self._attempts += 1
        pause_seconds = job.note_unfit(event.reason, self._attempts)
        self._report_unfit(job)
        self._effects.append(BuildLater(job.attempt, pause_seconds))

    def _give_up(self, job: JoinedJob, reason: str, *, too_large: bool, died: bool = False) -> None:
        failure = pb.Failure(job=job.job, reason=reason, died=died, build=job.build if died else 0)
        if too_large and job.stages is not None:
            failure.too_large = True
            failure.first_stage, failure.stages = job.stages.first, job.stages.count
        self._send(failure)

    def _note_damaged(self, event: InputDamaged) -> None:
        """Build the job again with another copy of the damaged file, unless it has none or that happened often."""
        job = self.job
        if job is None or job.job != event.job:
            return
        self._drop_job()
        retries = event.input is not None and job.repairs < MOST_REPAIRS
        self._send(pb.Failure(job=job.job, reason=event.reason, retries=retries))
        if retries:
            self.job = JoinedJob(
                job.job,
                job.spec_json,
                job.stages,
                job.build,
                unfit_reason=event.reason,
                repairs=job.repairs + 1,
            )
            self._build(self.job, event.input)

    def _report_fetching(self, event: Fetching) -> None:
        self._send(
            pb.Fetching(
                job=event.job,
                input=event.field,
                bytes=event.bytes,
                size=event.size,
                problem=event.problem,
                local=event.local,
            )
        )

    def _report_unfit(self, job: JoinedJob) -> None:
        self._send(pb.Failure(job=job.job, reason=job.unfit_reason, retries=True))

    def _report_ready(self, job: JoinedJob, built: Built) -> None:
        version = job.loaded or Version(0, 0)
        stages = built.stages or StageRun(0, 0)
        self._send(
            pb.Ready(
                job=job.job,
                first_stage=stages.first,
                stages=stages.count,
                build=job.build,
                parts=built.parts.to_messages(),
                shared=built.shared.to_messages(),
                layout_hash=built.layout_hash,
                elements=built.elements,
                evaluation_batches=built.evaluation_batches,
                fingerprint=built.fingerprint,
                holds=job.loaded is not None,
                generation=version.generation,
                step=version.step,
                tokens_per_micro_batch=built.tokens_per_micro_batch,
                flops_per_token=built.flops_per_token,
                peak_flops=built.peak_flops,
            )
        )

    def _drop_job(self) -> None:
        self._close_row()
        self.windows.clear()
        if self.job is not None:
            self.job = None
            self._effects += [plane.PassJob(), DropJob()]

    # ---- the row ----

    def _open_row(self, job: JoinedJob, order: pb.Row) -> None:
        if job.stages is not None and order.row != job.row:
            self._drop_leases()
            job.row = order.row
            self._effects.append(OpenRow(order, self.epoch))

    def _close_row(self) -> None:
        """Leave the row, if there is one, and drop all leases."""
        self._drop_leases()
        if self.job is not None and self.job.row:
            self.job.row = 0
            self._effects.append(CloseRow())

    # ---- leases ----

    def _accept_lease(self, lease: pb.Lease) -> None:
        assert self.job is not None
        if lease.lease in self.leases or self.job.built is None or not self.job.is_in(lease.row):
            return
        if lease.row and lease.lease <= self.job.newest_lease:
            return  # a repeated order: the row's other workers would not take part again
        refusal = check_work(lease, self.job.built)
        if refusal is not None:
            self._send(pb.Failure(job=lease.job, lease=lease.lease, reason=str(refusal)))
            return
        held = HeldLease(lease, ready_from=self.job.built.elements)
        if held.needs_weights and self.job.receiving is not None and held.version < self.job.receiving:
            return  # stale: newer weights have arrived since it was granted
        if len(self.leases) >= MOST_LEASES:
            reason = (
                f"this worker holds {MOST_LEASES} leases, the maximum; expected the aggregator to revoke some"
            )
            self._send(pb.Failure(job=lease.job, lease=lease.lease, reason=reason))
            return
        if lease.phase == pb.INITIALISE:
            self._drop_leases()  # the job begins again: the weights of all others are void
        self.leases[lease.lease] = held
        self.job.newest_lease = lease.lease
        if lease.phase == pb.TRAIN:  # initial weights are sent as they are asked for
            self._send_sum(held, lease.chunks or [pb.Range(count=self.job.chunks)])
        if not held.needs_weights or held.version == self.job.receiving:
            self._begin(held)

    def _send_sum(self, held: HeldLease, chunks: Iterable[pb.Range] = ()) -> None:
        """Order how much of a lease's sum is sent now, and which chunks of it are to be sent besides those before."""
        job = self.job
        if job is None or job.built is None or not held.has_sum:
            return
        first = max(held.ready_from, self.windows.first_element(held, job.chunks))
        header = held.make_header(job.built, self.epoch)
        self._effects.append(plane.SendSum(header=header, chunks=chunks, first_element=first))

    def _begin(self, held: HeldLease) -> None:
        held.begun = True
        self._effects.append(Perform(held.lease))

    def _fail_lease(self, job: JoinedJob, event: LeaseFailed) -> None:
        if event.too_large and job.stages is not None and job.stages.count > 1:
            self._give_up(job, event.reason, too_large=True)  # fewer stages may fit
            self._drop_job()
            return
        self._drop_lease(event.lease)
        failure = pb.Failure(
            job=job.job,
            lease=event.lease,
            reason=event.reason,
            neighbour=event.neighbour,
            died=event.died,
        )
        self._send(failure)

    def _drop_lease(self, lease: int) -> None:
        held = self.leases.pop(lease, None)
        if held is None:
            return
        if held.has_sum:
            self._effects.append(plane.DropPieces(job=held.lease.job, lease=lease))
        if held.begun:
            self._effects.append(DropLease(lease))

    def _drop_leases(self) -> None:
        for lease in list(self.leases):
            self._drop_lease(lease)

    def _drop_leases_before(self, version: Version) -> None:
        for held in list(self.leases.values()):
            if held.version < version:
                self._drop_lease(held.lease.lease)

    def _note_ready(self, event: NodeReady) -> None:
        held = self.leases.get(event.lease)
        if held is not None:
            held.ready_from = event.first_element
            held.findings = Findings(losses=event.losses, non_finite=event.non_finite, count=event.count)
            self._send_sum(held)

    def _report_computed(self, event: LeaseComputed) -> None:
        held = self.leases.get(event.lease)
        if held is None:
            return
        lease = held.lease
        if lease.phase == pb.VERIFY:
            self._drop_lease(lease.lease)  # it has no sum that could be asked for again
        in_row = lease.row != 0
        self._send(
            pb.Computed(
                job=lease.job,
                generation=lease.generation,
                step=lease.step,
                lease=lease.lease,
                seconds=event.seconds,
                tokens=event.tokens,
                checksums=event.checksums,
                findings=held.findings if in_row else None,
            )
        )

    def _report_evaluated(self, event: LeaseEvaluated) -> None:
        held = self.leases.pop(event.lease, None)
        if held is None:
            return
        lease = held.lease
        self._send(
            pb.Evaluated(
                job=lease.job,
                generation=lease.generation,
                step=lease.step,
                lease=lease.lease,
                losses=event.losses,
            )
        )

    def _report_initial_weights(self, event: InitialWeightsMade) -> None:
        held = self.leases.get(event.lease)
        if held is None or self.job is None:
            return
        held.ready_from = 0
        self._send_sum(held)
        self._send(
            pb.Description(job=self.job.job, lease=event.lease, layout=event.layout, files=event.files)
        )

    # ---- weights ----

    def _receive_weights(self, header: ChunkHeader) -> None:
        job = self.job
        if job is None or header.epoch != self.epoch or not job.accepts(header):
            return
        version = read_version(header)
        if version != job.receiving:
            job.start_receiving(version)
            self._drop_leases_before(version)
            self.windows.forget_before(version)
        if header.offset in job.received:
            return
        job.received.add(header.offset)
        self._effects.append(Load(header))
        for held in self.leases.values():
            if held.version == version and not held.begun:
                self._begin(held)

    def _note_loaded(self, event: Loaded) -> None:
        job = self.job
        if job is None or job.job != event.job or job.receiving != event.version:
            return
        job.loaded = event.version
        self._send(
            pb.WeightsLoaded(job=job.job, generation=event.version.generation, step=event.version.step)
        )
