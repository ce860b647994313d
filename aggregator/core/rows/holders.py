"""Holders of leases: the workers of a job or, in a job with a pipeline, rows of them.

Whatever a worker reports of a lease goes through here, and comes out as the report of the lease's holder.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from aggregator.core.leasing.lease_book import LeaseBook
from aggregator.core.membership.job_members import JobMembers
from aggregator.core.membership.members import Member
from aggregator.core.verification.answers import Answers, collect_answers
from protos import cluster_pb2 as pb
from protos.tensors_pb2 import ChunkHeader
from services.errors import Refusal
from services.pipeline.split import StageRun
from services.protocol.versions import Version
from services.tensors.layout_parts import LayoutParts


class Holders(Protocol):
    """The holders of a job's leases."""

    # ---- workers ----

    def join(self, members: Iterable[Member], now: float) -> None:
        """Take workers into the job, unless they are excluded, and have them build what they are to hold."""

    def settle(self, now: float) -> None:
        """Take account of workers that can do more or less than before, and of the time."""

    def release(self, member: Member, now: float) -> None:
        """Release the leases of a worker that is gone, refused or unfit."""

    def find(self, member: Member) -> Member | None:
        """Return the holder that a worker belongs to; None if it belongs to none."""

    def find_seat(self, member: Member) -> tuple[int, StageRun] | None:
        """Return the id of a worker's row and its stages in it; None if it is in no row."""

    def expects(self, member: Member, ready: pb.Ready) -> bool:
        """Return whether a worker has built what it was told last."""

    def note_built(self, member: Member, ready: pb.Ready, now: float) -> Refusal | None:
        """Take account of what a worker has built; return why it can't take part, None if it can."""

    def note_too_large(self, member: Member, failure: pb.Failure, now: float) -> Refusal | None:
        """Give a worker less to build, since that does not fit it; return why it can't take part, None if it can."""

    def describe_shortage(self, now: float) -> str | None:
        """Return what the job waits for before a lease can be granted; None if one can."""

    # ---- leases ----

    def weights_loaded(self, member: Member, version: Version) -> tuple[Member, Version] | None:
        """Record the version that a worker has; return its holder and the holder's version, None if that stays."""

    def computed(self, member: Member, computed: pb.Computed) -> tuple[Member, pb.Computed, Answers] | None:
        """Return the holder of a lease, its report and its checksums; None while workers of it still compute."""

    def evaluated(self, member: Member, evaluated: pb.Evaluated) -> tuple[Member, pb.Evaluated] | None:
        """Return the holder of a lease and its losses; None while workers of it still compute."""

    def find_described(self, member: Member) -> Member | None:
        """Return the holder whose initial weights a worker describes; None if another worker does."""

    def void_failed(self, member: Member, failure: pb.Failure, now: float) -> Member | None:
        """Void a failed lease for all workers that have it; return its holder if the worker is at fault, else None."""

    # ---- chunks ----

    def check_piece(self, member: Member, header: ChunkHeader) -> Refusal | None:
        """Return why a worker can't send what the header describes; None if it can."""

    def waits_for_report(self, member: Member, header: ChunkHeader) -> bool:
        """Return whether a chunk must wait until its holder has reported the lease as computed."""

    def weights_of(self, member: Member) -> LayoutParts | None:
        """Return the pieces of weights that a worker gets; None for all chunks."""


class WorkersAsHolders:
    """The workers of a job without a pipeline: each of them is a holder.

    Args:
        job_members: has workers build the job.
        lease_book: the workers' leases.
    """

    def __init__(self, job_members: JobMembers, lease_book: LeaseBook) -> None:
        self._job_members = job_members
        self._lease_book = lease_book

    def join(self, members: Iterable[Member], now: float) -> None:
        """Order workers to build the job."""
        for member in members:
            if self._job_members.enter(member):
                self._job_members.build(member, now)

    def settle(self, now: float) -> None:
        """Do nothing: a worker needs no others."""

    def release(self, member: Member, now: float) -> None:
        """Release the leases of a worker that is gone, refused or unfit."""
        self._lease_book.abandon(member, now)

    def find(self, member: Member) -> Member | None:
        """Return the worker."""
        return member

    def find_seat(self, member: Member) -> tuple[int, StageRun] | None:
        """Return None: there are no rows."""
        return None

    def expects(self, member: Member, ready: pb.Ready) -> bool:
        """Return True: all workers build the same."""
        return True

    def note_built(self, member: Member, ready: pb.Ready, now: float) -> Refusal | None:
        """Return None: what workers build is alike, as their layouts' hashes say."""
        return None

    def note_too_large(self, member: Member, failure: pb.Failure, now: float) -> Refusal | None:
        """Return the worker's reason: there is nothing smaller to build."""
        return Refusal(failure.reason)

    def describe_shortage(self, now: float) -> str | None:
        """Return None: the workers' states say it all."""
        return None

    def weights_loaded(self, member: Member, version: Version) -> tuple[Member, Version] | None:
        """Return the worker and its version."""
        return member, version

    def computed(self, member: Member, computed: pb.Computed) -> tuple[Member, pb.Computed, Answers] | None:
        """Return the worker, its report and its checksums."""
        reports = [(member.name, computed.checksums)]
        return member, computed, collect_answers(member.workers, computed.lease, reports)

    def evaluated(self, member: Member, evaluated: pb.Evaluated) -> tuple[Member, pb.Evaluated] | None:
        """Return the worker and its losses."""
        return member, evaluated

    def find_described(self, member: Member) -> Member | None:
        """Return the worker."""
        return member

    def void_failed(self, member: Member, failure: pb.Failure, now: float) -> Member | None:
        """Return the worker: no other one has the lease."""
        return member

    def check_piece(self, member: Member, header: ChunkHeader) -> Refusal | None:
        """Return None: each chunk comes as a whole."""
        return None

    def waits_for_report(self, member: Member, header: ChunkHeader) -> bool:
        """Return False: chunk 0 comes with all that is to be reported."""
        return False

    def weights_of(self, member: Member) -> LayoutParts | None:
        """Return None: each worker gets all chunks."""
        return None
