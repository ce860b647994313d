"""Dialogues with an aggregator's core, which show each effect as one short line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from aggregator.core import events as ev
from aggregator.core.aggregator import AggregatorCore, Clock
from aggregator.core.cluster_status import describe_waits, make_status
from aggregator.core.job_report import Record, cancel_job, copy_job
from aggregator.core.membership.claims import bind_own, trust
from aggregator.core.running_job import RunningJob
from aggregator.core.scheduling.room import RoleNeed
from protos import cluster_pb2 as pb
from protos import plane_pb2 as plane
from protos.files_pb2 import FileRef
from protos.jobs_pb2 import QUEUED, ClusterStatus, Job, JobState
from protos.tensors_pb2 import GRADIENT, INITIAL_WEIGHTS, WEIGHTS, ChunkHeader, Findings, NonFinite
from services.errors import Refusal
from services.pipeline.split import StageRun
from services.protocol.plan import JobPlan
from services.protocol.versions import PROTOCOL_VERSION
from services.tensors.chunk_ranges import from_ranges
from services.tensors.layout import CHUNK_ELEMENTS, Layout, chunk_range
from services.tensors.layout_parts import Piece
from tests.support.chunk_sets import to_ranges

FINGERPRINT = {"backend": "emulator", "blas": "SkylakeX"}


def layout_of(chunks: int) -> Layout:
    """Return a layout with that many chunks."""
    return Layout.build([("weight", (chunks * CHUNK_ELEMENTS - 5,), True, "weight", False)])


def layout_ref(layout: Layout) -> FileRef:
    """Return the reference by which a Description names a layout."""
    return FileRef(sha256=layout.hash, size=1)


def span(first: int, count: int) -> str:
    """Return a range of micro-batches or batches as text."""
    return str(first) if count == 1 else f"{first}-{first + count - 1}"


def chunks_of(ranges: Iterable[pb.Range]) -> str:
    """Return chunk indices as text."""
    return name_chunks(from_ranges(ranges, 1 << 20))


def name_chunks(chunks: Iterable[int]) -> str:
    """Return chunk indices as text."""
    return " ".join(f"#{chunk}" for chunk in chunks)


def arrived(session: int, *headers: ChunkHeader, in_place: bool = False) -> ev.PiecesArrived:
    """Return the arrival of a run of pieces."""
    pieces = [Piece(each.index, each.offset, each.elements) for each in headers]
    return ev.PiecesArrived(session, headers[0], pieces, in_place)


class Dialogue:
    """An aggregator's core and the messages to and from it.

    Attributes:
        core: the core under test.
        now: the virtual time, in seconds.
        leases: the newest lease of each session.
        orders: the number of the last order to build a job, or stages of one, of each session.
        saved: the jobs as they were last saved.
        notes: the lines that were published to users.
        devices: what workers say of their devices in heartbeats, by session; as time passes, none gets on.
    """

    def __init__(
        self, *, epoch: int = 3, chunks: int = 1, records: Iterable[Record] = (), **limits: Any
    ) -> None:
        self.core = AggregatorCore(
            name="agg", epoch=epoch, records=records, heartbeat_seconds=5.0, tiers=3, **limits
        )
        self.layout = layout_of(chunks)
        self.now = 100.0
        self.leases: dict[int, int] = {}
        self.orders: dict[int, int] = {}
        self.saved: dict[str, Record] = {}
        self.published: list[ev.Note] = []
        self.devices: dict[int, pb.DeviceReport] = {}
        self.passed: list[plane.PassJob] = []
        self._sends: dict[int, plane.SendVersion] = {}
        self._arrived = ChunkHeader()
        self.plans: dict[str, JobPlan | Refusal] = {each.job.id: each.plan for each in records}

    @property
    def run(self) -> RunningJob | None:
        """The job that has run longest; None if none runs."""
        return next(iter(self.core.runs.values()), None)

    def status(self) -> ClusterStatus:
        """Return the cluster's status."""
        return make_status(self.core, self.now)

    def describe_wait(self, now: float | None = None) -> str:
        """Return what the jobs wait for."""
        return describe_waits(self.core, self.now if now is None else now) or ""

    @property
    def notes(self) -> list[str]:
        """The texts of all notes so far."""
        return [note.text for note in self.published]

    @property
    def running(self) -> str:
        """The id of the running job; empty if there is none."""
        return "".join(self.core.runs)

    @property
    def clock(self) -> Clock:
        """The time of the next input."""
        return Clock(self.now, 1e9 + self.now)

    def give(self, event: ev.Input) -> list[str]:
        """Give the core an input; return its effects as lines, without notes and what discards something stale."""
        lines = []
        if isinstance(event, ev.PiecesArrived):
            self._arrived = event.header
        for effect in self.core.handle(event, self.clock):
            if isinstance(effect, ev.SaveJob):
                self._save(effect.job)
            if isinstance(effect, ev.ToWorker) and isinstance(effect.body, pb.Lease):
                self.leases[effect.session] = effect.body.lease
            if isinstance(effect, ev.ToWorker) and isinstance(effect.body, pb.Join):
                self.orders[effect.session] = effect.body.build
            if isinstance(effect, ev.Note):
                self.published.append(effect)
            if isinstance(effect, plane.PassJob):
                self.passed.append(effect)
            if isinstance(effect, plane.SendVersion):
                self._sends[effect.session] = effect
            line = self.line(effect)
            if line:
                lines.append(line)
        return lines

    def _save(self, job: Job) -> None:
        self.saved[job.id] = Record(job, "{}", self.plans[job.id])

    def line(self, effect: ev.Effect) -> str:
        """Return an effect as one line; empty for notes."""
        match effect:
            case ev.ToWorker():
                return f"{effect.session} <- {self._order(effect.body)}"
            case ev.ToOptimizer():
                body: Any = effect.body
                version = f" {body.generation}.{body.step}" if isinstance(body, pb.SendWeights) else ""
                return f"optimizer <- {type(body).__name__}{version}"
            case ev.CloseWorker():
                return f"{effect.session} closed: {effect.reason}"
            case ev.SaveJob():
                return f"save {effect.job.id} {JobState.Name(effect.job.state).lower()}"
            case plane.KeepSum() if effect.HasField("node"):
                return f"keep {self._node(effect.node)} {name_chunks(effect.chunks)}"
            case plane.DropSum():
                return f"drop {self._node(effect.node)} {name_chunks(effect.chunks)}"
            case plane.MergeSums():
                siblings = f"{self._node(effect.left)} + {self._node(effect.right)}"
                return f"merge {siblings} {name_chunks(effect.chunks)}"
            case plane.FinishSum():
                return f"forward {name_chunks(effect.chunks)}"
            case ev.StoreWeights():
                return f"store weights #{effect.header.index}"
            case plane.DropSums():
                return "drop all"
            case plane.KeepPieces() if self._arrived != self.whole(self._arrived, effect.chunk):
                return f"keep piece {self._arrived.offset} of #{effect.chunk}"
            case plane.DropPieces():
                return "drop pieces"
            case ev.CheckClosed():
                return f"check {effect.outcome}"
        return ""

    @staticmethod
    def _node(node: plane.SumNode) -> str:
        return span(node.first, node.count)

    @staticmethod
    def _order(body: Any) -> str:
        match body:
            case pb.Lease(phase=pb.INITIALISE):
                return "initialise"
            case pb.Lease():
                what = pb.Phase.Name(body.phase).lower()
                only = f" only {chunks_of(body.chunks)}" if body.chunks else ""
                return f"{what} {span(body.first, body.count)} of {body.generation}.{body.step}{only}"
            case pb.Window():
                return f"window {body.limit}"
            case pb.Resend():
                return f"resend {chunks_of(body.chunks)}"
            case pb.Leave():
                return f"leave: {body.reason}"
            case pb.Join() if body.stages:
                return f"join {StageRun(body.first_stage, body.stages)}"
            case pb.Row():
                seats = [f"{StageRun(seat.first_stage, seat.stages)} {seat.name}" for seat in body.seats]
                return f"row of {', '.join(seats)}"
        return type(body).__name__.lower()

    # ---- people ----

    def submit(
        self, job: str = "a", *, owner: str = "", needs: Mapping[str, RoleNeed] | None = None, **plan: Any
    ) -> list[str]:
        """Submit a job, by default with 4 steps of 4 micro-batches."""
        settings = self.plans[job] = JobPlan(**{"steps": 4, "micro_batches": 4, **plan})
        record = Job(
            id=job, name=job, owner=owner, state=QUEUED, steps=settings.steps, priority=settings.priority
        )
        self._save(record)
        return self.give(ev.Submitted(record, "{}", settings, needs or {}))

    def cancel(self, job: str = "a") -> list[str]:
        """Cancel a job, which may have ended or not exist."""
        live = self.core.jobs.records.get(job)
        if live is not None:
            cancelled = copy_job(live.job)
            cancel_job(cancelled)
            self._save(cancelled)
        return self.give(ev.CancelRequested(job))

    def pause(self, job: str = "a") -> list[str]:
        """Pause a job, which may not exist."""
        return self.give(ev.PauseRequested(job))

    def resume(self, job: str = "a") -> list[str]:
        """Resume a job, which may not exist."""
        return self.give(ev.ResumeRequested(job))

    def prefer(self, job: str, priority: int) -> list[str]:
        """Change the priority of a job."""
        return self.give(ev.PriorityRequested(job, priority))

    def trusts(self, worker: str, job: str = "a") -> list[str]:
        """Trust what a worker says of a job."""
        decided = copy_job(self.core.jobs.records[job].job)
        assert trust(decided, worker) is None
        self._save(decided)
        return self.give(ev.TrustRequested(job, worker))

    def job(self, job: str = "a") -> Job:
        """Return the job's record: the core's, or the saved one if the job has ended."""
        live = self.core.jobs.records.get(job)
        return (live or self.saved[job]).job

    # ---- workers ----

    def hello(
        self, session: int, name: str = "", pipeline_address: str = "", *, voice: str = "", **fields: Any
    ) -> list[str]:
        """Connect a worker with its Hello, and with a certificate that is bound to a name if a voice is given."""
        words = {
            "protocol": PROTOCOL_VERSION,
            "role": "worker",
            "name": name or f"w{session}",
            "incarnation": f"i{session}",
            "shard_count": 1,
            **fields,
        }
        return self.give(ev.WorkerConnected(session, pb.Hello(**words), pipeline_address, voice))

    def says(self, session: int, body: Any, epoch: int | None = None) -> list[str]:
        """Give the core a worker's control message."""
        return self.give(ev.FromWorker(session, self.core.epoch if epoch is None else epoch, body))

    def ready(
        self,
        session: int,
        *,
        job: str = "a",
        holds: tuple[int, int] | None = None,
        layout: Layout | None = None,
        flops_per_token: int | None = None,
        peak_flops: float | None = None,
        build: int | None = None,
        **fingerprint: str,
    ) -> list[str]:
        """Report that a worker has built the job, by default as it was told last."""
        body = pb.Ready(
            job=job,
            build=self.orders.get(session, 0) if build is None else build,
            layout_hash=(layout or self.layout).hash,
            elements=(layout or self.layout).elements,
            evaluation_batches=3,
            fingerprint={**FINGERPRINT, **fingerprint},
            holds=holds is not None,
            tokens_per_micro_batch=10,
            flops_per_token=flops_per_token,
            peak_flops=peak_flops,
        )
        if holds is not None:
            body.generation, body.step = holds
        return self.says(session, body)

    def joins(self, session: int, holds: tuple[int, int] | None = None, job: str = "a") -> list[str]:
        """Connect a worker and report that it has built the job."""
        self.hello(session)
        self.give(ev.DataStreamOpened(session))
        return self.ready(session, holds=holds, job=job)

    def weights_loaded(self, session: int, generation: int, step: int, job: str = "a") -> list[str]:
        """Report that a worker has the weights of a version."""
        return self.says(session, pb.WeightsLoaded(job=job, generation=generation, step=step))

    def computed(
        self,
        session: int,
        seconds: float = 1.0,
        *,
        lease: int = 0,
        checksums: Mapping[int, int] | None = None,
        job: str = "a",
    ) -> list[str]:
        """Report that a worker has computed its newest lease, or another, with checksums by micro-batch."""
        sums = [pb.Checksum(micro_batch=each, crc32c=value) for each, value in (checksums or {}).items()]
        lease = lease or self.leases[session]
        return self.says(session, pb.Computed(job=job, lease=lease, seconds=seconds, checksums=sums))

    def evaluated(self, session: int, generation: int, step: int, *losses: tuple[int, float]) -> list[str]:
        """Report a worker's evaluated lease, as (index, mean loss) of batches of 2 tokens."""
        batches = [pb.BatchLoss(index=index, sum=2 * loss, tokens=2) for index, loss in losses]
        body = pb.Evaluated(
            job="a", generation=generation, step=step, lease=self.leases[session], losses=batches
        )
        return self.says(session, body)

    def chunk(
        self,
        session: int,
        generation: int,
        step: int,
        index: int,
        *,
        lease: int = 0,
        losses: tuple[float, ...] = (),
        in_place: bool = False,
        non_finite: Iterable[NonFinite] = (),
        count: int = 1,
        job: str = "a",
    ) -> list[str]:
        """Give the core a chunk of a worker's newest lease, or of another."""
        header = ChunkHeader(
            job=job,
            epoch=self.core.epoch,
            generation=generation,
            step=step,
            lease=lease or self.leases[session],
            kind=GRADIENT,
            findings=None if index else Findings(losses=losses, non_finite=non_finite, count=count),
        )
        return self.give(arrived(session, self.whole(header, index), in_place=in_place))

    def whole(self, header: ChunkHeader, index: int) -> ChunkHeader:
        """Return a copy of a header with the place of a whole chunk."""
        start, stop = chunk_range(self.layout.elements, index)
        found = ChunkHeader()
        found.CopyFrom(header)
        found.index, found.offset, found.elements = index, start, stop - start
        return found

    def initial(self, session: int, index: int) -> list[str]:
        """Give the core a chunk of initial weights."""
        header = ChunkHeader(job="a", epoch=self.core.epoch, lease=self.leases[session], kind=INITIAL_WEIGHTS)
        return self.give(arrived(session, self.whole(header, index)))

    # ---- the optimizer ----

    def optimizer(self) -> list[str]:
        """Connect the optimizer."""
        return self.give(ev.OptimizerConnected("opt"))

    def stands(
        self,
        generation: int,
        step: int,
        *,
        missing: Iterable[int] | None = None,
        state: Any = pb.OptimizerStatus.TRAINING,
        job: str = "a",
    ) -> list[str]:
        """Report the optimizer's status; by default it lacks all chunks."""
        lacking = range(self.layout.chunks) if missing is None else missing
        optimizer_status = pb.OptimizerStatus(
            job=job,
            state=state,
            generation=generation,
            step=step,
            layout_hash="" if state == pb.OptimizerStatus.EMPTY else self.layout.hash,
            elements=0 if state == pb.OptimizerStatus.EMPTY else self.layout.elements,
            missing=to_ranges(lacking),
        )
        return self.give(ev.FromOptimizer(optimizer_status))

    def commits(self, generation: int, step: int, applied: bool = True, job: str = "a") -> list[str]:
        """Report that the optimizer has decided a step."""
        return self.give(
            ev.FromOptimizer(
                pb.Commit(job=job, generation=generation, step=step, applied=applied, grad_norm=1.0)
            )
        )

    def checkpoint(self, generation: int, step: int, job: str = "a") -> list[str]:
        """Report that the optimizer has written a checkpoint."""
        written = pb.CheckpointWritten(
            job=job, generation=generation, step=step, path=f"{job}/{step}", model_sha256=f"sha{step}"
        )
        if job in self.core.jobs.records or job not in self.saved:
            return self.give(ev.FromOptimizer(written))
        return self.give(ev.LateCheckpoint(self.saved[job].job, written))

    def weights(self, generation: int, step: int, *indices: int) -> list[str]:
        """Give the core chunks of new weights."""
        lines = []
        for index in indices:
            header = ChunkHeader(
                job="a", epoch=self.core.epoch, generation=generation, step=step, kind=WEIGHTS, index=index
            )
            lines += self.give(ev.WeightsArrived(header))
        return lines

    def sent_weights(self, session: int) -> str:
        """Return the version that a worker is to be sent since the last call, and its parts; empty for none."""
        order = self._sends.pop(session, None)
        if order is None:
            return ""
        parts = [f" {each.offset}+{each.elements}" for each in order.parts]
        return f"{order.generation}.{order.step}" + "".join(parts)

    def later(self, seconds: float, *alive: int) -> list[str]:
        """Let time pass until the next tick, with heartbeats from these workers.

        From the second tick on, the core treats more than a heartbeat as a pause of the aggregator.
        """
        self.now += seconds
        lines = []
        for device in self.devices.values():
            device.seconds += seconds
        for session in alive:
            lines += self.says(session, pb.Heartbeat(device=self.devices.get(session)))
        return lines + self.give(ev.Ticked())

    def goes_by(self, seconds: float, *alive: int) -> list[str]:
        """Let time pass in steps shorter than a heartbeat."""
        whole, rest = divmod(seconds, 2.5)
        return [line for each in [2.5] * int(whole) + [rest] for line in self.later(each, *alive)]


def training(*workers: int, generation: int = 1, step: int = 0, chunks: int = 1, **plan: Any) -> Dialogue:
    """Return a cluster in the middle of a job, whose workers have the weights and leases."""
    dialogue = Dialogue(chunks=chunks)
    dialogue.submit(**plan)
    dialogue.optimizer()
    for worker in workers:
        dialogue.joins(worker, holds=(generation, step))
    dialogue.stands(generation, step)
    dialogue.weights(generation, step, *range(chunks))
    dialogue.job().starts = 0  # as after a step, which would be saved
    bind_own(dialogue.job())
    return dialogue
