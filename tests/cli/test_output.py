"""Text and JSON of a job."""

from __future__ import annotations

from cli.output import job_fields, job_line
from protos.jobs_pb2 import RUNNING, Exclusion, Job


def test_faulty_workers_are_named_with_the_reason() -> None:
    job = Job(id="a", name="run", state=RUNNING, step=3, steps=9)
    assert (job_fields(job)["excluded"], "faulty" in job_line(job)) == (None, False)
    for worker in ("lb-2", "lb-3"):
        job.excluded.append(Exclusion(worker=worker, generation=1, step=3, reason=f"faulty: {worker}"))
    assert job_fields(job)["excluded"] == {"lb-2": "faulty: lb-2", "lb-3": "faulty: lb-3"}
    assert job_line(job) == "a  running    step 3/9  run  (faulty: lb-2, lb-3)"
