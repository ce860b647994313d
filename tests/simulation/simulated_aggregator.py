"""The simulated aggregator: it carries out its core's effects on symbolic payloads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from aggregator.core import events as ev
from aggregator.core.aggregator import AggregatorCore, Clock
from aggregator.core.job_report import cancel_job, copy_job, pause_job, resume_job
from aggregator.core.leasing.failures import MOST_FAILURES
from aggregator.core.membership.claims import trust
from aggregator.core.membership.members import Member
from plane.sums import SumOrder
from protos import cluster_pb2 as pb
from protos import plane_pb2 as plane
from protos.jobs_pb2 import PAUSED, Job
from protos.tensors_pb2 import INITIAL_WEIGHTS, ChunkHeader
from services.errors import Refused
from services.protocol.envelope import CheckReport, WorkerBody
from services.protocol.hello import HelloExpectations, Role, check_hello, make_hello
from services.protocol.plan import JobPlan
from services.tensors.layout import read_job_layout
from services.tensors.layout_parts import read_piece
from services.timeouts import STANDARD_HEARTBEAT_SECONDS
from tests.simulation.arrivals import Arrivals
from tests.simulation.core_checks import CoreChecks
from tests.simulation.job_model import CLUSTER, InjectedError, require
from tests.simulation.links import Link, is_end
from tests.simulation.process import Process, Queue
from tests.simulation.scenario import CHUNKS_IN_FLIGHT
from tests.simulation.shard_links import ShardedPayloads
from tests.simulation.simulated_check import SimulatedCheck
from tests.simulation.simulated_plane import SimulatedPlane
from tests.simulation.simulated_worker import HUGE_LAYOUT, HUGE_LAYOUT_REF

if TYPE_CHECKING:
    from tests.simulation.simulated_cluster import SimulatedCluster


def _refuses(member: Member, leave: pb.Leave) -> bool:
    """Return whether a job sends a worker away since it refuses it, also if that serves another job at once."""
    return member.refusal is not None or leave.reason.startswith(f"{MOST_FAILURES} leases in a row failed")


class SimulatedAggregator(Process):
    """One life of the aggregator's process.

    Attributes:
        sessions: links to workers, by session.
        check: the check of meshes and links that is under way, or None.
        sharded: what it has in place of payloads if they are in shards; None if they are here.
    """

    def __init__(self, cluster: SimulatedCluster, epoch: int) -> None:
        super().__init__(cluster, f"aggregator-{epoch}")
        self.epoch = epoch
        self._inside = (
            cluster.optimizer if cluster.scenario.tiers == 2 else None
        )  # the optimizer in its own process
        self.core: AggregatorCore = cluster.make_core(
            AggregatorCore,
            name="aggregator",
            epoch=epoch,
            records=cluster.disk.records(),
            heartbeat_seconds=STANDARD_HEARTBEAT_SECONDS,
            tiers=cluster.scenario.tiers,
            max_running_jobs=cluster.scenario.max_running_jobs,
        )
        self._checks = CoreChecks(self.core, cluster.jobs)
        self.wall_clock_seconds = 0.0
        self._plane = SimulatedPlane(epoch)
        self._arrivals = Arrivals(self, self._arrived)
        self.sessions: dict[int, Link] = {}
        self.check: SimulatedCheck | None = None
        self._last_session = 0
        self._optimizer: Link | None = None
        self._kernel = Queue(self)
        self._dialled: Link | None = None  # to the optimizer
        self.sharded: ShardedPayloads | None = None
        if self._inside is not None and self._inside.sharded is not None:
            self.sharded = ShardedPayloads(self, self._sums_finished, self._inside.sharded)
        self.tick()
        self.beat()
        if self.sharded is not None:
            self.sharded.dial()
        else:
            self.dial()

    @property
    def replaced(self) -> bool:
        """Whether another aggregator has taken over the disk."""
        return self.cluster.disk.epoch != self.epoch

    # ---- the core ----

    def feed(self, event: ev.Input, payload: Any = None) -> None:
        """Give the core an input and carry out its effects."""
        if not self.alive:
            return
        clock = Clock(self.now, 1e9 + self.now + self.wall_clock_seconds)
        self._checks.begin()
        orders: list[ev.PlaneOrder] = []
        for effect in self.effects(self._handle, event, clock):
            match effect:
                case _ if self.sharded is not None and isinstance(effect, ev.PlaneOrder):
                    orders.append(effect)
                case plane.KeepPieces():
                    for arrival in effect.arrivals:
                        self._checks.sums_of(effect.job).keep_piece(*self._arrivals.pop(arrival))
                case plane.DiscardPieces():
                    for arrival in effect.arrivals:
                        self._arrivals.pop(arrival)
                case _:
                    self._carry_out(effect, payload)
        if isinstance(event, ev.PiecesArrived):
            self._checks.check_pieces(event.header.job)
        if self.check is not None:
            serving = [
                each.name
                for session, each in self.core.members.items()
                if each.job and session in self.check.sessions
            ]
            require(not serving, f"{serving} serve jobs during a check of their meshes and links")
        if self.sharded is not None and self.alive:
            self.sharded.submit(orders)
        for link in self.sessions.values():
            self.pump(link)

    def begin_check(self, hangs_up_after_seconds: float) -> bool:
        """Begin a check of idle workers, unless there are none or a check is under way; return whether it has begun."""
        idle = [session for session, each in self.core.members.items() if not each.job]
        if self.check is not None or not (idle or not self.core.runs):
            return False
        self.check = SimulatedCheck(self, idle, hangs_up_after_seconds)
        self.check.begin()
        return True

    def submit(self, job: Job, plan: JobPlan) -> None:
        """Queue a job: on disk first, then in the core."""
        self._write_and_feed(ev.SaveJob(job), ev.Submitted(copy_job(job), job.id, plan))

    def cancel(self, job: str) -> None:
        """Cancel a job: on disk first, then in the core."""
        live = self.core.jobs.records.get(job)
        if live is not None:
            cancelled = copy_job(live.job)
            cancel_job(cancelled)
            self._write_and_feed(ev.SaveJob(cancelled), ev.CancelRequested(job))

    def pause(self, job: str) -> bool:
        """Pause a job: on disk first, then in the core; return whether it was not paused."""
        live = self.core.jobs.records.get(job)
        if live is None or live.job.state == PAUSED or live.job.pausing:
            return False
        paused = copy_job(live.job)
        pause_job(paused)
        self._write_and_feed(ev.SaveJob(paused), ev.PauseRequested(job))
        return True

    def resume(self, job: str) -> None:
        """Resume a job, if it is paused: on disk first, then in the core."""
        live = self.core.jobs.records.get(job)
        if live is not None and (live.job.state == PAUSED or live.job.pausing):
            resumed = copy_job(live.job)
            resume_job(resumed)
            self._write_and_feed(ev.SaveJob(resumed), ev.ResumeRequested(job))

    def set_priority(self, job: str, priority: int) -> bool:
        """Change a job's priority: on disk first, then in the core; return whether it had another one."""
        live = self.core.jobs.records.get(job)
        if live is None or live.job.priority == priority:
            return False
        changed = copy_job(live.job)
        changed.priority = priority
        self._write_and_feed(ev.SaveJob(changed), ev.PriorityRequested(job, priority))
        return True

    def trust(self, job: str, worker: str) -> bool:
        """Trust what a worker says of a job: on disk first, then in the core; return whether that could be done."""
        live = self.core.jobs.records.get(job)
        if live is None:
            return False
        decided = copy_job(live.job)
        if trust(decided, worker) is not None or decided == live.job:
            return False
        self._write_and_feed(ev.SaveJob(decided), ev.TrustRequested(job, worker))
        return True

    def _write_and_feed(self, write: ev.SaveJob, event: ev.Input) -> None:
        """Write a record, unless this process dies before or was replaced, and then tell the core."""
        if self.replaced:
            return
        for effect in self.effects(lambda _: [write], event):
            self._carry_out(effect, None)
        self.feed(event)

    def _handle(self, event: ev.Input, clock: Clock) -> list[ev.Effect]:
        """Call the core. After an error, note it in the jobs' records as the service does, and die."""
        contention = self.cluster.contention
        try:
            contention.before(self, event)
            effects = self.core.handle(event, clock)
            contention.after(self, event, effects)
            self._checks.end(each for each in effects if isinstance(each, ev.ToWorker))
            return effects
        except InjectedError as error:
            self.cluster.injected["core raises"] += 1
            if not self.replaced:
                steps = {job: run.job.step for job, run in self.core.runs.items()}
                self.cluster.disk.note_crash(steps, str(error))
            self.die()
            return []

    def _carry_out(self, effect: ev.Effect, payload: Any) -> None:
        match effect:
            case _ if isinstance(effect, SumOrder | plane.FinishSum):
                elements = self.cluster.jobs[effect.job].elements  # which the core may have forgotten by now
                finished = self._checks.sums_of(effect.job).carry_out(effect, elements)
                if isinstance(effect, plane.FinishSum):
                    self._forward(effect, finished)
                elif isinstance(effect, plane.DropSums):
                    self._checks.windows[effect.job] = 1
                elif isinstance(effect, plane.KeepSum):
                    self._checks.check_sums(effect.job)
            case plane.PassJob() | plane.SendVersion():
                self._open_plane(effect.job)
                self._plane.carry_out(effect)
            case ev.StoreWeights() if self.sharded is None:
                self._plane.keep(effect.header, payload)
            case ev.ToWorker():
                if isinstance(effect.body, pb.Lease):
                    self._checks.check_lease(effect.body)
                member = self.core.members.get(effect.session)
                if isinstance(effect.body, pb.Leave) and member is not None and _refuses(member, effect.body):
                    self.cluster.workers[member.name].refused(effect.body.job)
                if isinstance(effect.body, pb.Welcome):
                    effect.body.cluster = CLUSTER
                    if self.sharded is not None:
                        self.sharded.plane.fill_welcome(effect.session, effect.body)
                link = self.sessions.get(effect.session)
                if link is not None:
                    link.down_control.send(self.epoch, effect.body)
            case ev.ToOptimizer():
                if self._optimizer is not None:
                    self._optimizer.up_control.send(self.epoch, effect.body)
            case ev.CloseWorker():
                link = self.sessions.pop(effect.session, None)
                if link is not None:
                    link.close(effect.reason)
                    self._close_streams(effect.session, effect.reason)
            case ev.SaveJob() if not self.replaced:
                self.cluster.disk.save(effect)
            case ev.Note() if not self.replaced:
                self.cluster.noted(effect)

    def _open_plane(self, job: str) -> None:
        """Open a running job in the plane of an optimizer in this process, which is not told of it by PassJob."""
        run = self.core.runs.get(job)
        if self._inside is None:
            return
        for ended in set(self._plane.core.jobs) - self.core.runs.keys():
            self._plane.drop_job(ended)
        if run is not None and not self._plane.core.expected_elements(job):
            wire, pieces = run.plan.wire, run.plan.stages > 1
            self._plane.core.open_job(job, run.progress.elements, wire, sends_pieces=pieces)

    def _forward(self, order: plane.FinishSum, finished: Mapping[int, Any]) -> None:
        """Send finished sums to the optimizer, one after the other."""
        for chunk, content in finished.items():
            header = ChunkHeader()
            header.CopyFrom(order.header)
            header.index = chunk
            self._kernel.submit(self.cluster.rng.random() * 0.004, self._forward_sum, header, content)

    def _forward_sum(self, header: ChunkHeader, content: Any) -> None:
        if self._optimizer is not None:
            self._optimizer.up_data.send(header, content)

    def tick(self) -> None:
        """Let time pass. A replaced aggregator notices it now at the latest."""
        if self.replaced and self._inside is not None:
            self._inside.alive = False
            self.die()
            return
        self.feed(ev.Ticked())
        if self.alive:
            self._checks.check_consistency(None if self.sharded is None else self.sharded.stored)
            self.cluster.contention.ticked(self)
            self.later(self.core.timeouts.tick, self.tick)

    def beat(self) -> None:
        """Send a heartbeat to all workers."""
        for link in self.sessions.values():
            link.down_control.send(self.epoch, pb.Heartbeat())
        if self.sharded is not None:
            self.sharded.beat()
        self.later(self.core.timeouts.beat, self.beat)

    def thawed(self) -> None:
        """Continue after a freeze."""
        for link in self.sessions.values():
            self.pump(link)

    # ---- workers ----

    def accept(self, link: Link, hello: pb.Hello) -> None:
        """Register a new connection whose Hello has arrived."""
        refusal = check_hello(
            hello, HelloExpectations("aggregator", Role.WORKER, self.epoch, cluster=CLUSTER)
        )
        if refusal is not None:
            link.close(refusal.reason)
            if refusal.obeyed_epoch:
                self.exceed(refusal.obeyed_epoch)
            return
        if self.sharded is not None:
            if lacking := self.sharded.plane.check_ready():
                link.close(lacking.reason)
                return
            self.sharded.open(link.session, hello)
        self.sessions[link.session] = link
        self._plane.core.worker_attends(link.session)
        voice = hello.name if self.cluster.scenario.voices else ""
        self.feed(ev.WorkerConnected(link.session, hello, f"{hello.name}:1", voice))

    def exceed(self, obeyed_epoch: int) -> None:
        """Start again above an epoch that a peer has obeyed, since the queue is an older copy."""
        if not self.replaced:
            self.cluster.skip_epochs(self.epoch, obeyed_epoch)
            self.die()

    def new_session(self) -> int:
        """Return the number of a new connection."""
        self._last_session += 1
        return self._last_session

    def worker_message(self, link: Link, epoch: int, body: Any) -> None:
        """Handle a control message from a worker."""
        if not self.alive:
            return
        if is_end(epoch):
            link.ended(body)
        elif isinstance(body, pb.Hello):
            self.accept(link, body)
        elif isinstance(body, CheckReport):
            if self.check is not None:
                self.check.take_report(body)
        elif isinstance(body, pb.Description):
            self.described(link, epoch, body)
        else:
            self.feed(ev.FromWorker(link.session, epoch, body))

    def described(self, link: Link, epoch: int, body: pb.Description) -> None:
        """Check the layout that a worker describes, as the service does."""
        parameters = self.core.awaits_description(link.session, body)
        if parameters is None:
            return
        answer: WorkerBody = body
        if body.layout == HUGE_LAYOUT_REF:
            self.cluster.injected["huge layouts"] += 1
            try:
                read_job_layout(HUGE_LAYOUT, parameters)
            except Refused as refused:
                answer = pb.Failure(job=body.job, reason=str(refused))
        self.feed(ev.FromWorker(link.session, epoch, answer))

    def worker_sent(self, link: Link, header: ChunkHeader | None, payload: Any) -> None:
        """Handle a worker's chunk, or the opening of its data stream (no header)."""
        if not self.alive:
            return
        if header is None:
            self.feed(ev.DataStreamOpened(link.session))
            return
        elements = self.core.expected_elements(header.job)
        if header.kind == INITIAL_WEIGHTS or elements is not None:
            self._arrivals.add(link.session, header, payload)

    def _arrived(self, arrived: plane.ArrivedPieces) -> None:
        """Let the core decide on pieces from a worker."""
        pieces = [read_piece(each) for each in arrived.pieces]
        self.feed(ev.PiecesArrived(arrived.session, arrived.header, pieces, arrival=arrived.arrival))

    def worker_lost(self, link: Link, reason: str) -> None:
        """Handle the loss of a worker's connection."""
        self.sessions.pop(link.session, None)
        self._close_streams(link.session, reason)
        if self.check is not None:
            self.check.worker_lost(link.session)
        self.feed(ev.WorkerLost(link.session, reason))

    def _close_streams(self, session: int, reason: str) -> None:
        """End a worker's streams to the planes."""
        self._plane.core.worker_left(session)
        if self.sharded is not None:
            self.sharded.closed(session, reason)

    def pump(self, link: Link) -> None:
        """Send a worker the weights that it may get now. With shards, they do."""
        if not self.running or self.sharded is not None:
            return
        while link.up and link.down_data.in_flight < CHUNKS_IN_FLIGHT:
            following = self._plane.next_weights(link.session)
            if following is None:
                return
            link.down_data.send(*following)

    # ---- the optimizer ----

    def dial(self) -> None:
        """Connect to the optimizer, and retry until it is alive."""
        optimizer = self._inside or self.cluster.optimizer
        local = self.cluster.scenario.tiers == 2
        if optimizer is None or not optimizer.alive:
            self.later(0.01 + self.cluster.rng.random() ** 4, self.dial)
            return
        if self.sharded is not None and not (self.sharded.group.ready and self._dialled is None):
            return
        link = self._dialled = Link(self.cluster, 0, local=local, pinged=not local)
        link.connect(
            up_control=lambda epoch, body: optimizer.ordered(link, epoch, body),
            up_data=lambda header, payload: optimizer.received(link, header, payload),
            down_control=lambda epoch, body: self.optimizer_message(link, epoch, body),
            down_data=lambda header, payload: self.optimizer_sent(link, header, payload),
            lost_above=lambda reason: optimizer.link_lost(link),
            lost_below=lambda reason: self.optimizer_lost(link, reason),
            ends=(optimizer, self),
        )
        self.cluster.links.append(link)
        hello = make_hello(Role.AGGREGATOR, "aggregator", epoch_seen=self.epoch, cluster=CLUSTER)
        link.up_control.send(self.epoch, hello)

    def optimizer_message(self, link: Link, epoch: int, body: Any) -> None:
        """Handle a control message from the optimizer."""
        if not self.alive:
            return
        if is_end(epoch):
            link.closed(body)
        elif isinstance(body, pb.Hello):
            self._optimizer = link
            self.feed(ev.OptimizerConnected(body.name))
        elif epoch != self.epoch:
            return
        elif (
            isinstance(body, pb.CheckpointWritten | pb.CheckpointMissed)
            and body.job not in self.core.jobs.records
        ):
            if body.job in self.cluster.disk.jobs:  # not if the queue was restored from before it
                self.feed(ev.LateCheckpoint(copy_job(self.cluster.disk.jobs[body.job].job), body))
        else:
            self.feed(ev.FromOptimizer(body))

    def optimizer_sent(self, link: Link, header: ChunkHeader, payload: Any) -> None:
        """Handle a chunk of weights."""
        if self.alive:
            if self.core.expected_elements(header.job) is not None:
                self._weights_arrived(header, payload)
            if link.ends[0].alive:
                link.ends[0].pump(link)

    def _weights_arrived(self, header: ChunkHeader, payload: Any) -> None:
        if self._inside is None:
            self.feed(ev.WeightsArrived(header), payload)
            return
        self._open_plane(header.job)
        self._plane.keep(header, payload)  # its plane has made them, whatever the core knows by now
        for link in self.sessions.values():
            self.pump(link)

    def optimizer_lost(self, link: Link, reason: str) -> None:
        """Handle the loss of the link to the optimizer."""
        if not self.alive:
            return
        if link.obeyed_epoch:
            self.exceed(link.obeyed_epoch)
        if self._dialled is link:
            self._dialled = None
        for job in self.core.runs:
            self._checks.windows[job] += 1
        if self._optimizer is link:
            self._optimizer = None
            self.feed(ev.OptimizerLost(reason))
        if self.sharded is None or self.sharded.group.ready:
            self.later(0.01 + self.cluster.rng.random() ** 4 * 3, self.dial)

    def _sums_finished(self, order: plane.FinishSum) -> None:
        """Tell the optimizer that finished sums are in their shard."""
        if self._optimizer is not None:
            self._optimizer.up_data.send(order.header, list(order.chunks))

    def shards_lost(self, reason: str) -> None:
        """Disconnect the optimizer, whose tensors are lost. It is connected again once all shards are."""
        link, self._optimizer, self._dialled = self._dialled, None, None
        if link is not None:
            link.disconnect()
            link.ends[0].link_lost(link)
        self.feed(ev.OptimizerLost(reason))
