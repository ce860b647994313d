"""Nothing that a server answers acts on the terminal of the person who asks."""

from __future__ import annotations

import json

import pytest

from cli.main import main
from cli.output import Output
from protos import jobs_pb2
from tests.support.fake_aggregator import FakeAggregator
from tests.support.hostile import HOSTILE, fill_texts, is_clean

JOB = "job-1"


@pytest.fixture
def hostile(aggregator: FakeAggregator) -> FakeAggregator:
    """Return a server whose answers have hostile texts wherever they have texts."""
    job = jobs_pb2.Job(state=jobs_pb2.RUNNING, steps=10)
    fill_texts(job, HOSTILE)
    job.id = JOB
    aggregator.jobs[JOB] = job
    fill_texts(aggregator.status, HOSTILE)
    aggregator.status.running_jobs[:] = [JOB]
    ended = jobs_pb2.Job()
    ended.CopyFrom(job)
    ended.state = jobs_pb2.SUCCEEDED
    kept = jobs_pb2.PrunedJob(job=ended, kept=HOSTILE)
    aggregator.prunable = [jobs_pb2.PrunedJob(job=ended, bytes=5), kept]
    aggregator.events = [[jobs_pb2.JobEvent(job=each, kind="state", text=HOSTILE) for each in (job, ended)]]
    return aggregator


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    "command",
    [
        "jobs",
        "status",
        "status JOB",
        "logs JOB",
        "cancel JOB",
        "trust JOB w1",
        "prune JOB --dry-run",
        "prune JOB --yes",
        "submit",
    ],
)
def test_commands_print_only_what_a_terminal_shows_unchanged(
    command: str,
    as_json: bool,
    hostile: FakeAggregator,
    job_file: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = command.replace("JOB", JOB).split()
    words += [str(job_file), "--follow"] if command == "submit" else []
    main([*words, "--aggregator", hostile.address, *(["--json"] if as_json else [])])
    captured = capsys.readouterr()
    assert is_clean(captured.out), captured.out
    assert is_clean(captured.err), captured.err
    assert not any(line.startswith("injected") for line in captured.out.splitlines())
    if as_json:
        json.loads(captured.out.splitlines()[-1])


def test_generated_text_keeps_its_lines_but_controls_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output()
    output.write("one\n\ttwo 👩‍🚀\x1b[2J\u202e\r")
    assert capsys.readouterr().out == "one\n\ttwo 👩‍🚀\\x1b[2J\\u202e\\r"
    Output(as_json=True).result({"text": "a\x9b\u202e\n"})
    line = capsys.readouterr().out
    assert is_clean(line)
    assert json.loads(line) == {"text": "a\x9b\u202e\n"}
