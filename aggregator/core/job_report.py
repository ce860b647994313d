"""A running job's record, and the lines that users see about it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from aggregator.core.events import Note, NoticeKind, Outbox, SaveJob
from aggregator.core.membership.claims import bind_own
from aggregator.core.pace import Pace, StepParts
from aggregator.core.scheduling.room import RoleNeed
from aggregator.core.setting_aside import note_progress
from aggregator.core.sums.step_sum import StepSum
from protos.cluster_pb2 import CheckpointMissed, CheckpointWritten, Commit
from protos.jobs_pb2 import CANCELLED, PAUSED, QUEUED, RUNNING, Job, JobState, StepSplit
from services.errors import Refusal
from services.printable import FAILURE_CHARACTERS, counted, group_by_reason, printable
from services.protocol.bounds import MAX_WORKERS
from services.protocol.non_finite import describe_non_finite
from services.protocol.plan import JobPlan, WireTypes
from services.protocol.versions import Version

RATE_MEMORY = 0.9
"""Weight of the past in the reported tokens per second."""

EVALUATION_NOTES = 10
"""Largest number of lines about the progress of an evaluation."""
LEAST_NOTE_SECONDS = 2.0
"""Least time between two such lines, so that a short evaluation has none."""

PAUSED_BY_REQUEST = "paused by request"

MOST_UNREPORTED_STEPS = 64
"""Largest number of steps whose losses are kept for their COMMITs, which newer weights can overtake."""


@dataclass(frozen=True)
class CommittedStep:
    """A step that has been committed, and not reported yet.

    Attributes:
        loss: its mean loss; None if it is unknown.
        seconds: its duration; None if it is unknown.
        split: parts of its duration; None if they are unknown.
        waited_for: worker whose gradient came last; empty if it is unknown.
    """

    loss: float | None = None
    seconds: float | None = None
    split: StepSplit | None = None
    waited_for: str = ""


@dataclass
class Record:
    """A job that has not ended, with everything that is on disk about it.

    Attributes:
        job: the job's record, as users see it.
        spec_json: the complete job.
        plan: what the aggregator needs to know of the job's configuration, or why the stored one can't be used.
        needs: memory that it needs, by role; empty if that is unknown.
        rows: number of rows of its workers that were formed in this epoch.
    """

    job: Job
    spec_json: str
    plan: JobPlan | Refusal
    needs: Mapping[str, RoleNeed] = field(default_factory=dict)
    rows: int = 0

    def next_row(self) -> int:
        """Return the number of a new row, which no other of the epoch has."""
        self.rows += 1
        return self.rows


class JobReport:
    """Keeps a job's record up to date, saves it, and publishes events: the record is on disk before its event.

    Args:
        job: the job's record.
        spec_json: the complete job.
        plan: what the aggregator needs to know of the job's configuration.
        worker_seconds: returns the time of the job's workers up to now, by what they did with it.
        out: takes the effects.

    Attributes:
        job: the job's record.
        spec_json: the complete job.
        saved: the record as it was saved last.
    """

    def __init__(
        self,
        job: Job,
        spec_json: str,
        plan: JobPlan,
        worker_seconds: Callable[[float], Mapping[str, float]],
        out: Outbox,
    ) -> None:
        self.job = job
        self.spec_json = spec_json
        self.saved = copy_job(job)
        self._out = out
        self._unreported: dict[Version, CommittedStep] = {}
        self._pace = Pace(job, plan)
        self._parts = StepParts(worker_seconds)
        self._told_share, self._told_seconds = 0, 0.0
        self._refusals: dict[str, str] = {}  # not yet published, by worker

    def note(self, kind: str, text: str, tells: NoticeKind | None = None) -> None:
        """Publish a line to the job's log and watchers, and perhaps to the target of its `notify`."""
        self.publish_refusals()
        self._out.put(Note(kind, text, copy_job(self.job), tells=tells))

    def note_refusal(self, worker: str, refusal: Refusal) -> None:
        """Have a worker's refusal published at the next tick or line, with those of other workers."""
        if worker in self._refusals or len(self._refusals) == MAX_WORKERS:
            self.publish_refusals()
        self._refusals[worker] = str(refusal)

    def publish_refusals(self) -> None:
        """Publish the workers that were refused since the last time, in one line for each reason."""
        refusals, self._refusals = self._refusals, {}
        for names, reason in group_by_reason(refusals):
            who = f"worker {names} takes" if names in refusals else f"workers {names} take"
            self._out.put(Note("member", f"{who} no part in the job: {reason}", copy_job(self.job)))

    def save(self) -> None:
        """Write the job's record to disk."""
        self.saved = copy_job(self.job)
        self._out.put(SaveJob(self.saved))

    def begin(self) -> None:
        """Record that the job is running."""
        self.save()
        self.note("state", f"running: {self.job.name}")

    def enter(self, version: Version) -> None:
        """Record that the job continues at a version; results of later steps are void."""
        opened_again = 0 < self.job.generation < version.generation
        has_all = self.job.step == self.job.checkpoint_step == version.step
        self.job.generation, self.job.step = version
        self.job.ClearField("loss")  # of a step this aggregator did not see
        self._unreported = {version: CommittedStep()}  # its COMMIT may come again
        if version.step < self.job.validation_step:
            self.job.ClearField("validation_loss")
            self.job.ClearField("validation_step")
        for worker, trusted_step in list(self.job.trusted_steps.items()):
            self.trust(worker, min(trusted_step, version.step))  # later steps are computed again
        if version.step > self.job.start.first_step:
            bind_own(self.job)
        self._pace.enter()
        self._parts.forget()
        self.save()
        if opened_again:
            what = "goes on from its checkpoint of" if has_all else "the optimizer went back to"
            self.note("state", f"{what} step {version.step}, generation {version.generation}")

    def trust(self, worker: str, step: int) -> None:
        """Record that a worker's results are trusted for the steps before this one, and not yet from here on."""
        self.job.trusted_steps[worker] = step

    def advance(
        self,
        version: Version,
        step_sum: StepSum | None,
        *,
        tokens: int,
        samples: int,
        peak_flops: float | None,
        waited_for: str,
        now: float,
    ) -> None:
        """Record a committed step.

        Args:
            version: version that the step has made.
            step_sum: state of the step; None if another aggregator had it.
            tokens: number of tokens of the step.
            samples: number of sequences (or samples) of the step.
            peak_flops: peak of the job's workers in floating-point operations a second; None if it is unknown.
            waited_for: worker whose gradient came last; empty if it is unknown.
            now: the time, on the monotonic clock.
        """
        loss = None if step_sum is None else step_sum.loss
        self.job.step = version.step
        if loss is None:
            self.job.ClearField("loss")
        else:
            self.job.loss = loss
        seconds = self._pace.note_step(now)
        split = self._parts.split(seconds, now)
        # A first step has no pace, since it contains the job's start; its time is that from its first lease on.
        since_lease = None if step_sum is None else now - step_sum.begun_seconds
        self._unreported[version] = CommittedStep(
            loss, since_lease if seconds is None else seconds, split, waited_for
        )
        if len(self._unreported) > MOST_UNREPORTED_STEPS:
            del self._unreported[next(iter(self._unreported))]
        if seconds is not None:
            rate, past = tokens / seconds, self.job.tokens_per_second
            self.job.tokens_per_second = RATE_MEMORY * past + (1 - RATE_MEMORY) * rate if past else rate
            self.job.samples_per_second = self.job.tokens_per_second * samples / tokens if tokens else 0.0
        if peak_flops is None or not self.job.flops_per_token or not self.job.tokens_per_second:
            self.job.ClearField("mfu")
        else:
            self.job.mfu = self.job.tokens_per_second * self.job.flops_per_token / peak_flops
        bound = bind_own(self.job)
        if note_progress(self.job) or bound:
            self.save()

    def note_commit(self, commit: Commit, version: Version, wire: WireTypes) -> None:
        """Publish the step that led to this version, once. Newer weights may have arrived before its COMMIT."""
        step = self._unreported.pop(version, None)
        if step is None:
            return  # repeated, or reported by an aggregator before this one
        loss = step.loss
        text = _describe_step(version.step, step)
        if not commit.applied:
            reason = describe_non_finite(commit.non_finite, wire.gradients)
            self.job.skipped = f"step {version.step}: {reason}"
            text += f" (skipped: {reason})"
        job = copy_job(self.job)
        job.step = version.step
        job.ClearField("loss")
        if loss is not None:
            job.loss = loss
        self._out.put(
            Note(
                "step",
                text,
                job,
                commit.grad_norm,
                commit.learning_rate,
                step.seconds,
                step.split,
                step.waited_for,
                None if commit.applied else NoticeKind.NON_FINITE,
            )
        )

    def awaits_commit(self, version: Version) -> bool:
        """Return whether the COMMIT that led to this version has yet to be published."""
        return version in self._unreported

    @property
    def evaluated_step(self) -> int | None:
        """The step whose validation loss is known."""
        return self.job.validation_step if self.job.HasField("validation_loss") else None

    def learn_batches(self, evaluation_batches: int) -> None:
        """Take the number of held-out batches, by which an evaluation's duration is estimated."""
        self._pace.learn_batches(evaluation_batches)

    def note_evaluated(self, evaluated: int, batches: int, now: float) -> None:
        """Record how far the evaluation under way is, and publish that at each tenth of it, if it takes long."""
        self._pace.note_evaluated(evaluated, batches, now)
        if not evaluated:
            self._told_share, self._told_seconds = 0, now
        share = EVALUATION_NOTES * evaluated // batches if batches else 0
        if share > self._told_share and now - self._told_seconds >= LEAST_NOTE_SECONDS:
            self._told_share, self._told_seconds = share, now
            self.note("progress", f"evaluating, {evaluated} of {counted(batches, 'batch', 'batches')}")

    def record_evaluation(self, version: Version, loss: float, now: float) -> None:
        """Record the validation loss of a version."""
        self.job.validation_loss, self.job.validation_step = loss, version.step
        note_progress(self.job)
        self._pace.note_evaluation(now)
        self._parts.begin(now)
        self.save()
        self.note("evaluation", f"Validation loss: {loss:.7f} at step {version.step}")

    def record_checkpoint(self, written: CheckpointWritten) -> None:
        """Record a checkpoint that is on disk."""
        if not self.job.checkpoint or written.step > self.job.checkpoint_step:  # not one reported again
            note_progress(self.job)
        set_checkpoint(self.job, written)
        self.job.detail = ""  # it may be about a checkpoint that was missed
        self.save()
        self.note("checkpoint", describe_checkpoint(written))

    def record_missed_checkpoint(self, missed: CheckpointMissed) -> None:
        """Record that a due checkpoint could not be written, or that the optimizer can't begin yet."""
        self.job.detail = describe_missed_checkpoint(missed)
        self.save()
        self.note("checkpoint", self.job.detail, NoticeKind.DISK_LOW)

    def end(self, state: JobState, detail: str) -> None:
        """Record that the job is over, or paused."""
        end_job(self.job, state, detail)
        self.save()
        self.note("state", f"{JobState.Name(state).lower()}: {self.job.detail}")


def _describe_step(number: int, step: CommittedStep) -> str:
    """Return the line about a step, in tt-train's words if it has a loss and a time to plot.

    tt-train's scripts count `Step:` and `Loss:` apart and pair what they find. So a line has both, or neither.
    """
    if step.loss is None or step.seconds is None:
        return f"Step {number}: loss unknown"
    if not math.isfinite(step.loss):
        return f"Step {number}: Loss = {step.loss}"
    return f"Step: {number}, Loss: {step.loss:.7f}, Time: {1000 * step.seconds:.2f} ms"


def copy_job(job: Job) -> Job:
    """Return a copy of a job's record, for an effect that must not change with the record."""
    copy = Job()
    copy.CopyFrom(job)
    return copy


def end_job(job: Job, state: JobState, detail: str) -> None:
    """Put into a job's record that it is over or paused, and why."""
    job.state, job.detail, job.phase = state, printable(detail, FAILURE_CHARACTERS), ""
    for name in ("seconds_left", "waiting", "workers", "evaluated_batches", "evaluation_batches", "pausing"):
        job.ClearField(name)


def cancel_job(job: Job) -> None:
    """Put into a job's record that a person cancelled it."""
    before = {QUEUED: " while queued", PAUSED: " while paused"}.get(job.state, "")
    end_job(job, CANCELLED, f"cancelled by request{before}")


def pause_job(job: Job) -> None:
    """Put into a job's record that a person paused it. A running one stops after its step."""
    if job.state == RUNNING:
        job.pausing = True
    else:
        job.state, job.detail = PAUSED, PAUSED_BY_REQUEST


def resume_job(job: Job) -> None:
    """Put into a job's record that a person resumed it."""
    job.pausing = False
    if job.state == PAUSED:
        job.state, job.detail = QUEUED, ""


def set_checkpoint(job: Job, written: CheckpointWritten) -> None:
    """Put a checkpoint into a job's record as its newest one."""
    job.checkpoint, job.checkpoint_step = written.path, written.step
    job.model_sha256 = written.model_sha256


def describe_missed_checkpoint(missed: CheckpointMissed) -> str:
    """Return the line that is published about a checkpoint that was not written."""
    what = f"no checkpoint of step {missed.step}" if missed.generation else "optimizer"
    return printable(f"{what}: {missed.reason}", FAILURE_CHARACTERS)


def describe_checkpoint(written: CheckpointWritten) -> str:
    """Return the line that is published about a checkpoint."""
    return f"checkpoint of step {written.step}: {written.path}"
