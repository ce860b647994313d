"""The queue on disk: jobs with their complete specs, in order of submission.

A new job is inserted, never written over another one. A change of a job is an update of its one row, whose size stays
the same while the record grows, so that it succeeds on a full disk. Specs are read only for jobs that have not ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from aggregator.core.setting_aside import note_crashes
from aggregator.storage import removals, reserve
from aggregator.storage.job_ids import draw_job_id
from aggregator.storage.queue_file import DiskFull, QueueFile
from aggregator.storage.schema import LIVE_STATES, request_digest, room_of
from protos import jobs_pb2
from services.caps import Cap, CapReached, Caps
from services.errors import Failed, Refused
from services.instrumentation.failpoints import hit_failpoint
from services.printable import counted, printable
from services.timeouts import Timeouts

LARGEST_PAGE_JOBS = 1_000
LARGEST_PAGE_BYTES = 1 << 20
"""Size of a page's records, far below that of a message."""

LATEST = "latest"
"""Name by which people call the newest job."""

_ID_DRAWS = 100
_MOST_CANDIDATES = 5


class StoredJob(NamedTuple):
    """A job as it is on disk.

    Attributes:
        job: the job's record.
        spec_json: the complete job.
    """

    job: jobs_pb2.Job
    spec_json: str


class JobPage(NamedTuple):
    """Some jobs in a row.

    Attributes:
        jobs: their records.
        next_place: the place after which the next page begins; None if this was the last one.
    """

    jobs: list[jobs_pb2.Job]
    next_place: int | None


class JobFilter(NamedTuple):
    """The jobs that a list is about.

    Attributes:
        states: states of the jobs; empty for all.
        owner: person who owns them; empty for all.
        name: part of their names; empty for all.
    """

    states: frozenset[jobs_pb2.JobState] = frozenset()
    owner: str = ""
    name: str = ""

    def matches(self, job: jobs_pb2.Job) -> bool:
        """Return whether the list is about a job."""
        return (
            (not self.states or job.state in self.states)
            and (not self.owner or job.owner == self.owner)
            and self.name in job.name
        )


ALL_JOBS = JobFilter()


class JobQueue(QueueFile):
    """Jobs in order of submission, and the epoch; see `QueueFile` for how it is opened."""

    def add(
        self, job: jobs_pb2.Job, spec_json: str, request_id: str = "", caps: Caps | None = None
    ) -> jobs_pb2.Job:
        """Put a new job at the end of the queue, under an id of its own, which is on disk when this returns.

        Args:
            job: the job's record; its id is drawn here.
            spec_json: the complete job.
            request_id: the id of the request, by which a repetition is recognised; empty for none.
            caps: the caps on the number of jobs, which a repetition passes; None for no caps.

        Returns:
            The job's record. For a repeated request, the record of the job that it made.

        Raises:
            Refused: the request id belongs to another job.
            CapReached: the queue or the job's owner has too many live jobs.
            Deposed: a newer aggregator has taken over.
            DiskFull: there is no space for it; nothing was written.
            Failed: the file can't be written.
        """
        if not self._reserve_is_full:
            self._fill_reserve()
        digest = request_digest(job.name, spec_json) if request_id else ""
        with self._explain_os_errors(), self._saving():
            earlier = self._find_request(job, request_id, digest) if request_id else None
            if earlier is not None:
                return earlier
            if caps is not None:
                self._check_caps(job.owner, caps)
            place = self._insert(job, request_id, digest)
            self._connection.execute("INSERT INTO specs VALUES (?, ?)", (place, spec_json))
        return job

    def save(self, job: jobs_pb2.Job) -> None:
        """Store the record of a job in the queue, which is on disk when this returns.

        Args:
            job: the job's record.

        Raises:
            Deposed: a newer aggregator has taken over.
            DiskFull: the record has outgrown its row, and neither disk nor reserve have space.
            Failed: the file can't be written, or has no such job.
        """
        while True:
            try:
                return self._update(job)
            except DiskFull:
                if not self._release_reserve():
                    raise

    def note_crash(self, steps: Mapping[str, int], reason: str) -> list[jobs_pb2.Job]:
        """Store that the aggregator failed while it ran jobs; return the jobs' records.

        Args:
            steps: the jobs' steps at which it happened, by id.
            reason: the error, as one line.

        Raises:
            Deposed: a newer aggregator has taken over.
            Failed: the file can't be read or written, or has no such job.
        """
        jobs = []
        for job_id in steps:
            job = self.find(job_id)
            if job is None:
                raise Failed(f"queue {self.path}: no job {job_id}, at which the aggregator failed: {reason}")
            jobs.append(job)
        note_crashes(jobs, reason, steps)
        for job in jobs:
            self.save(job)
        return jobs

    def live_jobs(self) -> list[StoredJob]:
        """Return the jobs that have not ended, in order of submission.

        Raises:
            Failed: the file can't be read.
        """
        query = "SELECT job, spec_json FROM jobs LEFT JOIN specs USING (place) WHERE live ORDER BY place"
        with self._lock, self._explain_errors():
            return [_stored_job(*row) for row in self._connection.execute(query).fetchall()]

    def find(self, job: str) -> jobs_pb2.Job | None:
        """Return a job's record; None if there is no such job.

        Raises:
            Failed: the file can't be read.
        """
        with self._lock, self._explain_errors():
            row = self._connection.execute("SELECT job FROM jobs WHERE id = ?", (job,)).fetchone()
            return None if row is None else _record(row[0])

    def read_spec(self, job: str) -> str:
        """Return the complete job that was submitted under an id.

        Raises:
            Failed: the file can't be read, or has no such job.
        """
        query = "SELECT spec_json FROM jobs JOIN specs USING (place) WHERE id = ?"
        with self._lock, self._explain_errors():
            row = self._connection.execute(query, (job,)).fetchone()
            if row is None:
                raise Failed(f"queue {self.path}: no spec of job {job}")
            if not isinstance(row[0], str):
                raise ValueError("a job's spec is not text")
            return row[0]

    def resolve_id(self, part: str) -> str | None:
        """Return the id of the one job whose id contains a text; None if there is none. `latest` is the newest job.

        Raises:
            Refused: several ids contain it, or the text is empty.
            Failed: the file can't be read.
        """
        if part == LATEST:
            newest = self.page(None, 1, newest_first=True).jobs
            return newest[0].id if newest else None
        if not part:
            raise Refused(
                f"no job is named: give a job's id, any part that only its id contains, or {LATEST}"
            )
        # In the order of the index on ids, which has all that this reads.
        query = "SELECT id FROM jobs WHERE instr(id, ?) LIMIT ?"
        with self._lock, self._explain_errors():
            exact = self._connection.execute("SELECT id FROM jobs WHERE id = ?", (part,)).fetchone()
            rows = (
                [exact] if exact else self._connection.execute(query, (part, _MOST_CANDIDATES + 1)).fetchall()
            )
        if len(rows) > 1:
            more = ", ..." if len(rows) > _MOST_CANDIDATES else ""
            candidates = ", ".join(row[0] for row in rows[:_MOST_CANDIDATES])
            raise Refused(
                f"job {part!r}: the ids of several jobs contain this: {candidates}{more}; give more of one"
            )
        return str(rows[0][0]) if rows else None

    def page(
        self,
        after: int | None,
        limit: int,
        *,
        newest_first: bool = False,
        only: JobFilter = ALL_JOBS,
    ) -> JobPage:
        """Return the records of some jobs in a row, in order of submission or in reverse.

        Args:
            after: the `next_place` of the page before; None for the first page.
            limit: the number of jobs; at most `LARGEST_PAGE_JOBS` are looked at, and `LARGEST_PAGE_BYTES` or one job
                returned.
            newest_first: whether the newest job comes first.
            only: the jobs to return; others are passed over, so that a page may be empty though more follow.

        Raises:
            Failed: the file can't be read.
        """
        order, beyond = ("DESC", "<") if newest_first else ("ASC", ">")
        start = after if after is not None else (1 << 63) - 1 if newest_first else 0
        limit = min(limit, LARGEST_PAGE_JOBS)
        most = limit if only == ALL_JOBS else LARGEST_PAGE_JOBS
        query = f"SELECT place, job FROM jobs WHERE place {beyond} ?{_only_live(only)} ORDER BY place {order} LIMIT ?"
        with self._lock, self._explain_errors():
            rows = self._connection.execute(query, (start, most + 1)).fetchall()
            jobs: list[jobs_pb2.Job] = []
            size, last, passed = 0, start, 0
            for place, stored in rows[:most]:
                job = _record(stored)
                if only.matches(job):
                    size += len(stored)
                    if len(jobs) == limit or (jobs and size > LARGEST_PAGE_BYTES):
                        break
                    jobs.append(job)
                last, passed = place, passed + 1
            return JobPage(jobs, last if passed < len(rows) else None)

    def _check_caps(self, owner: str, caps: Caps) -> None:
        """Check that there may be another live job, within the transaction that inserts it (CapReached)."""
        (live,) = self._connection.execute("SELECT count(*) FROM jobs WHERE live").fetchone()
        if live >= caps.queued_jobs:
            raise CapReached(
                Cap.QUEUED_JOBS,
                f"queue: {counted(live, 'job')} queued, running or paused, expected at most {caps.queued_jobs} "
                "(--max-queued-jobs of the aggregator); submit again when some have ended, or cancel some with "
                "`tiermesh cancel`",
            )
        if not owner:
            return
        query = "SELECT count(*) FROM jobs WHERE live AND owner = ?"
        (own,) = self._connection.execute(query, (owner,)).fetchone()
        if own >= caps.jobs_per_person:
            raise CapReached(
                Cap.JOBS_PER_PERSON,
                f"person {printable(owner, 60)}: has {counted(own, 'job')} queued, running or paused, expected at most "
                f"{caps.jobs_per_person} (--max-jobs-per-person of the aggregator); submit again when some have ended, "
                "or cancel some with `tiermesh cancel`",
            )

    def begin_removal(self, job: str) -> bool:
        """Take an ended job out of the queue, and note that its files must go; on disk when this returns.

        Returns:
            Whether there was such a job, and it had ended.

        Raises:
            Deposed: a newer aggregator has taken over.
            DiskFull: neither disk nor reserve have space.
            Failed: the file can't be written.
        """
        while True:
            try:
                with self.fenced():
                    return removals.begin(self._connection, job)
            except DiskFull:
                if not self._release_reserve():
                    raise

    def begun_removals(self, limit: int) -> list[str]:
        """Return the ids of some jobs whose files must go, at most `limit`, the latest first.

        Raises:
            Failed: the file can't be read.
        """
        with self._lock, self._explain_errors():
            return removals.list_begun(self._connection, limit)

    def finish_removal(self, job: str) -> None:
        """Note that a removed job has no files left.

        Raises:
            Deposed: a newer aggregator has taken over.
            Failed: the file can't be written.
        """
        with self.fenced():
            removals.finish(self._connection, job)

    def _insert(self, job: jobs_pb2.Job, request_id: str, digest: str) -> int:
        """Insert a job's row under a new id within a transaction; return its place."""
        for _ in range(_ID_DRAWS):
            job.id = draw_job_id(job.submitted_seconds)
            if removals.is_begun(self._connection, job.id):
                continue  # else its files would go with those of the job that had this id
            record = job.SerializeToString()
            added = self._connection.execute(
                "INSERT INTO jobs (id, owner, request_id, request_sha256, live, job, room)"
                " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING",
                (job.id, job.owner, request_id, digest, _is_live(job), record, room_of(record)),
            )
            if added.rowcount == 1 and added.lastrowid is not None:
                return added.lastrowid
        raise Failed(
            f"queue {self.path}: no new id after {_ID_DRAWS} draws, the last was {job.id}; submit again"
        )

    def _find_request(self, job: jobs_pb2.Job, request_id: str, digest: str) -> jobs_pb2.Job | None:
        """Return the job that a request has made; None for a new request. Within a transaction."""
        row = self._connection.execute(
            "SELECT request_sha256, job FROM jobs WHERE owner = ? AND request_id = ?", (job.owner, request_id)
        ).fetchone()
        if row is None:
            return None
        earlier = _record(row[1])
        if row[0] != digest:
            raise Refused(
                f"request_id {request_id!r}: job {earlier.id} was submitted with it and has another name or spec; "
                "give each new job a request id of its own"
            )
        return earlier

    def _update(self, job: jobs_pb2.Job) -> None:
        with self._explain_os_errors(), self._saving():
            record = job.SerializeToString()
            changed = self._connection.execute(
                "UPDATE jobs SET live = ?, job = ?, room = ? WHERE id = ?",
                (_is_live(job), record, room_of(record), job.id),
            ).rowcount
            if changed != 1:
                raise Failed(f"queue {self.path}: no job {job.id}, whose record was to be updated")

    @contextmanager
    def _saving(self) -> Iterator[None]:
        """Run the block as a transaction that writes a job's record, between two failpoints."""
        with self.fenced():
            yield
            hit_failpoint("aggregator.save.before")
        hit_failpoint("aggregator.save.after")

    def _release_reserve(self) -> bool:
        """Free some pages of the reserve; return False if none are left."""
        self._reserve_is_full = False
        with self.fenced():
            return reserve.release(self._connection)


def open_queue(state_dir: Path, timeouts: Timeouts) -> JobQueue:
    """Return the queue of an aggregator's state folder.

    Raises:
        Refused: it can't be used.
    """
    return JobQueue(state_dir / "queue.sqlite", timeouts.lock)


def _only_live(only: JobFilter) -> str:
    """Return a condition by which the file passes over all ended jobs, or all others; empty if jobs of both match."""
    live = {state in LIVE_STATES for state in only.states}
    return "" if len(live) != 1 else " AND live" if live.pop() else " AND NOT live"


def _is_live(job: jobs_pb2.Job) -> bool:
    return job.state in LIVE_STATES


def _record(job: object) -> jobs_pb2.Job:
    """Return a record after checking its column's type, since SQLite lets a column have any (ValueError)."""
    if not isinstance(job, bytes):
        raise ValueError("a job's record is not bytes")
    return jobs_pb2.Job.FromString(job)


def _stored_job(job: object, spec_json: object) -> StoredJob:
    """Return a row's values after checking their types (ValueError)."""
    record = _record(job)
    if record.state not in LIVE_STATES:
        raise ValueError(f"job {record.id} is in state {record.state} but counts as one that has not ended")
    if not isinstance(spec_json, str):
        raise ValueError("a job's spec is not text")
    return StoredJob(record, spec_json)
