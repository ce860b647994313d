"""Admission: the demands that a job, and the cluster, make on workers.

A worker that says otherwise of the job than its own claim does could compute other bits (claims.py).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from aggregator.core.membership.claims import DIFFERENCES_CHARACTERS, Claims, describe_differences
from aggregator.core.membership.members import Member
from protos.cluster_pb2 import Hello
from protos.jobs_pb2 import Claim, Job
from services.errors import Refusal
from services.printable import printable
from services.protocol.bounds import MAX_WORKERS
from services.protocol.features import find_lack
from services.protocol.fingerprint import CODE, own_code_of
from services.timeouts import Timeouts


class Admission:
    """The demands of a job on its workers, and the workers that meet them.

    Args:
        job: the job's record.
        exact: whether a worker's fingerprint must match that of the job's own claim.
        features: names of the features that a worker must have.
        timeouts: the cluster's timeouts.
        now: the time, on the monotonic clock.

    Attributes:
        claims: what workers say of the job.
        layout_hash: the hash of the layout that the optimizer has; empty before it has one.
        layout_counts: whether that layout is the job's, whatever workers say.
    """

    def __init__(
        self, job: Job, *, exact: bool, features: Sequence[str], timeouts: Timeouts, now: float
    ) -> None:
        self.claims = Claims(job, exact=exact, now=now, comeback_seconds=timeouts.comeback)
        self.layout_hash = ""
        self.layout_counts = False
        self._job = job.id
        self._exact = exact
        self._features = features
        self._unfit_seconds = timeouts.unfit  # long enough for a person to repair a mesh
        self._comeback_seconds = timeouts.comeback
        self._admitted: set[str] = set()
        self._unable_since_seconds: float | None = None
        self._expected_until_seconds = now + timeouts.comeback if job.claims else now

    def check_features(self, member: Member) -> Refusal | None:
        """Return which feature a worker lacks that the job needs; None if it has them all."""
        return find_lack(self._job, self._features, member.features)

    def check_layout(self, claim: Claim) -> Refusal | None:
        """Return why a worker that has built the layout of this claim can't take part; None if it can."""
        if not self.layout_counts or self.layout_hash in ("", claim.layout_hash):
            return None
        own = self.claims.own
        if own is not None and own_code_of(claim.fingerprint) != own_code_of(own.fingerprint):
            return self.describe_dissent(claim)  # of which another layout is only a consequence
        return Refusal(
            f"its model's layout hash {claim.layout_hash[:12]} differs from the job's {self.layout_hash[:12]}; "
            "give all hosts the same version of Tiermesh"
        )

    def describe_dissent(self, claim: Claim) -> Refusal:
        """Return why a worker with this claim can't take part, which is not the job's own."""
        own = self.claims.own
        assert own is not None
        differences = describe_differences(claim, own)
        if own_code_of(claim.fingerprint) != own_code_of(own.fingerprint):
            return Refusal(
                f"its own model differs: {printable(differences, DIFFERENCES_CHARACTERS)}; a job keeps the code of its "
                "first build: submit it with --code FOLDER, or install the same files on all hosts"
            )
        if self._exact and claim.fingerprint != own.fingerprint:
            accepts = "`exact: false` in the job would accept it, `tiermesh trust` overrules the job's"
            return Refusal(f"fingerprint differs: {differences} ({accepts})")
        return Refusal(
            f"its model differs: {differences}; give all hosts the same version of Tiermesh, or overrule the job's "
            "with `tiermesh trust`"
        )

    @property
    def code(self) -> str:
        """The hash of the code that the job is pinned to; empty if it has none."""
        return self.claims.own.fingerprint.get(CODE, "") if self.claims.own is not None else ""

    def admit(self, name: str) -> None:
        """Count a worker among those that take part."""
        self._admitted.add(name)

    def missing(self, present: Collection[str]) -> list[str]:
        """Return the admitted workers that are not among the present ones."""
        return sorted(self._admitted - set(present))

    def withdraw(self, name: str) -> None:
        """Count a worker as taking no part, since it is refused or unfit."""
        self._admitted.discard(name)

    def find_end(self, members: Collection[Member], now: float) -> float | None:
        """Return when the job ends since no worker can take part: all are refused or unfit; None while there is hope.

        One voice may lie, so it can't end the job before others had time to come. A worker that dissents, or lacks a
        feature, says nothing of the job.
        """
        able = any(member.refusal is None and member.unfit is None for member in members)
        if able or not members or self._admitted:
            self._unable_since_seconds = None
            return None
        if self._unable_since_seconds is None:
            self._unable_since_seconds = now
        voices = {each.voice for each in members if not each.dissents and self.check_features(each) is None}
        wait_seconds = 0.0
        if any(member.unfit is not None for member in members):
            wait_seconds = self._unfit_seconds
        elif len(voices) < 2 and "" not in voices:
            wait_seconds = self._comeback_seconds
        return max(self._expected_until_seconds, self._unable_since_seconds + wait_seconds)


def check_identity(
    hello: Hello, *, members: Collection[Member], now: float, silent_seconds: float
) -> Refusal | None:
    """Return why a worker can't be connected: another one has its name or its incarnation, or there are too many.

    The workers of a row know each other by both. None if it can be connected.

    Args:
        hello: the worker's first message.
        members: the workers connected already.
        now: the time, on the monotonic clock.
        silent_seconds: time without a message after which a connected worker no longer owns its name.
    """
    for other in members:
        silent = now - other.heard_seconds
        same_name, same_process = other.name == hello.name, other.incarnation == hello.incarnation
        if same_name and not same_process and silent < silent_seconds:
            return Refusal(
                f"a worker named {hello.name} is connected already, heard less than {silent_seconds:g} s ago; "
                "give this one another --name"
            )
        if same_process and not same_name:
            process = printable(hello.incarnation, 60)
            return Refusal(
                f"worker {hello.name} says that it is process {process}, which is worker {other.name}; "
                "expected an id of its own"
            )
    if len(members) >= MAX_WORKERS:
        return Refusal(
            f"{MAX_WORKERS} workers are connected, the most that an aggregator takes; stop another one"
        )
    return None
