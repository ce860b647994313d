"""What one job finds of a worker's hardware holds in all jobs."""

from __future__ import annotations

from aggregator.core.job_runs import JobRuns
from aggregator.core.running_job import RunningJob


def exclude_from_all(finder: RunningJob, runs: JobRuns, now: float) -> None:
    """Exclude the workers that a job has found faulty since the last call from all other jobs.

    Args:
        finder: the job.
        runs: the running jobs.
        now: the time, on the monotonic clock.
    """
    found, finder.found_faulty = finder.found_faulty, []
    for worker in found:
        reason = f"found faulty by job {finder.job.id}; after a repair of its hardware, start it with another --name"
        for job, record in runs.jobs.records.items():
            run = runs.by_id.get(job)
            if run is None:
                runs.jobs.exclude(record, worker, reason)
            elif run is not finder:
                with runs.guard(run):
                    _exclude(run, worker, reason, now)


def _exclude(run: RunningJob, worker: str, reason: str, now: float) -> None:
    """Exclude a worker from a running job; its work since it was last checked is void."""
    contributed = run.exclusions.add_found_elsewhere(worker, reason)
    step_sum = run.lease_book.step_sum
    takes_part = step_sum is not None and any(worker in row.names for row in run.lease_book.rows_of(step_sum))
    if contributed or takes_part:
        run.lease_book.step_sum = None
        run.router.drop_all()
    run.report.save()
    run.refuse_excluded(now)
    if (contributed or takes_part) and not run.ended and run.progress.version is not None:
        run.start_over(run.progress.version)
