"""The running job's record, and what people are told of it. Pure."""

from __future__ import annotations

from aggregator.core.events import Note, Outbox, SaveJob
from aggregator.core.membership.admission import Admission
from protos.cluster_pb2 import CheckpointMissed, CheckpointWritten, Commit
from protos.jobs_pb2 import Job, JobState
from services.protocol.non_finite import describe_non_finite
from services.protocol.plan import WireTypes
from services.protocol.versions import Version

RATE_MEMORY = 0.9
"""Weight of the past in the reported tokens per second."""


class JobReport:
    """Keeps a job's record up to date, saves it, and notes what happens: first on disk, then to people.

    Attributes:
        job: the record.
        spec_json: the complete job.
    """

    def __init__(self, job: Job, spec_json: str, admission: Admission, out: Outbox) -> None:
        self.job = job
        self.spec_json = spec_json
        self._fitness = admission
        self._out = out
        self._told: Version | None = None
        self._committed_seconds: float | None = None

    def _copy(self) -> Job:
        copy = Job()
        copy.CopyFrom(self.job)
        return copy

    def note(
        self, kind: str, text: str, grad_norm: float | None = None, learning_rate: float | None = None
    ) -> None:
        """Tell the job's log and watchers."""
        self._out.put(Note(kind, text, self._copy(), grad_norm, learning_rate))

    def save(self) -> None:
        """Put the job's record on disk."""
        self._out.put(SaveJob(self._copy(), self.spec_json, dict(self._fitness.fingerprint)))

    def begun(self) -> None:
        """The job is running."""
        self.save()
        self.note("state", f"running: {self.job.name}")

    def entered(self, version: Version) -> None:
        """The job continues at a version; what was known of later ones is void."""
        back = 0 < self.job.generation < version.generation
        self.job.generation, self.job.step = version
        self.job.ClearField("loss")  # of a step that was not seen to happen
        if version.step < self.job.validation_step:
            self.job.ClearField("validation_loss")
            self.job.ClearField("validation_step")
        for worker, trusted_step in list(self.job.trusted_steps.items()):
            self.trust(worker, min(trusted_step, version.step))  # it makes the steps after this one once more
        self._committed_seconds = None
        self.save()
        if back:
            text = f"the optimizer went back to step {version.step}, generation {version.generation}"
            self.note("state", text)

    def trust(self, worker: str, step: int) -> None:
        """What a worker did for the steps before this one is trusted, what it does from here on is not yet."""
        self.job.trusted_steps[worker] = step

    def advanced(self, version: Version, loss: float | None, tokens: int, now: float) -> None:
        """A step of so many tokens was committed; its loss, if it is known."""
        self.job.step = version.step
        if loss is None:
            self.job.ClearField("loss")
        else:
            self.job.loss = loss
        if self._committed_seconds is not None and now > self._committed_seconds:
            rate, past = tokens / (now - self._committed_seconds), self.job.tokens_per_second
            self.job.tokens_per_second = RATE_MEMORY * past + (1 - RATE_MEMORY) * rate if past else rate
        self._committed_seconds = now

    def committed(self, commit: Commit, version: Version, wire: WireTypes) -> None:
        """Tell of the step that led to this version, once."""
        if self._told == version:
            return
        self._told = version
        text = f"Step: {version.step}"
        if self.job.HasField("loss"):
            text += f", Loss: {self.job.loss:.7f}"
        if not commit.applied:
            why = describe_non_finite(commit.non_finite, wire.gradients)
            self.job.skipped = f"step {version.step}: {why}"
            text += f" (skipped: {why})"
        self.note("step", text, commit.grad_norm, commit.learning_rate)

    @property
    def evaluated_step(self) -> int | None:
        """The step whose validation loss is known."""
        return self.job.validation_step if self.job.HasField("validation_loss") else None

    def evaluated(self, version: Version, loss: float) -> None:
        """The validation loss of a version is known."""
        self.job.validation_loss, self.job.validation_step = loss, version.step
        self._committed_seconds = None  # the time of an evaluation is not a step's
        self.save()
        self.note("evaluation", f"Step: {version.step}, Validation loss: {loss:.7f}")

    def checkpoint_written(self, written: CheckpointWritten) -> None:
        """A checkpoint is on disk."""
        name_checkpoint(self.job, written)
        self.job.detail = ""  # of a checkpoint that was missed
        self.save()
        self.note("checkpoint", f"checkpoint of step {written.step}: {written.path}")

    def checkpoint_missed(self, missed: CheckpointMissed) -> None:
        """A checkpoint that was due is not there."""
        self.job.detail = f"no checkpoint of step {missed.step}: {missed.reason}"
        self.save()
        self.note("checkpoint", self.job.detail)

    def ended(self, state: JobState, detail: str) -> None:
        """The job is over."""
        self.job.state, self.job.detail, self.job.phase = state, detail, ""
        self.save()
        self.note("state", f"{JobState.Name(state).lower()}: {detail}")


def name_checkpoint(job: Job, written: CheckpointWritten) -> None:
    """Put a checkpoint into a job's record, as its newest."""
    job.checkpoint, job.checkpoint_step = written.path, written.step
    job.model_sha256 = written.model_sha256
