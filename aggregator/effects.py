"""Carries out what the core decides, except for effects on payloads, which the plane carries out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import grpc

from aggregator.core import events as ev
from aggregator.core.aggregator import Clock
from aggregator.data_plane import DataPlane
from aggregator.jobs_service import ENDED_STATES
from aggregator.optimizer_links.link import OptimizerLink
from aggregator.reporting import EventPublisher
from aggregator.storage.job_queue import JobQueue
from plane.streams.worker_sessions import WorkerSessions
from protos import cluster_pb2 as pb
from services.files.store import FileStore
from services.protocol.bounds import MessageTooLarge
from services.runtime.aggregator_metrics import AggregatorMetrics
from services.tasks import start_task

log = logging.getLogger("tiermesh.aggregator")


class EffectRunner:
    """Carries out the core's effects on disk, peers and metrics. It is used on the event loop alone.

    Args:
        queue: the jobs on disk.
        files: the files that messages refer to.
        sessions: the sessions of the connected workers.
        plane: the aggregator's, whose addresses a worker is told.
        link: the link to the optimizer.
        events: publishes events of jobs.
        metrics: the aggregator's metrics.
        tensor_port: the port of data streams; 0 for none.
        feed: gives the core an input.
        on_job_ended: called when a job's end is on disk.
    """

    def __init__(
        self,
        *,
        queue: JobQueue,
        files: FileStore,
        sessions: WorkerSessions,
        plane: DataPlane,
        link: OptimizerLink,
        events: EventPublisher,
        metrics: AggregatorMetrics,
        tensor_port: int,
        feed: Callable[[ev.MessageRefused], None],
        on_job_ended: Callable[[], None],
    ) -> None:
        self._queue = queue
        self._files = files
        self._sessions = sessions
        self._plane = plane
        self._link = link
        self._events = events
        self._metrics = metrics
        self._tensor_port = tensor_port
        self._feed = feed
        self._on_job_ended = on_job_ended
        self._loop = asyncio.get_running_loop()

    def carry_out(self, effect: ev.Effect, clock: Clock) -> None:
        """Carry out an effect; a message that is too large to be sent fails its job, not the aggregator.

        Raises:
            TiermeshError: the disk or the leadership fails.
        """
        try:
            self._carry_out(effect, clock)
        except MessageTooLarge as error:
            log.error("%s", error)
            self._loop.call_soon(self._feed, ev.MessageRefused(error.job, str(error)))

    def _carry_out(self, effect: ev.Effect, clock: Clock) -> None:
        match effect:
            case ev.ToWorker():
                session = self._sessions.get(effect.session)
                if session is not None:
                    if isinstance(effect.body, pb.Welcome):
                        effect.body.tensor_port = self._tensor_port
                        effect.body.protocol = session.protocol
                        effect.body.cluster = self._queue.cluster
                        self._plane.fill_welcome(effect.session, effect.body)
                    session.send_order(effect.body)
            case ev.ToOptimizer():
                if isinstance(effect.body, pb.Initialise):
                    self._files.keep(effect.body.job, [effect.body.layout, *effect.body.files.values()])
                self._link.send_order(effect.body)
            case ev.Note():
                self._events.publish(effect, clock)
            case ev.JobBroke():
                log.error("job %s: %s", effect.job, effect.text, exc_info=effect.error)
            case ev.CheckClosed():
                self._metrics.count_verification(effect.job, effect.outcome)
            case ev.SaveJob():
                self._queue.save(effect.job)
                if effect.job.state in ENDED_STATES:
                    release = asyncio.to_thread(self._files.release, effect.job.id)
                    start_task(release, f"job {effect.job.id}: release of its files")
                    self._on_job_ended()
            case ev.CloseWorker():
                session = self._sessions.get(effect.session)
                if session is not None:
                    session.mailbox.close(effect.reason, grpc.StatusCode.FAILED_PRECONDITION)
