"""The workers of one job: who joins it, who is admitted, who is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping

from aggregator.core.events import NoticeKind
from aggregator.core.job_report import JobReport
from aggregator.core.leasing.deaths import MOST_DEATHS, ComputeDeaths
from aggregator.core.leasing.failures import MOST_FAILURES, Blame
from aggregator.core.leasing.orders import WorkerOrders
from aggregator.core.membership.admission import Admission
from aggregator.core.membership.claims import Answer, claim_of, describe_differences
from aggregator.core.membership.code_pin import shorten_code
from aggregator.core.membership.devices import STALLED_TIMES
from aggregator.core.membership.exclusions import Exclusions
from aggregator.core.membership.members import ClaimWait, Fetch, Member
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import Wait
from services.errors import Refusal
from services.pipeline.split import StageRun
from services.printable import group_by_reason
from services.protocol.fingerprint import CODE
from services.protocol.versions import Version


class JobMembers:
    """Admits workers to a job and refuses those that do not match it.

    Args:
        members: the workers that serve the job, by session.
        admission: what the job demands of them.
        exclusions: the workers it has found faulty.
        deaths: the compute processes that died of it.
        orders: sends workers their orders.
        report: the job's record and log.
    """

    def __init__(
        self,
        members: Mapping[int, Member],
        admission: Admission,
        exclusions: Exclusions,
        deaths: ComputeDeaths,
        orders: WorkerOrders,
        report: JobReport,
    ) -> None:
        self._members = members
        self._admission = admission
        self._exclusions = exclusions
        self._deaths = deaths
        self._orders = orders
        self._report = report
        self._ends_at_seconds: float | None = None  # as of the last `check_hope`

    def enter(self, member: Member) -> bool:
        """Prepare a worker for the job; return False if it lacks a feature or is excluded, and so sent away."""
        member.forget_build()
        self._admission.claims.enter(member.name)
        lack = self._admission.check_features(member)
        if lack is not None:
            self.refuse(member, lack)
            return False
        refusal = self._exclusions.find(member.name) or self._deaths.find_refusal(member.incarnation)
        if refusal is not None:
            member.refusal = refusal
            self._admission.withdraw(member.name)
            self._orders.leave_for_good(member.session, str(refusal))
        return refusal is None

    def build(self, member: Member, now: float, stages: StageRun) -> None:
        """Order a worker to build stages of the job."""
        member.building_since_seconds = now
        member.builds += 1
        self._orders.join(member.session, self._report.spec_json, stages, member.builds)

    def admit(self, member: Member, ready: pb.Ready, *, leased: bool) -> Refusal | None:
        """Admit a worker that has built the job, or have it wait; return why it doesn't fit, None if it does.

        Args:
            member: the worker.
            ready: its report.
            leased: whether the job has leased anything yet.
        """
        refusal = self._admission.check_layout(claim_of(ready))
        if refusal is not None:
            return refusal
        claims = self._admission.claims
        member.building_since_seconds = member.fetch = None
        member.claim = claim_of(ready)
        answer, changed = claims.make(member.claim, member.name, member.voice, leased=leased)
        if changed:
            self._report.save()
        if answer is Answer.DISSENTS:
            member.dissents = True
            return self._admission.describe_dissent(member.claim)
        if answer is not Answer.AGREES:
            self._wait(member, ready, answer)
            return None
        self._admission.admit(member.name)
        member.ready, member.layout_hash = True, ready.layout_hash
        member.tokens = ready.tokens_per_micro_batch
        plausible = 1.0 <= ready.peak_flops < math.inf
        member.peak_flops = ready.peak_flops if plausible else None
        member.unfit = member.claim_wait = None
        member.loaded_version = Version(ready.generation, ready.step) if ready.holds else None
        return None

    def _wait(self, member: Member, ready: pb.Ready, answer: Answer) -> None:
        if answer is Answer.OTHER_CODE:
            own, pinned = shorten_code(ready.fingerprint.get(CODE, "")), shorten_code(self._admission.code)
            reason = (
                f"its code is {own}, the job's is {pinned}; it waits until no worker of the job's code is left "
                "(docs/operate/operations.md), or install the same version of Tiermesh and of your own model"
            )
        else:
            reason = self._admission.claims.describe_contention() or "it waits for a person"
        member.ready, member.unfit, member.claim_wait = False, None, ClaimWait(ready, Refusal(reason))
        self._admission.withdraw(member.name)
        self._report.note("member", f"worker {member.name} waits: {reason}")

    def note_admission(self, member: Member, ready: pb.Ready) -> None:
        """Publish that a worker is ready, and how its fingerprint differs from the job's."""
        own = self._admission.claims.own
        differences = describe_differences(claim_of(ready), own) if own is not None else ""
        accepted = f", with what the job accepts (`exact: false`): {differences}" if differences else ""
        self._report.note("member", f"worker {member.name} is ready{accepted}")

    def give_back(self, member: Member, reason: str) -> None:
        """Send away a worker that can be of use elsewhere."""
        self._admission.withdraw(member.name)
        self._report.note("member", f"worker {member.name} leaves: {reason}")
        self._orders.leave(member.session, reason)

    def refuse(self, member: Member, refusal: Refusal) -> None:
        """Send a worker away from this job."""
        member.ready, member.refusal, member.unfit = False, refusal, None
        member.building_since_seconds = member.fetch = member.claim_wait = None
        self._admission.withdraw(member.name)
        self._report.note_refusal(member.name, refusal)
        own = self._admission.claims.own
        layout_hash = self._admission.layout_hash or (own.layout_hash if own is not None else "")
        self._orders.leave_for_good(member.session, str(refusal), layout_hash=layout_hash)

    def count_failure(self, member: Member, reason: str) -> Refusal | None:
        """Count a failed lease; return why its worker must be refused, None if it may go on."""
        member.failures += 1
        if member.failures == MOST_FAILURES:
            return Refusal(f"{MOST_FAILURES} leases in a row failed, the last with: {reason}")
        job = self._report.job
        self._report.note("member", f"worker {member.name} failed in step {job.step}: {reason}")
        return None

    def count_death(self, member: Member, reason: str) -> Blame:
        """Count a death of a worker's compute process; return who is at fault."""
        text = f"worker {member.name}: its compute process died: {reason}"
        ending = f"{MOST_DEATHS} such deaths with no step between end the job"
        self._report.note("member", f"{text}; {ending}", NoticeKind.WORKER_LOST)
        return self._deaths.add(member.name, member.incarnation, reason)

    def mark_unfit(self, member: Member, reason: Refusal) -> None:
        """Record that a worker can't open its mesh, or lacks an input; it reports Ready when it has built the job."""
        known, member.unfit = member.unfit, reason
        self.lose_build(member)
        if known != reason:
            self._report.note("member", f"worker {member.name} is unfit and tries again: {reason}")

    def lose_build(self, member: Member) -> None:
        """Note that the job is not on a worker's mesh."""
        member.lose_build()
        member.building_since_seconds = member.fetch = None
        self._admission.withdraw(member.name)

    def note_fetching(self, member: Member, fetching: pb.Fetching, now: float) -> None:
        """Record how far a worker is that reads a job's input; one that gets on is neither too slow nor unfit."""
        if member.ready or member.claim_wait is not None:
            return
        if member.building_since_seconds is None:  # it tries again
            member.building_since_seconds = now
        before = member.fetch
        if before is not None and (
            fetching.bytes > before.progress.bytes or fetching.local != before.progress.local
        ):
            member.unfit = None
            member.fetch = Fetch(fetching, now)
        else:
            member.fetch = Fetch(fetching, now if before is None else before.since_seconds)

    def mark_slow_builds(self, now: float, most_seconds: float) -> None:
        """Count workers as unfit that build the job for too long: a file or a device may hang."""
        for member in self._members.values():
            since, fetch = member.building_since_seconds, member.fetch
            if since is None or member.unfit is not None:
                continue
            if now - (since if fetch is None else fetch.since_seconds) <= most_seconds:
                continue
            text = (
                f"it has been building the job for more than {most_seconds:g} s (stall)"
                if fetch is None
                else f"for more than {most_seconds:g} s (stall) it has got no further with {fetch.describe()}"
            )
            device = f"; {member.device}" if member.device is not None and member.device.is_busy else ""
            reason = Refusal(
                f"{text}{device}; look at its log, its data's mounts and its devices, and restart it if it hangs"
            )
            self.mark_unfit(member, reason)
            member.building_since_seconds, member.fetch = since, fetch  # it may still become ready

    def mark_hangs(self, most_seconds: float) -> None:
        """Mark workers whose devices compute without getting on, and no longer those that go on.

        A worker that builds the job has a limit of its own, which knows how far it has read its inputs.
        """
        for member in self._members.values():
            device, out = member.device, member.refusal is not None or member.unfit is not None
            if device is None or not device.is_busy or out or member.building_since_seconds is not None:
                hangs = False
            else:
                micro_batch_seconds = 1 / member.speed if member.speed else 0.0
                hangs = device.seconds > max(most_seconds, STALLED_TIMES * micro_batch_seconds)
            if hangs != member.hangs:
                member.hangs = hangs
                text = member.detail if hangs else "its device goes on"
                tells = NoticeKind.STALLED if hangs else None
                self._report.note("member", f"worker {member.name}: {text}", tells)

    def waits(self, now: float) -> list[Wait]:
        """Return which workers are building the job, and for how long."""
        job = self._report.job
        return [
            Wait(
                role="worker",
                peer=each.name,
                job=job.id,
                step=job.step,
                what="to build the job"
                if each.fetch is None
                else f"to {each.fetch.verb} {each.fetch.describe()}",
                seconds=now - each.building_since_seconds,
            )
            for each in self._members.values()
            if each.building_since_seconds is not None
        ]

    def check_hope(self, now: float, *, others: bool) -> Refusal | None:
        """Return why no worker can run the job, with each worker's reason; None if there is hope.

        Args:
            now: the time, on the monotonic clock.
            others: whether there are workers that serve other jobs, or none, and may fit.
        """
        waited = self._ends_at_seconds
        self._ends_at_seconds = None if others else self._admission.find_end(self._members.values(), now)
        if self._ends_at_seconds is None:
            return None
        if now >= self._ends_at_seconds:
            return Refusal(f"no worker can run the job: {self._describe_reasons()}")
        if waited is None:
            self._report.note("member", f"the job {self.describe_hope(now)}")
        return None

    def describe_hope(self, now: float) -> str | None:
        """Return that the job waits for a worker that can run it, and for how long; None while one may do so."""
        if self._ends_at_seconds is None or not self._members:
            return None
        left = f"it ends in {max(0.0, self._ends_at_seconds - now):.0f} s without one that can run it"
        return f"waits for another worker: {left}; {self._describe_reasons()}"

    def _describe_reasons(self) -> str:
        reasons = {each.name: str(each.refusal or each.unfit) for each in self._members.values()}
        return "; ".join(f"{names}: {reason}" for names, reason in group_by_reason(reasons))
