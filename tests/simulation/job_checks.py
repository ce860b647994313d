"""Checks of a run's jobs, of what is reported about them, and of their ends."""

from __future__ import annotations

from collections import Counter

from aggregator.core.events import Note
from aggregator.core.leasing.deaths import MOST_DEATHS
from aggregator.core.leasing.failures import MOST_FAILURES
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import CANCELLED, FAILED, SUCCEEDED, Job, JobState
from protos.plane_pb2 import UpdatePart
from tests.simulation import history
from tests.simulation.disk import Disk
from tests.simulation.job_model import CRASH, PARAMETER, SICK, SimulatedJob, require
from tests.simulation.scenario import IMPOSTOR, LIAR


class JobChecks:
    """Checks what a run does against the expected results of its jobs.

    Args:
        jobs: Jobs by id.
        events: checker of the run's history.
    """

    def __init__(self, jobs: dict[str, SimulatedJob], events: history.HistoryChecker) -> None:
        self._jobs = jobs
        self._history = events
        self._cancelled: set[str] = set()
        self._must_fail: set[str] = set()
        self._failed: dict[tuple[str, int, int, int], dict[str, set[int]]] = {}
        self._may_fail: set[str] = set()
        self._commits: Counter[str] = Counter()  # by job
        self._deaths: dict[str, list[int]] = {}  # by job: its number of commits at each death
        self._failures: Counter[str] = Counter()  # by worker: number of failed leases
        for job in jobs.values():
            self.planned(job)

    def planned(self, job: SimulatedJob) -> None:
        """Note a job that a user may submit."""
        self._history.add(history.Planned(job.id, job.plan.micro_batches, job.chunks))

    def cancelled(self, job: str) -> None:
        """Note that a user cancels a job."""
        self._cancelled.add(job)

    def expects_failure(self, job: str) -> None:
        """Note that a job must fail."""
        self._must_fail.add(job)

    def committed(self, order: UpdatePart) -> None:
        """Check a step that the optimizer committed."""
        self._history.add(history.Committed(order.job, order.generation, order.step))
        self._commits[order.job] += 1
        require(
            order.applied or self._jobs[order.job].plan.on_non_finite == "skip",
            f"{order} of a job with on_non_finite: stop",
        )

    def compute_died(self, job: str) -> None:
        """Note that a compute process died of a job's work.

        The third one with no COMMIT between may fail the job. The aggregator may hear of a COMMIT after the death.
        """
        self._deaths.setdefault(job, []).append(self._commits[job])

    def _deaths_excuse(self, job: str) -> bool:
        deaths = self._deaths.get(job, [])
        spans = zip(deaths, deaths[MOST_DEATHS - 1 :], strict=False)
        return any(last - first <= 1 for first, last in spans)

    def lease_failed(self, worker: str, lease: pb.Lease) -> None:
        """Note a failed lease. The third one of a worker, or one by two workers, may fail the job.

        Leases that the worker completed in between may have been void when the aggregator heard of them. So the
        failures may count as consecutive.
        """
        self._failures[worker] += 1
        parts = set(range(lease.first, lease.first + max(1, lease.count)))
        before = self._failed.setdefault((lease.job, lease.generation, lease.step, lease.phase), {})
        by_others = set().union(*(failed for name, failed in before.items() if name != worker))
        if parts & by_others or self._failures[worker] >= MOST_FAILURES:
            self._may_fail.add(lease.job)
        before.setdefault(worker, set()).update(parts)

    def noted(self, note: Note) -> None:
        """Check what the aggregator reports."""
        job = self._jobs[note.job.id]
        self._check_losses(note.job)
        if note.kind == "step":
            culprit = job.culprit(note.job.step - 1)
            end = "" if culprit is None else f"micro-batch {culprit}, parameter {PARAMETER})"
            require(
                note.text.endswith(end) and ("skipped" in note.text) == bool(end),
                f"wrong report of a step: {note.text}",
            )
            self._history.add(history.Reported(job.id, note.job.generation, note.job.step))

    def _check_losses(self, reported: Job) -> None:
        job = self._jobs[reported.id]
        if reported.HasField("loss"):
            expected = job.step_loss(reported.step - 1)
            require(
                reported.loss == expected,
                f"loss {reported.loss} after step {reported.step}, expected {expected}",
            )
        if reported.HasField("validation_loss") and not _is_of_liar_alone(reported, job):
            expected = job.validation_loss(reported.validation_step)
            require(
                reported.validation_loss == expected,
                f"validation loss {reported.validation_loss}, expected {expected}",
            )

    def ended(self, disk: Disk) -> None:
        """Check all jobs after their end: an allowed state, and after success the weights of an undisturbed run."""
        for name, saved in disk.jobs.items():
            job, state = self._jobs[name], saved.job.state
            excluded = {each.worker for each in saved.job.excluded}
            liars = {LIAR, IMPOSTOR}
            require(excluded <= liars, f"{name}: excluded {excluded}, expected at most {liars}")
            allowed = {SUCCEEDED}
            if name in self._must_fail:
                allowed = {FAILED}
            if name in self._cancelled:
                allowed.add(CANCELLED)
            why, detail = job.expected_failure, saved.job.detail
            sick = SICK in detail and name in self._may_fail
            died = CRASH in detail and self._deaths_excuse(name)
            if job.full_disk_at is not None or sick or died or (why and why in detail):
                allowed.add(FAILED)
            if why:
                allowed.discard(SUCCEEDED)
            require(state in allowed, f"{name} is {JobState.Name(state)}: {detail}")
            found = disk.newest_checkpoint(name)
            if "on_non_finite" in detail:
                newest = found[0].step if found else 0
                require(
                    saved.job.checkpoint_step == newest,
                    f"{name}: reported checkpoint of step {saved.job.checkpoint_step}, expected {newest}",
                )
            if state != SUCCEEDED:
                continue
            assert found is not None
            require(found[0].step == job.plan.steps, f"{name}: last checkpoint is of step {found[0].step}")
            require(
                found[1] == job.weights[-1], f"{name}: final weights differ from those of an undisturbed run"
            )
            require(
                saved.job.model_sha256 == f"{hash(job.weights[-1]):x}",
                f"{name}: reported SHA-256 of another model",
            )
            require(
                saved.job.validation_step == job.plan.steps,
                f"{name}: last evaluated at step {saved.job.validation_step}, expected its end",
            )


def _is_of_liar_alone(reported: Job, job: SimulatedJob) -> bool:
    """Return whether the insider alone evaluates other batches than the job's, as it could make up the losses as well.

    No honest worker has agreed, so none takes part.
    """
    own = reported.claims[0]
    return own.evaluation_batches != job.evaluation_batches and [each.worker for each in own.claimants] == [
        LIAR
    ]
