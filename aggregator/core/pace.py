"""How long a running job's steps and evaluations take, on what, and how much time they leave."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from statistics import median_low

from protos.jobs_pb2 import Job, StepSplit
from services.protocol.activities import Activity
from services.protocol.plan import JobPlan

_MOST_RECENT = 32
"""Number of newest steps, and of newest evaluations, whose durations count."""
_FORWARD_SHARE = 1 / 3
"""Share of a pass over a batch that its forward half takes: an evaluation has no other one."""
_STORED_WEIGHT = 8
"""Number of durations that the stored one stands for after a restart."""


class Pace:
    """Recent durations of a job's steps and evaluations, kept in the job's record across restarts.

    A step's duration is the time from the previous commit, or the end of the evaluation after it, to its own. The
    median of the recent ones counts, for evaluations too: a step that waited for a worker's replacement does not
    change it. Before an evaluation has been measured, its duration is estimated from a step's and the sizes of both.

    Args:
        job: record of the job, updated in place: `step_seconds`, `evaluation_seconds`, `seconds_left`.
        plan: number of steps and evaluations of the job.
    """

    def __init__(self, job: Job, plan: JobPlan) -> None:
        self._job = job
        self._plan = plan
        self._steps = _recent(job.step_seconds)
        self._evaluations = _recent(job.evaluation_seconds)
        self._begun_seconds: float | None = None
        self._evaluation_batches = plan.evaluation_batches.known or 0

    def learn_batches(self, evaluation_batches: int) -> None:
        """Take the number of held-out batches from a worker that has read the corpus."""
        self._evaluation_batches = evaluation_batches
        self._estimate()

    def enter(self) -> None:
        """Note that the job goes on at the step in its record, so that no duration begins before this."""
        self._begun_seconds = None
        self._end_evaluation()
        self._estimate()

    def note_step(self, now: float) -> float | None:
        """Note that the step in the job's record has been committed.

        Returns:
            Duration of the step in seconds; None if it is unknown.
        """
        duration = 0.0 if self._begun_seconds is None else max(0.0, now - self._begun_seconds)
        self._begun_seconds = now
        if duration:
            self._steps.append(duration)
            self._job.step_seconds = median_low(self._steps)
        self._estimate()
        return duration or None

    def note_evaluated(self, evaluated: int, batches: int, now: float) -> None:
        """Note how many of its batches the evaluation under way has evaluated."""
        self._job.evaluated_batches, self._job.evaluation_batches = evaluated, batches
        seconds = self._evaluation_seconds
        if evaluated and self._begun_seconds is not None:
            seconds = (now - self._begun_seconds) * batches / evaluated
        self._estimate((1 - evaluated / batches) * seconds if batches else 0.0)

    def note_evaluation(self, now: float) -> None:
        """Note that the weights of the newest step have been evaluated. This time must not count as a step's."""
        if self._begun_seconds is not None:
            self._evaluations.append(now - self._begun_seconds)
            self._job.evaluation_seconds = median_low(self._evaluations)
        self._begun_seconds = now
        self._end_evaluation()
        self._estimate()

    def _end_evaluation(self) -> None:
        self._job.ClearField("evaluated_batches")
        self._job.ClearField("evaluation_batches")

    @property
    def _evaluation_seconds(self) -> float:
        """Duration of an evaluation: as measured, else by the samples that it and a step have."""
        if self._job.evaluation_seconds:
            return float(self._job.evaluation_seconds)
        evaluated = self._evaluation_batches * self._plan.validation_batch_size
        trained = self._plan.micro_batches * self._plan.batch_size
        return float(_FORWARD_SHARE * self._job.step_seconds * evaluated / trained)

    def _estimate(self, under_way_seconds: float = 0.0) -> None:
        """Put the time left into the record, once the duration of a step is known."""
        if self._job.step_seconds:
            self._job.seconds_left = under_way_seconds + estimate_seconds_left(
                self._plan, self._job.step, self._job.step_seconds, self._evaluation_seconds
            )


class StepParts:
    """What the time of a job's steps was spent on.

    Args:
        worker_seconds: returns the time of the job's workers up to now, by what they did with it.
    """

    def __init__(self, worker_seconds: Callable[[float], Mapping[str, float]]) -> None:
        self._worker_seconds = worker_seconds
        self._before: Mapping[str, float] | None = None

    def forget(self) -> None:
        """Note that the time up to now belongs to no step, and that it is unknown when the next one begins."""
        self._before = None

    def begin(self, now: float) -> None:
        """Note that the next step begins now."""
        self._before = self._worker_seconds(now)

    def split(self, step_seconds: float | None, now: float) -> StepSplit | None:
        """Return the parts of the step that ends now, as shares of its duration; the next one begins.

        Args:
            step_seconds: duration of the step; None if it is unknown.
            now: the time.
        """
        before = self._before
        self.begin(now)
        if before is None or self._before is None or step_seconds is None:
            return None
        # A lease that goes on counts as computing until its worker reports, so a part can become less.
        spent = {name: max(0.0, end - before.get(name, 0.0)) for name, end in self._before.items()}
        total = sum(spent.values())
        if not total:
            return None
        compute, wire, update = (
            step_seconds * spent.pop(each.value, 0.0) / total
            for each in (Activity.COMPUTING, Activity.WIRE, Activity.UPDATE)
        )
        wait = step_seconds * sum(spent.values()) / total
        return StepSplit(compute_seconds=compute, wire_seconds=wire, update_seconds=update, wait_seconds=wait)


def _recent(stored_seconds: float) -> deque[float]:
    """Return recent durations that begin with a stored one; 0 for none."""
    return deque([stored_seconds] * _STORED_WEIGHT if stored_seconds else [], maxlen=_MOST_RECENT)


def estimate_seconds_left(plan: JobPlan, step: int, step_seconds: float, evaluation_seconds: float) -> float:
    """Return the time that the steps and evaluations after a step take.

    Args:
        plan: number of steps and evaluations of the job.
        step: number of steps that are done.
        step_seconds: duration of a step.
        evaluation_seconds: duration of an evaluation.
    """
    return max(0, plan.steps - step) * step_seconds + plan.evaluations_after(step) * evaluation_seconds
