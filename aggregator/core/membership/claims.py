"""What workers say of a job, and which word counts: that of the first one, until it leaves or its claim binds.

A claim is a fingerprint, a layout and the number of held-out batches. The first COMMIT made with it binds it, or a
second voice, or a person. A voice is a certificate that is bound to a name, so no worker has two. A claim that is not
bound ends with its claimants. A worker whose stages read no data may not know the number. It agrees with any, and is a
claimant of none, so it neither binds nor answers for what it does not know.
Claims are in the job's record, which is on disk before any of them takes effect. The first one there is the job's own.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from protos.cluster_pb2 import Ready, Void
from protos.jobs_pb2 import Claim, Claimant, Exclusion, Job
from services.errors import Refusal
from services.printable import printable
from services.protocol.fingerprint import CODE
from services.protocol.versions import Version

MOST_CLAIMS = 8
"""Maximum number of claims in a job's record. Where there are more, one that is not the job's own goes."""
MOST_CLAIMANTS = 16
"""Maximum number of claimants of a claim in a job's record."""
SHOWN_DIGITS = 12
"""Number of digits of a hash that people are shown."""
DIFFERENCES_CHARACTERS = 160
"""Longest list of differences between two claims, where more is to be said than that."""


class Answer(Enum):
    """What a worker's claim means for its part in the job."""

    AGREES = "agrees"  # it may take part
    OTHER_CODE = "other code"  # it waits until the job changes its code
    CONTENDS = "contends"  # nothing is leased until it is decided
    DISSENTS = "dissents"  # it is refused


class Claims:
    """The claims on one job.

    Args:
        job: the job's record.
        exact: whether claims on the fingerprint must agree; those on the layout always must.
        now: the time, on the monotonic clock.
        comeback_seconds: time for which claimants in the record, of before a restart, count as present.
    """

    def __init__(self, job: Job, *, exact: bool, now: float, comeback_seconds: float) -> None:
        self._job = job
        self._exact = exact
        self._awaited = {each.worker for claim in job.claims for each in claim.claimants}
        self._awaited_until_seconds = now + comeback_seconds
        self._present: set[str] = set()

    # ---- questions ----

    @property
    def own(self) -> Claim | None:
        """The claim that counts; None before a worker has made one."""
        return self._job.claims[0] if self._job.claims else None

    @property
    def contended(self) -> Claim | None:
        """A claim that contends with the job's own, so that nothing may be leased; None if none does."""
        return next((each for each in self._job.claims[1:] if each.contends), None)

    @property
    def is_open(self) -> bool:
        """Whether the next worker may claim what it likes: there is no claim, or it has ended with its claimants."""
        own = self.own
        return own is None or not (own.bound or any(map(self._is_present, own.claimants)))

    def agrees(self, claim: Claim) -> bool:
        """Return whether a claim says the same as the job's own."""
        return self.own is not None and self._say_same(claim, self.own)

    def has_other_code(self, claim: Claim) -> bool:
        """Return whether a claim differs from the job's own in nothing but the code, and that matters."""
        own = self.own
        if own is None or not self._exact or claim.fingerprint.get(CODE, "") == own.fingerprint.get(CODE, ""):
            return False
        with_own_code = {**claim.fingerprint, CODE: own.fingerprint.get(CODE, "")}
        return with_own_code == {CODE: "", **own.fingerprint} and not _describe_facts(claim, own)

    def is_outdated(self, claim: Claim, *, ready: bool, waits: bool) -> bool:
        """Return whether the answer to a worker's claim would be another one by now.

        Args:
            claim: what the worker said last.
            ready: whether it was told that it agrees.
            waits: whether it was told to wait; else it was refused.
        """
        agrees = self.agrees(claim)
        if ready or agrees:
            return ready != agrees
        decided = self.is_open or (waits and self.contended is None)
        return decided and not (waits and self.has_other_code(claim))

    def describe_contention(self) -> str | None:
        """Return which workers disagree about the job and in what; None while none do."""
        own, other = self.own, self.contended
        if own is None or other is None:
            return None
        facts = printable(describe_differences(other, own), DIFFERENCES_CHARACTERS)
        return (
            f"waits for a person: worker {_name(other)} disagrees with {_name(own)}: {facts}; decide with "
            f"`tiermesh trust {self._job.id} WORKER`"
        )

    def _is_present(self, claimant: Claimant) -> bool:
        return claimant.worker in self._present or claimant.worker in self._awaited

    def _say_same(self, one: Claim, other: Claim) -> bool:
        return not _describe_facts(one, other) and (not self._exact or one.fingerprint == other.fingerprint)

    # ---- workers ----

    def enter(self, worker: str) -> None:
        """Note that a worker is connected: from now on its claims end when it leaves."""
        self._present.add(worker)
        self._awaited.discard(worker)

    def settle(self, present: Collection[str], now: float) -> None:
        """Take the claims back of workers that have left or are refused.

        The job's own claim stays until another worker makes another one, since weights may have been made under it. The
        record may be saved later: after a restart these workers count as present for a while, and no longer.

        Args:
            present: the connected workers, without those that are refused for another reason than their claims.
            now: the time, on the monotonic clock.
        """
        self._present = set(present)
        if now >= self._awaited_until_seconds:
            self._awaited.clear()
        gone = {
            each.worker
            for claim in self._job.claims
            for each in claim.claimants
            if not claim.bound and not self._is_present(each)
        }
        self._take_back(gone)

    def _take_back(self, workers: Collection[str], but: Claim | None = None) -> None:
        """Take workers out of the claims that are not bound; claims without claimants go, but the job's own."""
        for place in reversed(range(len(self._job.claims))):
            claim = self._job.claims[place]
            if claim.bound or claim is but:
                continue
            left = [each for each in claim.claimants if each.worker not in workers]
            if place and not left:
                del self._job.claims[place]
            elif left:
                _set_claimants(claim, left)

    def make(self, claim: Claim, worker: str, voice: str, *, leased: bool) -> tuple[Answer, bool]:
        """Take a worker's claim.

        Args:
            claim: what the worker says.
            worker: its name.
            voice: first of the names that its certificate is bound to; empty if it is bound to none.
            leased: whether the job has leased anything yet.

        Returns:
            What the claim means for the worker, and whether the record must be saved.
        """
        before = _must_be_saved(self._job)
        self.enter(worker)
        answer = self._make(claim, Claimant(worker=worker, voice=voice), leased=leased)
        return answer, before != _must_be_saved(self._job)

    def _make(self, claim: Claim, claimant: Claimant, *, leased: bool) -> Answer:
        known = next((each for each in self._job.claims if self._say_same(each, claim)), None)
        self._take_back({claimant.worker}, but=known)
        is_new = known is None
        if known is None:
            known = self._add(claim)
        if known is None:
            return Answer.DISSENTS
        if not known.evaluation_batches and claim.evaluation_batches:
            known.evaluation_batches = claim.evaluation_batches
            del known.claimants[:]
        if claim.evaluation_batches == known.evaluation_batches:
            _add_claimant(known, claimant)
        own = self._job.claims[0]
        if known is own:
            if _has_second_voice(own):
                _bind(self._job)
            return Answer.AGREES
        if self.has_other_code(known):
            return Answer.OTHER_CODE
        others = [each for each in own.claimants if each.worker != claimant.worker]
        if not own.bound and not any(map(self._is_present, others)):
            _replace_own(self._job, known)
            del self._job.claims[1]  # it has ended with its claimants
            return Answer.AGREES
        if is_new and not leased and not own.bound:
            known.contends = bool(claimant.voice and _voices(own))
        if known.contends and _has_second_voice(known):
            _replace_own(self._job, known)
            _bind(self._job)
            return Answer.AGREES
        return Answer.CONTENDS if known.contends else Answer.DISSENTS

    def _add(self, claim: Claim) -> Claim | None:
        """Add a claim without claimants; return None if there are too many, and none of them may go."""
        if len(self._job.claims) == MOST_CLAIMS:
            places = range(1, MOST_CLAIMS)
            free = next((place for place in places if not self._job.claims[place].contends), None)
            if free is None:
                return None
            del self._job.claims[free]
        return self._job.claims.add(
            fingerprint=claim.fingerprint,
            layout_hash=claim.layout_hash,
            elements=claim.elements,
            evaluation_batches=claim.evaluation_batches,
        )

    def change_code(self, code: str) -> None:
        """Take the claim of workers of other code in place of the job's own."""
        own = self._job.claims[0]
        after = next(
            each
            for each in self._job.claims
            if each.fingerprint.get(CODE, "") == code and self.has_other_code(each)
        )
        after.bound = own.bound
        _move_first(self._job, after)
        del self._job.claims[1]

    def disprove(self, layout_hash: str) -> bool:
        """Forget all claims on another layout than that of weights that count; return whether there were any."""
        wrong = [place for place, each in enumerate(self._job.claims) if each.layout_hash != layout_hash]
        for place in reversed(wrong):
            del self._job.claims[place]
        return bool(wrong)


def claim_of(ready: Ready) -> Claim:
    """Return what a worker says of a job that it has built."""
    return Claim(
        fingerprint=ready.fingerprint,
        layout_hash=ready.layout_hash,
        elements=ready.elements,
        evaluation_batches=ready.evaluation_batches,
    )


def describe_differences(claim: Claim, own: Claim) -> str:
    """Return how a claim differs from the job's own, fact by fact; empty if it doesn't."""
    found, expected = dict(claim.fingerprint), dict(own.fingerprint)
    texts = [
        f"{key} is {found.get(key, 'absent')!r}, the job's is {expected.get(key, 'absent')!r}"
        for key in sorted(found.keys() | expected.keys())
        if found.get(key) != expected.get(key)
    ]
    return "; ".join([*texts, *_describe_facts(claim, own)])


def _describe_facts(claim: Claim, own: Claim) -> list[str]:
    """Return in which fact claims differ that must agree, whatever the fingerprints; nothing if in none."""
    if claim.layout_hash != own.layout_hash:
        found, expected = claim.layout_hash[:SHOWN_DIGITS], own.layout_hash[:SHOWN_DIGITS]
        return [f"the layout's hash is {found}, the job's is {expected}"]
    if claim.elements != own.elements:
        return [f"the layout has {claim.elements} elements, the job's {own.elements}"]
    if len({claim.evaluation_batches, own.evaluation_batches} - {0}) > 1:
        return [f"it has {claim.evaluation_batches} held-out batches, the job {own.evaluation_batches}"]
    return []


def bind_own(job: Job) -> bool:
    """Bind the job's own claim, since a COMMIT was made with it; return whether that changes the record."""
    if not job.claims or job.claims[0].bound:
        return False
    _bind(job)
    return True


# ---- weights that no longer count ----


def void_weights(job: Job) -> None:
    """Declare all weights void that workers have made: the job goes back to its first step."""
    job.void_generation, job.step = job.generation, job.start.first_step
    for field in ("loss", "checkpoint", "checkpoint_step", "model_sha256"):
        job.ClearField(field)


def void_of(job: Job) -> list[Void]:
    """Return which checkpoints are void since their claimants have left or were overruled."""
    if not job.void_generation:
        return []
    if job.HasField("start"):
        return [Void(generation=job.void_generation, step=job.start.first_step)]
    return [Void(generation=job.void_generation)]


def is_void(job: Job, version: Version) -> bool:
    """Return whether weights are void since their claimants have left or were overruled."""
    given = job.HasField("start") and version.step <= job.start.first_step  # by another job, not by a worker
    return bool(job.void_generation) and version.generation <= job.void_generation and not given


# ---- a person's decision ----


def trust(job: Job, worker: str) -> Refusal | None:
    """Pin a running job to what a worker says of it; return why that can't be, None if it is done.

    A claim that contends is decided. Any other one overrules the job's own: then its claimants are excluded, with all
    that they have contributed.
    """
    trusted = next(
        (each for each in reversed(job.claims) if any(one.worker == worker for one in each.claimants)), None
    )
    if trusted is None:
        known = sorted({each.worker for claim in job.claims for each in claim.claimants})
        return Refusal(
            f"worker {printable(worker, 60)}: says nothing of job {job.id} now; expected one that does: "
            f"{printable(', '.join(known) or 'none', 100)}"
        )
    own = job.claims[0]
    voices = sorted(_voices(own))
    if trusted is not own and len(voices) > 1:
        return Refusal(
            f"worker {printable(worker, 60)}: contradicts {len(voices)} workers ({printable(', '.join(voices), 100)}), "
            "expected a claim of at most one to overrule; submit the job again without them"
        )
    if trusted is not own:
        overrules = not trusted.contends
        if overrules:
            _exclude_claimants(job, own, trusted, worker)
        _replace_own(job, trusted)
        if overrules:
            del job.claims[1]
    _bind(job)
    return None


def _exclude_claimants(job: Job, overruled: Claim, trusted: Claim, worker: str) -> None:
    facts = printable(describe_differences(overruled, trusted), DIFFERENCES_CHARACTERS)
    for each in overruled.claimants:
        reason = (
            f"overruled: a person trusts worker {worker} instead, whose claim differs: {facts}; the worker is excluded "
            "from this job"
        )
        job.excluded.append(
            Exclusion(worker=each.worker, generation=job.generation, step=job.step, reason=reason)
        )


# ---- the record ----


def _must_be_saved(job: Job) -> list[Claim]:
    """Return a copy of the claims without the claimants of a bound one, who say so again after a restart."""
    copy = Job()
    copy.claims.extend(job.claims)
    for each in copy.claims:
        if each.bound:
            each.ClearField("claimants")
    return list(copy.claims)


def _voices(claim: Claim) -> set[str]:
    return {each.voice for each in claim.claimants if each.voice}


def _has_second_voice(claim: Claim) -> bool:
    """Return whether two voices say a claim, and all of it."""
    return bool(claim.evaluation_batches) and len(_voices(claim)) > 1


def _name(claim: Claim) -> str:
    return printable(", ".join(each.worker for each in claim.claimants), 60) or "that has left"


def _set_claimants(claim: Claim, claimants: Collection[Claimant]) -> None:
    kept = Claim(claimants=claimants)
    del claim.claimants[:]
    claim.claimants.extend(kept.claimants)


def _add_claimant(claim: Claim, claimant: Claimant) -> None:
    """Add a worker to a claim's; two voices say enough, as nobody can overrule them."""
    if claimant in claim.claimants:
        return
    others = [each for each in claim.claimants if each.worker != claimant.worker]
    if len({each.voice for each in others if each.voice}) < 2 and len(others) < MOST_CLAIMANTS:
        _set_claimants(claim, [*others, claimant])


def _bind(job: Job) -> None:
    """Bind the job's own claim, which decides all contention."""
    job.claims[0].bound = True
    for each in job.claims:
        each.contends = False


def _move_first(job: Job, claim: Claim) -> None:
    ordered = Job()
    ordered.claims.add().CopyFrom(claim)
    ordered.claims.extend(each for each in job.claims if each is not claim)
    del job.claims[:]
    job.claims.extend(ordered.claims)


def _replace_own(job: Job, claim: Claim) -> None:
    """Make a claim the job's own in place of the one before, which becomes the second. The weights so far are void."""
    _move_first(job, claim)
    job.claims[0].contends = False
    if job.generation:
        void_weights(job)
