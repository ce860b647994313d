"""Removal of what ended jobs have left: when a person asks for it, and by the aggregator's retention.

Whether a job is surplus and who still needs it is decided in `core/retention.py`. This module reads records and sizes,
and carries the decision out. All state is used on the event loop; the disk is used in threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from aggregator.core.clock_jumps import DISTRUST_SECONDS, ClockJumps
from aggregator.core.job_report import Record
from aggregator.core.retention import (
    EndedJob,
    Limits,
    Needs,
    Part,
    Protection,
    StoredCheckpoint,
    find_needs,
    select_surplus,
)
from aggregator.history.writer import MetricsHistory
from aggregator.storage.job_queue import LARGEST_PAGE_JOBS, JobQueue
from aggregator.storage.journal import Journal
from aggregator.storage.schema import LIVE_STATES
from aggregator.stored_checkpoints import StoredCheckpoints, StoredJob
from protos.cluster_pb2 import RemoveCheckpointsRequest
from protos.jobs_pb2 import Job, JobEvent, PrunedJob
from services.errors import Failed, Refused, TiermeshError, name_internal_error
from services.instrumentation.failpoints import hit_failpoint
from services.printable import counted
from services.protocol.bounds import MAX_NAMED_JOBS, MAX_NAMED_STEPS
from services.runtime.aggregator_metrics import AggregatorMetrics

log = logging.getLogger("tiermesh.aggregator")

BATCH_JOBS = 50
"""Jobs that are looked at, and then pruned, under one lock."""
PASS_JOBS = 100
"""Jobs after which a pass of the retention ends; the next one goes on."""
_LEAST_PAUSE_SECONDS = 1.0
_PAUSE_FACTOR = 20
"""Pause after a pass in lengths of the pass, so that the retention takes at most 5 % of the time."""
_MOST_BEGUN = 1000
"""Removals that one pass takes up again."""


class EndedRecord(NamedTuple):
    """What of an ended job's record decides about it.

    Attributes:
        id: the job's id.
        owner: the person who submitted it.
        ended_seconds: Unix time of its end.
    """

    id: str
    owner: str
    ended_seconds: float


@dataclass
class _Plan:
    """What goes of one job."""

    result: PrunedJob
    checkpoints: list[StoredCheckpoint]


class Pruner:
    """Prunes ended jobs.

    Args:
        queue: all jobs on disk.
        journal: their logs.
        history: the histories of their figures.
        stored: their checkpoints, which the optimizer has.
        live: the records of the jobs that have not ended, by id.
        metrics: the aggregator's metrics.
        retention: limits that are always applied, by what goes.
        remove_tracking: removes what trackers have written of a job; a thread calls it.
        grace_seconds: time since a job's end in which the retention keeps its record: a submit whose answer was lost is
            repeated, and people who follow a job hear of its end. Also the longest time between two passes of the
            retention, since ages grow by themselves.
        clock: Unix time in seconds.
        elapsed: monotonic time in seconds.
    """

    def __init__(
        self,
        *,
        queue: JobQueue,
        journal: Journal,
        history: MetricsHistory,
        stored: StoredCheckpoints,
        live: Mapping[str, Record],
        metrics: AggregatorMetrics,
        retention: Mapping[Part, Limits],
        grace_seconds: float,
        remove_tracking: Callable[[str], None],
        clock: Callable[[], float] = time.time,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue = queue
        self._journal = journal
        self._history = history
        self._stored = stored
        self._live = live
        self._metrics = metrics
        self._retention = retention
        self._grace_seconds = grace_seconds
        self._remove_tracking = remove_tracking
        self._clock = clock
        self._elapsed = elapsed
        self._jumps = ClockJumps()
        self._jumps.note(clock(), elapsed())
        self._lock = asyncio.Lock()
        self._wake = asyncio.Event()
        self._needs: dict[str, Needs] = {}  # of live jobs
        # Checkpoints that are being removed, by job; None for all. No new job may start from one.
        self._going: dict[str, list[StoredCheckpoint] | None] = {}

    # ---- new jobs ----

    def check_start(self, spec_json: str) -> None:
        """Check that a new job does not start from a checkpoint that is being removed. The caller adds it at once.

        Raises:
            Refused: it does.
        """
        if not self._going:
            return
        needs = find_needs("", spec_json)
        for job, going in self._going.items():
            steps = {step for each, step in needs.checkpoints if each == job}
            if going is None:
                is_going = bool(steps)
            else:
                is_going = any(
                    each.step in steps or (each.model_sha256 and each.model_sha256 == needs.model_sha256)
                    for each in going
                )
            if is_going:
                raise Refused(
                    f"the job starts from a checkpoint of job {job}, which is being pruned; give another one"
                )

    def _protection(self) -> Protection:
        self._needs = {
            job: self._needs.get(job) or find_needs(job, record.spec_json)
            for job, record in self._live.items()
        }
        return Protection(self._needs.values())

    # ---- which jobs ----

    async def select(
        self, is_meant: Callable[[EndedRecord], bool], part: Part, limits: Limits, grace_seconds: float = 0.0
    ) -> list[EndedRecord]:
        """Return ended jobs that at least one limit lets go, newest first.

        Args:
            is_meant: returns whether a job counts at all.
            part: what of them goes, whose size counts.
            limits: the limits.
            grace_seconds: time since its end in which a job stays.

        Raises:
            Failed: the queue or the optimizer can't be read.
        """
        ended = [each for each in await asyncio.to_thread(self._read_ended) if is_meant(each)]
        sizes = await self._sizes(ended, part) if limits.max_bytes is not None else {}
        jobs = [EndedJob(each.id, each.ended_seconds, sizes.get(each.id, 0)) for each in ended]
        surplus = {each.id for each in select_surplus(jobs, limits, self._clock(), grace_seconds)}
        return [each for each in ended if each.id in surplus]

    def _read_ended(self) -> list[EndedRecord]:
        """Read the records of all ended jobs, newest first, page by page."""
        found: list[EndedRecord] = []
        place: int | None = None
        while True:
            page = self._queue.page(place, LARGEST_PAGE_JOBS, newest_first=True)
            found += [
                EndedRecord(each.id, each.owner, each.ended_seconds)
                for each in page.jobs
                if each.state not in LIVE_STATES
            ]
            if page.next_place is None:
                return found
            place = page.next_place

    async def _sizes(self, jobs: Sequence[EndedRecord], part: Part) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for start in range(0, len(jobs), MAX_NAMED_JOBS):
            ids = [each.id for each in jobs[start : start + MAX_NAMED_JOBS]]
            if part is not Part.CHECKPOINTS:
                sizes |= await asyncio.to_thread(self._own_sizes, ids, part)
            if part is Part.LOGS:
                continue
            for job, stored in (await self._stored.list(ids)).items():
                newest = max((each.step for each in stored.checkpoints), default=0)
                counted = [each for each in stored.checkpoints if part is Part.JOBS or each.step != newest]
                sizes[job] = sizes.get(job, 0) + sum(each.size_bytes for each in counted)
        return sizes

    def _own_sizes(self, jobs: Iterable[str], part: Part) -> dict[str, int]:
        """Return the sizes of logs and, if whole jobs go, of histories too."""
        sizes = {job: self._journal.size_bytes(job) for job in jobs}
        if part is Part.JOBS:
            sizes = {job: size + self._history.size_bytes(job) for job, size in sizes.items()}
        return sizes

    # ---- pruning ----

    async def prune(
        self, jobs: Sequence[str], part: Part, *, by: str, dry_run: bool = False
    ) -> list[PrunedJob]:
        """Prune some ended jobs, at most `BATCH_JOBS`; leave out those that have nothing to prune.

        Args:
            jobs: their ids.
            part: what of them goes.
            by: who prunes them, for their logs.
            dry_run: whether nothing is removed.

        Raises:
            Failed: the queue or the optimizer can't be read; nothing was removed then.
        """
        async with self._lock:
            records = await asyncio.to_thread(self._read_records, jobs)
            stored = await self._list_due(records, part)
            own_sizes = await asyncio.to_thread(self._own_sizes, records, part)
            # From here to the entry in `_going` nothing is awaited, so no new job comes in between.
            protection = self._protection()
            plans = [
                plan
                for job, record in records.items()
                if (plan := _plan(record, part, stored.get(job), own_sizes[job], protection)) is not None
            ]
            if not dry_run:
                going = [plan for plan in plans if not plan.result.kept]
                for plan in going:
                    self._going[plan.result.job.id] = plan.checkpoints
                try:
                    for plan in going:
                        await self._carry_out(plan, part, by)
                finally:
                    for plan in going:
                        if self._going.get(plan.result.job.id) is plan.checkpoints:
                            del self._going[plan.result.job.id]
            return [plan.result for plan in plans]

    def _read_records(self, jobs: Sequence[str]) -> dict[str, Job]:
        """Read the records of those jobs that have ended and are still there."""
        found = ((job, self._queue.find(job)) for job in jobs)
        return {job: each for job, each in found if each is not None and each.state not in LIVE_STATES}

    async def _list_due(self, records: Mapping[str, Job], part: Part) -> dict[str, StoredJob]:
        """List the checkpoints of jobs with their hashes, which takes long; leave out jobs of which none can go."""
        if part is Part.LOGS or not records:
            return {}
        due = list(records)
        if part is Part.CHECKPOINTS:
            found = await self._stored.list(due)
            due = [job for job, stored in found.items() if stored.problem or len(stored.checkpoints) > 1]
        return await self._stored.list(due, hashes=True) if due else {}

    async def _carry_out(self, plan: _Plan, part: Part, by: str) -> None:
        result = plan.result
        job = result.job.id
        try:
            if part is Part.JOBS:
                await self._remove_job(job)
            elif part is Part.LOGS:
                await self._journal.remove(job)
            else:
                await self._remove_checkpoints(job, plan.checkpoints)
        except (TiermeshError, OSError) as error:
            result.kept = str(error)
            log.warning("job %s: not pruned: %s", job, error, extra={"job": job})
            return
        self._metrics.count_pruned(jobs=int(part is Part.JOBS), size_bytes=result.bytes)
        freed = f"{counted(result.checkpoints, 'checkpoint')}, {counted(result.bytes, 'byte')}"
        text = f"{part.value} pruned by {by}: {freed}"
        log.info("job %s: %s", job, text, extra={"job": job})
        if part is Part.CHECKPOINTS:
            self._journal.publish(JobEvent(job=result.job, seconds=self._clock(), kind="audit", text=text))

    async def _remove_checkpoints(self, job: str, checkpoints: Sequence[StoredCheckpoint]) -> None:
        for start in range(0, len(checkpoints), MAX_NAMED_STEPS):
            steps = [each.step for each in checkpoints[start : start + MAX_NAMED_STEPS]]
            await self._stored.remove(RemoveCheckpointsRequest(job=job, steps=steps))

    async def _remove_job(self, job: str) -> None:
        if not await asyncio.to_thread(self._begin_removal, job):
            raise Failed("it is gone already")
        await self._finish_removal(job)

    def _begin_removal(self, job: str) -> bool:
        begun = self._queue.begin_removal(job)
        hit_failpoint("aggregator.prune.begun")
        return begun

    async def _finish_removal(self, job: str) -> None:
        """Delete log, history and checkpoints of a job that is out of the queue.

        What fails is tried again by a later pass, and by the next aggregator that leads.
        """
        self._going.setdefault(job, None)
        try:
            await self._journal.remove(job)
            await asyncio.to_thread(self._history.remove, job)
            await asyncio.to_thread(self._remove_tracking, job)
            await self._stored.remove(RemoveCheckpointsRequest(job=job, all=True))
            await asyncio.to_thread(self._end_removal, job)
        except (TiermeshError, OSError) as error:
            self._going[job] = None  # until they are gone
            log.warning("job %s: pruned, but its files are left for now: %s", job, error, extra={"job": job})
            return
        del self._going[job]

    def _end_removal(self, job: str) -> None:
        hit_failpoint("aggregator.prune.deleted")
        self._queue.finish_removal(job)

    # ---- by itself ----

    def wake(self) -> None:
        """Have a pass of the retention run soon: a job has ended, or the optimizer is there again."""
        self._wake.set()

    async def run(self) -> None:
        """Finish removals that an earlier process has begun, and apply the retention, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            began, is_done = loop.time(), True
            try:
                is_done = await self._pass()
            except (TiermeshError, OSError) as error:
                log.warning("retention: %s; trying again later", error)
            except Exception as error:  # a defect here must not stop the jobs
                log.error("retention: %s", name_internal_error(error), exc_info=error)
            await asyncio.sleep(max(_LEAST_PAUSE_SECONDS, _PAUSE_FACTOR * (loop.time() - began)))
            if is_done:
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), self._grace_seconds)

    async def _pass(self) -> bool:
        """Apply the retention; return whether nothing is left to do."""
        async with self._lock:
            for job in await asyncio.to_thread(self._queue.begun_removals, _MOST_BEGUN):
                await self._finish_removal(job)
        jump_seconds = self._jumps.note(self._clock(), self._elapsed())
        if jump_seconds:
            log.warning(
                "retention: this host's clock was set forward by %.1f h; nothing goes by age for %.0f h: correct the "
                "clock if it is wrong",
                jump_seconds / 3600,
                DISTRUST_SECONDS / 3600,
            )
        for part, given in self._retention.items():
            limits = given
            if not self._jumps.believes_ages(self._elapsed()):
                limits = replace(given, older_than_seconds=None)
            grace_seconds = self._grace_seconds if part is Part.JOBS else 0.0
            surplus = await self.select(lambda job: True, part, limits, grace_seconds)
            pruned = 0
            for end in range(len(surplus), 0, -BATCH_JOBS):
                if pruned >= PASS_JOBS:
                    return False
                ids = [each.id for each in surplus[max(0, end - BATCH_JOBS) : end]]
                results = await self.prune(ids, part, by="the retention")
                pruned += sum(not each.kept for each in results)
        return True


def _plan(
    record: Job, part: Part, stored: StoredJob | None, own_bytes: int, protection: Protection
) -> _Plan | None:
    """Return what goes of a job, or why it stays; None if there is nothing to prune."""
    if part is Part.LOGS:
        return _Plan(PrunedJob(job=record, bytes=own_bytes), []) if own_bytes else None
    if stored is None:
        return None
    going, kept = stored.checkpoints, stored.problem
    if part is Part.JOBS:
        kept = kept or protection.why_job_kept(record.id, going)
    else:
        own_bytes = 0
        result_step = record.checkpoint_step if record.checkpoint else None
        going, needed = protection.select_removable(record.id, stored.checkpoints, result_step)
        kept = kept or needed
        if not going and not kept:
            return None
    size_bytes = own_bytes + sum(each.size_bytes for each in going)
    return _Plan(PrunedJob(job=record, bytes=size_bytes, checkpoints=len(going), kept=kept), going)
