"""`tiermesh jobs` and `status`: a table within the terminal's width, a job and workers in words."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.cluster_status import describe_status
from cli.job_table import format_jobs
from cli.job_text import ACTIVITIES, describe_job, describe_times
from cli.main import main
from protos import jobs_pb2
from protos.jobs_pb2 import Job, Member
from services.jobs.fields import cluster_fields
from services.protocol.activities import Activity
from tests.support.fake_aggregator import FakeAggregator

NOW = 1e6
RUNNING = Job(
    id="1122-183045-3fa9c1d2", name="nanogpt of the third attempt", owner="ann@lab", state=jobs_pb2.RUNNING, step=600,
    steps=1000, loss=2.5, workers=12, submitted_seconds=NOW - 4320, started_seconds=NOW - 4000, seconds_left=2700,
    phase="train", tokens_per_second=123456.0, step_seconds=6.5, validation_loss=2.613, validation_step=500,
    worker_seconds={"computing": 71.0, "wire": 20.0, "few_micro_batches": 9.0},
)  # fmt: skip
QUEUED = Job(
    id="1122-190000-00000002", name="b", state=jobs_pb2.QUEUED, steps=10, submitted_seconds=NOW - 100
)
ENDED = Job(
    id="1121-190000-00000003", name="c", state=jobs_pb2.FAILED, step=3, steps=10, submitted_seconds=NOW - 86400,
    started_seconds=NOW - 80000, ended_seconds=NOW - 70000,
)  # fmt: skip


def test_at_80_columns_everything_is_there() -> None:
    assert list(format_jobs([ENDED, RUNNING, QUEUED], 80, NOW)) == [
        "JOB       NAME         STATE    PROGRESS    AGE    TOOK   LEFT  OWNER    WORKERS",
        "00000003  c            failed   ##...  30%  1d     2h47m",
        "3fa9c1d2  nanogpt o..  running  ###..  60%  1h12m  1h7m   45m   ann@lab  12",
        "00000002  b            queued   .....   0%  1m40s",
    ]


def test_with_room_ids_and_names_are_whole_and_steps_and_losses_there() -> None:
    for width in (200, None):
        title, row = format_jobs([RUNNING], width, NOW)
        assert row.split() == [
            "1122-183045-3fa9c1d2",
            "nanogpt",
            "of",
            "the",
            "third",
            "attempt",
            "running",
            "######....",
            "60",
            "%",
            "600/1000",
            "2.5000",
            "1h12m",
            "1h7m",
            "45m",
            "ann@lab",
            "12",
        ]
        assert title.split() == [
            "JOB",
            "NAME",
            "STATE",
            "PROGRESS",
            "LOSS",
            "AGE",
            "TOOK",
            "LEFT",
            "OWNER",
            "WORKERS",
        ]


def test_a_job_that_lacks_something_waits_and_the_reason_is_said_once() -> None:
    waiting = Job()
    waiting.CopyFrom(RUNNING)
    waiting.waiting = "waits for workers: 1 of the 3 wanted are ready (min_workers); for 9 s"
    *table, reason = format_jobs([waiting, QUEUED], 80, NOW)
    assert "waiting" in table[1] and "running" not in table[1]
    assert reason == f"job {RUNNING.id} {waiting.waiting}"
    status = "\n".join(describe_job(waiting, None, NOW))
    assert "state        waiting: training" not in status and "waiting: training" in status
    assert status.count("1 of the 3 wanted") == 1


_text = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF), max_size=60)


@given(
    st.lists(
        st.builds(
            Job, id=st.just("1122-183045-3fa9c1d2"), name=_text, owner=_text,
            state=st.sampled_from([1, 2, 3, 4, 5]), step=st.integers(0, 10**9), steps=st.integers(0, 10**9),
            submitted_seconds=st.floats(0, NOW), started_seconds=st.floats(0, NOW), workers=st.integers(0, 1024),
            seconds_left=st.none() | st.floats(0, 1e9), loss=st.none() | st.floats(),
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(20, 250),
)  # fmt: skip
def test_no_table_is_wider_than_its_terminal(jobs: list[Job], width: int) -> None:
    lines = list(format_jobs(jobs, width, NOW))
    assert len(lines) == 1 + len(jobs)
    if width >= 80:
        assert max(map(len, lines)) <= width


def test_a_job_is_described_in_words_with_sensible_digits() -> None:
    text = list(describe_job(RUNNING, None, NOW))
    assert "job        1122-183045-3fa9c1d2  nanogpt of the third attempt" in text
    assert "state      running: training" in text
    assert "progress   ############........ step 600 of 1000, 45 min left" in text
    assert "loss       2.5000, validation 2.6130 at step 500, 0.113 above it" in text
    assert "speed      123,000 tokens/s, 6.5 s a step" in text
    assert (
        "workers    12, efficiency 71 %: 71 % computing, 20 % waiting for the wire, 9 % idle (a step has fewer "
        "micro-batches than workers)"
    ) in text
    assert any(re.fullmatch(r"submitted  \d\d:\d\d:\d\d, 1 h 12 min ago", each) for each in text)
    evaluating = Job(phase="evaluate", state=jobs_pb2.RUNNING, evaluated_batches=12, evaluation_batches=40)
    assert "state     running: evaluating, 12 of 40 batches" in list(describe_job(evaluating, None, NOW))


def test_lines_are_broken_between_words() -> None:
    job = Job(id="job-1", state=jobs_pb2.FAILED, detail="a reason of many words that goes on and on " * 5)
    words = set(job.detail.split())
    for line in describe_job(job, 80, NOW):
        assert len(line) <= 80
        assert set(line.split()) <= words | {
            "job",
            "job-1",
            "state",
            "failed",
            "detail",
            "progress",
            "step",
            "0",
            "of",
        } | {"." * 20}


def test_every_activity_has_words() -> None:
    assert ACTIVITIES.keys() == {each.value for each in Activity}
    assert describe_times({}) == ""
    assert (
        describe_times({"computing": 1.0, "of_a_newer_version": 1.0})
        == "50 % computing, 50 % idle (of_a_newer_version)"
    )


def test_a_refusal_of_several_workers_is_one_line_with_a_count() -> None:
    reason = "computes on another backend"
    refused = [Member(name=f"w{number}", state="refused", detail=reason) for number in range(5)]
    other = Member(name="w9", state="refused", detail="another reason")
    status = jobs_pb2.ClusterStatus(leader="agg", workers=[*refused, other, Member(name="w8", state="ready")])
    text = "\n".join(describe_status(status, "here:1"))
    assert f"5 workers refused ({reason}): w0, w1 and 3 others" in text
    assert text.count(reason) == 1
    assert "worker w9: refused (another reason)" in text


def test_another_version_than_the_aggregators_is_said() -> None:
    same, older = (
        jobs_pb2.Connection(host="192.0.2.7", version=version, round_trip_seconds=0.002)
        for version in ("0.3.0", "0.2.0")
    )
    status = jobs_pb2.ClusterStatus(
        version="0.3.0",
        optimizer="opt",
        optimizer_connection=older,
        workers=[Member(name="w1", state="ready", connection=same), Member(name="w2", state="ready", connection=older)],
        shards=[jobs_pb2.ShardStatus(name="s", address="here:3", connection=older)],
    )  # fmt: skip
    text = "\n".join(describe_status(status, "here:1"))
    other = "version 0.2.0, the aggregator has 0.3.0"
    assert text.count("0.2.0") == 3
    assert f"optimizer: opt ({other})" in text
    assert "worker w1: ready, last message" in text and f"worker w2: ready, {other}, last message" in text
    fields = cluster_fields(status)
    assert [(each["host"], each["version"]) for each in fields["workers"]] == [
        ("192.0.2.7", "0.3.0"),
        ("192.0.2.7", "0.2.0"),
    ]
    assert [each["from"] for each in fields["links"]] == ["opt", "s", "w1", "w2"]
    assert fields["links"][0]["round_trip_seconds"] == 0.002
    assert fields["links"][0]["sent_bytes_per_second"] is None


def test_why_an_optimizer_is_not_connected_is_said_once() -> None:
    reason = "nothing listens at here:2: start `tiermesh optimizer`"
    status = jobs_pb2.ClusterStatus(
        optimizer=reason,
        running_jobs=["j"],
        waiting=f"waits for the optimizer: {reason}",
        waits=[
            jobs_pb2.Wait(role="optimizer", peer="optimizer", what=f"a connection: {reason}", seconds=2.0)
        ],
    )
    lines = list(describe_status(status, "here:1"))
    assert "\n".join(lines).count(reason) == 1 and f"optimizer: {reason}" in lines
    assert "running job: j (waits for the optimizer)" in lines
    assert "waiting 2.0 s for optimizer: a connection, step 0" in lines


def test_an_idle_worker_has_its_reason_and_an_old_speed_its_age() -> None:
    idle = Member(name="w1", state="ready", activity="few_micro_batches", step=7, micro_batches_per_second=1.234,
                  seconds_since_speed=4320.0)  # fmt: skip
    busy = Member(name="w2", state="computing", activity="computing", micro_batches_per_second=0.5)
    status = jobs_pb2.ClusterStatus(workers=[idle, busy], worker_seconds={"computing": 3.0, "no_job": 1.0})
    lines = list(describe_status(status, "here:1"))
    assert (
        "worker w1: ready, idle: a step has fewer micro-batches than workers, weights of step 7, "
        "1.23 micro-batches/s 1 h 12 min ago, last message 0 s ago"
    ) in lines
    assert "worker w2: computing, 0.5 micro-batches/s, last message 0 s ago" in lines
    assert "efficiency within the last hour: 75 % (75 % computing, 25 % idle (no job runs))" in lines


def test_jobs_are_filtered_and_found_by_a_part_of_the_id(
    aggregator: FakeAggregator, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    aggregator.jobs = {each.id: each for each in (ENDED, RUNNING, QUEUED)}
    there = ["--aggregator", aggregator.address]

    def shown(*words: str) -> str:
        assert main([*words, *there]) == 0
        return capsys.readouterr().out

    assert RUNNING.id in shown("jobs", "--state", "running") and QUEUED.id not in shown(
        "jobs", "--owner", "ann@lab"
    )
    assert "no such jobs; without filters, tiermesh jobs lists all" in shown("jobs", "--named", "zzz")
    assert QUEUED.id in shown("status", "latest")
    assert RUNNING.id in shown("status", "c1d2")
    assert shown("logs", "c1d2", "--tail", "1").endswith("second line\n")
    assert "timing line" in shown("logs", "c1d2", "--timing")
    assert main(["status", "1122", *there]) == 2
    assert f"{RUNNING.id}, {QUEUED.id}; give more of one" in capsys.readouterr().err
