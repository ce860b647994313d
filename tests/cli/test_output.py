"""Text and JSON of a job, and what is shown for a moment."""

from __future__ import annotations

import pytest

from cli.output import Output, job_line
from protos.jobs_pb2 import RUNNING, Exclusion, Job
from services.jobs.fields import job_fields


def test_faulty_workers_are_named_with_the_reason() -> None:
    job = Job(id="a", name="run", state=RUNNING, step=3, steps=9)
    assert (job_fields(job)["excluded"], "faulty" in job_line(job)) == (None, False)
    for worker in ("lb-2", "lb-3"):
        job.excluded.append(Exclusion(worker=worker, generation=1, step=3, reason=f"faulty: {worker}"))
    assert job_fields(job)["excluded"] == {"lb-2": "faulty: lb-2", "lb-3": "faulty: lb-3"}
    assert job_line(job) == "a  running    step 3/9  run  (faulty: lb-2, lb-3)"


def test_an_announcement_is_erased_by_the_next_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    output = Output()
    output.announce("asking")
    assert capsys.readouterr().err == "", "nothing without a terminal"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    for write in (output.say, output.write, output.warn, lambda _: output.result({}), output.announce):
        output.announce("x" * 40)
        announced = capsys.readouterr().err
        assert len(announced) == 29 and announced.startswith("xx"), "one line of the terminal at most"
        write("text")
        assert capsys.readouterr().err.startswith("\r\x1b[K")
