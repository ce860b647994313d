"""Register of all jobs, in which people submit, change and look up jobs. A job is on disk before the core gets it.

The core has the jobs that have not ended; the queue has all. If a write fails, the call is answered with the error,
and the core gets no input.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping

from aggregator.core.events import (
    CancelRequested,
    PauseRequested,
    PriorityRequested,
    ResumeRequested,
    Submitted,
    TrustRequested,
)
from aggregator.core.job_report import Record, cancel_job, copy_job, pause_job, resume_job
from aggregator.core.membership.claims import trust
from aggregator.core.requests import Request
from aggregator.core.scheduling.room import RoleNeed
from aggregator.core.scheduling.views import Wait
from aggregator.storage.job_queue import ALL_JOBS, LARGEST_PAGE_JOBS, JobFilter, JobPage, JobQueue
from aggregator.storage.queue_file import DiskFull
from protos import jobs_pb2
from protos.jobs_pb2 import Job, Start
from services.caps import Cap, Caps, OverCap
from services.config.job import JobConfig
from services.config.job_inputs import input_hashes
from services.errors import Refused
from services.files.store import FileStore
from services.protocol.plan import JobPlan
from services.sizing.idle import advise_on_idle_workers

NAME_CHARACTERS = 200
"""Longest name of a job."""

_ROOM_BYTES = 64 << 20
"""Room that is made on a full disk for a job, and for what follows it."""
_REQUEST_ID = re.compile(r"[\w.-]{0,64}")


class JobRegister:
    """Register of the jobs of an aggregator. It is used on the event loop alone.

    Args:
        queue: the jobs on disk.
        live: the core's records of the jobs that have not ended, by id.
        feed: gives the core an input.
        caps: the caps on the number of jobs.
        files: keeps the files that jobs name.
        find_places: returns the places of the queued jobs, by id.
        find_needs: returns the memory that a job needs, by role.
    """

    def __init__(
        self,
        queue: JobQueue,
        live: Mapping[str, Record],
        feed: Callable[[Request], None],
        caps: Caps,
        files: FileStore,
        find_places: Callable[[], Mapping[str, Wait]],
        find_needs: Callable[[JobConfig], Mapping[str, RoleNeed]],
    ) -> None:
        self._queue = queue
        self._live = live
        self._feed = feed
        self._caps = caps
        self._files = files
        self._find_places = find_places
        self._find_needs = find_needs

    def submit(self, config: JobConfig, *, name: str = "", request_id: str = "", owner: str = "") -> Job:
        """Queue a job; it survives kill -9 and power loss when this returns.

        Args:
            config: the complete job.
            name: the job's name for people; that of the config if it is empty.
            request_id: the id of the request; a repeated one returns the job of the first.
            owner: the person who submits it; empty without security.

        Raises:
            Refused: the name or the request id is malformed, the request id belongs to another job, or the job would
                check its gradients with one worker.
            OverCap: the model is too large.
            CapReached: the queue or the owner has too many jobs.
            DiskFull: there is no space for the job.
            Failed: the job can't be written.
        """
        name = name or config.name
        if len(name) > NAME_CHARACTERS:
            raise Refused(
                f"name {name!r}: {len(name)} characters, expected at most {NAME_CHARACTERS}; shorten it"
            )
        if not _REQUEST_ID.fullmatch(request_id):
            raise Refused(
                f"request_id {request_id!r}: expected at most 64 letters, digits, dots, - and _; give a random id"
            )
        config.check_checkers()
        plan = config.plan()
        refusal = plan.parameters.check_most(self._caps.parameters)
        if refusal is not None:
            raise OverCap(Cap.PARAMETERS, str(refusal))
        spec_json = config.to_json()
        wanted = Job(
            name=name,
            owner=owner,
            state=jobs_pb2.QUEUED,
            steps=plan.steps,
            priority=plan.priority,
            submitted_seconds=time.time(),
        )
        if config.start_from is not None:
            wanted.step = config.start_from.first_step
            wanted.start.CopyFrom(
                Start(job=config.start_from.job, step=config.start_from.step, first_step=wanted.step)
            )
        try:
            job = self._queue.add(wanted, spec_json, request_id, self._caps)
        except DiskFull:
            if not self._files.reclaim(_ROOM_BYTES):
                raise
            job = self._queue.add(wanted, spec_json, request_id, self._caps)
        if job.state == jobs_pb2.QUEUED and job.id not in self._live:
            self._files.keep_inputs(job.id, input_hashes(config))
            self._feed(Submitted(copy_job(job), spec_json, plan, self._find_needs(config)))
        return self.find(job.id) or job

    def cancel(self, job: str, *, now: bool = False) -> Job:
        """Cancel a job that has not ended; its record says so on disk when this returns.

        Args:
            job: id of the job.
            now: whether no checkpoint of its last COMMIT is wanted.

        Raises:
            Refused: there is no such job, or it has ended.
            Failed: the record can't be written; the job goes on.
        """
        cancelled = self._copy_live(job, "cancelled")
        cancel_job(cancelled)
        cancelled.ended_seconds = time.time()
        self._queue.save(cancelled)
        self._feed(CancelRequested(job, now))
        return cancelled

    def pause(self, job: str) -> Job:
        """Have a queued or running job wait until it is resumed; its record says so on disk when this returns.

        Raises:
            Refused: there is no such job, it has ended, or it is paused already.
            Failed: the record can't be written; the job goes on.
        """
        paused = self._copy_live(job, "paused")
        if paused.state == jobs_pb2.PAUSED or paused.pausing:
            raise Refused(f"job {job} is paused already; expected a queued or running one")
        pause_job(paused)
        self._queue.save(paused)
        self._feed(PauseRequested(job))
        return self.find(job) or paused

    def resume(self, job: str) -> Job:
        """Queue a paused job in its old place; its record says so on disk when this returns.

        Raises:
            Refused: there is no such job, or it is not paused.
            Failed: the record can't be written; the job stays paused.
        """
        resumed = self._copy_live(job, "resumed")
        if resumed.state != jobs_pb2.PAUSED and not resumed.pausing:
            raise Refused(f"job {job} is {_name_state(resumed)}; expected a paused one")
        resume_job(resumed)
        self._queue.save(resumed)
        self._feed(ResumeRequested(job))
        return self.find(job) or resumed

    def set_priority(self, job: str, priority: int) -> Job:
        """Change the priority of a job that has not ended; its record says so on disk when this returns.

        Raises:
            Refused: there is no such job, or it has ended.
            Failed: the record can't be written; the priority stays.
        """
        changed = self._copy_live(job, "given another priority")
        if changed.priority != priority:
            changed.priority = priority
            self._queue.save(changed)
            self._feed(PriorityRequested(job, priority))
        return changed

    def _copy_live(self, job: str, done: str) -> Job:
        """Return a copy of the record of a job that has not ended (Refused if it has, or there is none)."""
        live = self._live.get(job)
        if live is not None:
            return copy_job(live.job)
        found = self.find(job)
        if found is None:
            raise Refused(self.describe_unknown(job))
        raise Refused(
            f"job {job} is {_name_state(found)} already; only jobs that have not ended can be {done}"
        )

    def trust(self, job: str, worker: str) -> Job:
        """Pin a running job to what a worker says of it; its record says so on disk when this returns.

        Raises:
            Refused: there is no such job, it does not run, or the worker's claim can't be trusted.
            Failed: the record can't be written; the job goes on as before.
        """
        live = self._live.get(job)
        found = live.job if live is not None else self.find(job)
        if found is None:
            raise Refused(self.describe_unknown(job))
        if found.state != jobs_pb2.RUNNING:
            raise Refused(
                f"job {job} is {_name_state(found)}; expected a running one, of which workers say something"
            )
        decided = copy_job(found)
        refusal = trust(decided, worker)
        if refusal is not None:
            raise Refused(str(refusal))
        if decided != found:
            self._queue.save(decided)
            self._feed(TrustRequested(job, worker))
        return decided

    def find(self, job: str) -> Job | None:
        """Return a job's current record; None if there is no such job. A live job's record changes with the job.

        Raises:
            Failed: the queue can't be read.
        """
        live = self._live.get(job)
        return live.job if live is not None else self._queue.find(job)

    def read_spec(self, job: str) -> str:
        """Return the complete job that was submitted under an id; see `JobQueue.read_spec`."""
        return self._queue.read_spec(job)

    def look_up(self, part: str) -> Job | None:
        """Return the record of the one job whose id contains a text; see `JobQueue.resolve_id`.

        Raises:
            Refused: several ids contain it, or the text is empty.
            Failed: the queue can't be read.
        """
        if part in self._live:
            return self._live[part].job
        job = self._queue.resolve_id(part)
        return None if job is None else self.find(job)

    def describe(self, job: Job) -> Job:
        """Return a job's record with all that people are told of it: its place in the queue, and advice."""
        record = self._live.get(job.id)
        if record is None:
            return job
        described = _describe_live(record, self._find_places() if job.state == jobs_pb2.QUEUED else {})
        described.advice = self._advise(record)
        return described

    def _advise(self, record: Record) -> str:
        """Return how a running job's steps could use all of its workers; empty if they do."""
        job = record.job
        if not isinstance(record.plan, JobPlan):
            return ""
        if record.plan.micro_batches * record.plan.stages >= job.workers:
            return ""
        return advise_on_idle_workers(JobConfig.from_json(record.spec_json), job.workers) or ""

    def page(
        self,
        after: int | None,
        limit: int,
        *,
        newest_first: bool,
        only: JobFilter = ALL_JOBS,
    ) -> JobPage:
        """Return some jobs in a row, with their places in the queue; see `JobQueue.page`.

        Raises:
            Failed: the queue can't be read.
        """
        limit = limit or LARGEST_PAGE_JOBS
        found = self._queue.page(after, limit, newest_first=newest_first, only=only)
        live = [self._live[each.id] for each in found.jobs if each.id in self._live]
        places = self._find_places() if any(each.job.state == jobs_pb2.QUEUED for each in live) else {}
        described = {each.job.id: _describe_live(each, places) for each in live}
        jobs = [described.get(each.id, each) for each in found.jobs]
        return JobPage(jobs, found.next_place)

    def describe_unknown(self, job: str) -> str:
        """Return one line that says that there is no such job, and which there are."""
        newest = [each.id for each in self.page(None, 5, newest_first=True).jobs]
        return f"no job {job!r}; the newest are: {', '.join(reversed(newest)) or 'none'}"


def _describe_live(record: Record, places: Mapping[str, Wait]) -> Job:
    """Return a copy of the record of a job that has not ended, with the workers that it wants and its place."""
    job = copy_job(record.job)
    if isinstance(record.plan, JobPlan):
        job.min_workers, job.max_workers = record.plan.min_workers, record.plan.max_workers
    place = places.get(job.id)
    if place is not None:
        job.position, job.waiting = place.position, place.reason
        if place.start_seconds is not None:
            job.estimated_start_seconds = place.start_seconds
    return job


def _name_state(job: Job) -> str:
    return jobs_pb2.JobState.Name(job.state).lower()
