"""Output, JSON and exit codes of the command, against a small job service."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cli import jobs as jobs_module
from cli.main import main, tiermesh
from protos import jobs_pb2
from services.transport.access.permissions import CallerKind
from services.transport.security import Security
from tests.support.certificates import make_authority, make_certificate
from tests.support.fake_aggregator import FakeAggregator, serving

ROOT = Path(__file__).resolve().parents[2]


def last_json(text: str) -> dict[str, Any]:
    """Return the JSON object on the last line."""
    parsed = json.loads(text.splitlines()[-1])
    assert isinstance(parsed, dict)
    return parsed


def event(kind: str, text: str = "", **fields: Any) -> jobs_pb2.JobEvent:
    job = jobs_pb2.Job(id="job-1", name="tiny", steps=10, **fields)
    return jobs_pb2.JobEvent(job=job, seconds=1.0, kind=kind, text=text)


RUN = [
    event("state", "running", state=jobs_pb2.RUNNING, phase="train"),
    event("step", state=jobs_pb2.RUNNING, phase="train", step=5, loss=2.5, tokens_per_second=1000.0),
    event(
        "evaluation", "validation loss 2.25", state=jobs_pb2.RUNNING, step=5, loss=2.5, validation_loss=2.25
    ),
    event("step", state=jobs_pb2.RUNNING, phase="train", step=10, loss=1.5, tokens_per_second=1000.0),
    event(
        "state",
        "succeeded",
        state=jobs_pb2.SUCCEEDED,
        step=10,
        loss=1.5,
        validation_loss=1.75,
        validation_step=10,
        checkpoint="/state/job-1/step-00000010",
        checkpoint_step=10,
        model_sha256="ab" * 32,
        tokens_per_second=1000.0,
    ),
]


def test_submit_sends_the_complete_job_and_prints_its_id(
    aggregator: FakeAggregator, job_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", str(job_file), "--aggregator", aggregator.address, "--set", "max_steps=7"]) == 0
    assert capsys.readouterr().out == "job-1\n"
    (request,) = aggregator.submitted
    assert request.name == "tiny"
    spec = json.loads(request.spec_json)
    assert (spec["steps"], spec["batch_size"], spec["model"]["num_features"]) == (7, 4, 4)
    assert main(["submit", str(job_file), "--aggregator", aggregator.address, "--json"]) == 0
    assert last_json(capsys.readouterr().out)["job"] == "job-2"


def test_submit_follow_shows_the_job_to_its_end(
    aggregator: FakeAggregator, job_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    aggregator.events = [RUN]
    assert main(["submit", str(job_file), "--aggregator", aggregator.address, "--follow", "--json"]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 1
    result = last_json(captured.out)
    assert {
        "job": "job-1",
        "state": "succeeded",
        "step": 10,
        "loss": 1.5,
        "validation_loss": 1.75,
        "checkpoint": "/state/job-1/step-00000010",
        "model_sha256": "ab" * 32,
        "tokens_per_second": 1000.0,
    }.items() <= result.items()
    assert "step 10/10  loss 1.5000  1,000 tokens/s" in captured.err
    assert "validation loss 2.25" in captured.err


def test_following_survives_a_restart_of_the_aggregator(
    aggregator: FakeAggregator, job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_module, "_RETRY_SECONDS", 0.01)
    aggregator.events = [RUN[:2], RUN[:2], RUN]
    assert main(["submit", str(job_file), "--aggregator", aggregator.address, "--follow"]) == 0
    assert aggregator.events == []


def test_following_survives_a_frozen_aggregator(job_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Frozen(FakeAggregator):
        """Aggregator that does not answer its first call, like a stopped process whose kernel still accepts."""

        frozen = True

        async def Watch(self, request: jobs_pb2.JobRequest, context: Any) -> AsyncIterator[jobs_pb2.JobEvent]:
            if self.frozen:
                self.frozen = False
                await asyncio.Event().wait()
            async for each in super().Watch(request, context):
                yield each

    monkeypatch.setattr(jobs_module, "_RETRY_SECONDS", 0.01)
    with serving(Frozen()) as aggregator:
        aggregator.events = [RUN]
        where = ["--aggregator", aggregator.address, "--timeout-seconds", "2"]
        assert main(["submit", str(job_file), "--follow", *where]) == 0
    assert not aggregator.events


def test_following_gives_up_and_names_the_wait(
    aggregator: FakeAggregator,
    job_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(jobs_module, "_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(jobs_module, "OUTAGE_SECONDS", 0.1)
    aggregator.events = [RUN[:1], *([[]] * 1000)]
    assert main(["submit", str(job_file), "--aggregator", aggregator.address, "--follow"]) == 1
    assert "for events of job job-1" in capsys.readouterr().err


@pytest.mark.parametrize(("state", "name"), [(jobs_pb2.FAILED, "failed"), (jobs_pb2.CANCELLED, "cancelled")])
def test_a_followed_job_that_does_not_succeed_is_exit_code_1(
    state: jobs_pb2.JobState,
    name: str,
    aggregator: FakeAggregator,
    job_file: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    aggregator.events = [[event("state", state=state, detail="because")]]
    assert main(["submit", str(job_file), "--aggregator", aggregator.address, "--follow", "--json"]) == 1
    captured = capsys.readouterr()
    assert last_json(captured.out)["state"] == name
    assert captured.err.splitlines()[-1] == f"tiermesh: job job-1 {name}: because"


def test_jobs_status_logs_and_cancel(aggregator: FakeAggregator, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--aggregator", aggregator.address, "--json"]
    assert main(["jobs", *where]) == 0
    assert last_json(capsys.readouterr().out) == {"jobs": []}
    for number in (1, 2):
        aggregator.jobs[f"job-{number}"] = jobs_pb2.Job(
            id=f"job-{number}", name="tiny", state=jobs_pb2.RUNNING, step=3, steps=10, loss=2.0
        )
    assert main(["jobs", *where]) == 0
    listed = last_json(capsys.readouterr().out)["jobs"]
    assert [(job["job"], job["state"], job["loss"]) for job in listed] == [
        ("job-1", "running", 2.0),
        ("job-2", "running", 2.0),
    ]
    assert main(["status", "job-2", *where]) == 0
    assert last_json(capsys.readouterr().out) == listed[1]
    assert main(["logs", "job-1", *where]) == 0
    captured = capsys.readouterr()
    assert last_json(captured.out) == {"job": "job-1", "lines": 2}
    assert captured.err.splitlines()[1].endswith("second line")
    assert main(["cancel", "job-1", *where]) == 0
    cancelled = last_json(capsys.readouterr().out)
    assert (cancelled["state"], cancelled["detail"]) == ("cancelled", "cancelled by request")


def test_status_shows_the_cluster(aggregator: FakeAggregator, capsys: pytest.CaptureFixture[str]) -> None:
    worker = jobs_pb2.Member(name="host-a", state="computing", step=7, seconds_since_heard=0.5)
    aggregator.status.workers.append(worker)
    aggregator.status.running_jobs[:] = ["job-1"]
    aggregator.status.waiting = "waits for worker host-a for 3 s"
    aggregator.status.waits.add(role="optimizer", peer="opt", step=7, what="the update", seconds=1.5)
    aggregator.status.standbys.add(name="agg-b", seconds_since_heard=0.25)
    assert main(["status", "--aggregator", aggregator.address]) == 0
    text = capsys.readouterr().out
    assert "the update, step 7, chunk" not in text
    for part in (
        "3-tier, epoch 3",
        "standby agg-b: last message 0.25 s ago",
        "optimizer-host",
        "job-1 (waits for worker host-a",
        "worker host-a: computing",
        "waiting 1.5 s for optimizer opt: the update, step 7",
    ):
        assert part in text
    assert main(["status", "--aggregator", aggregator.address, "--json"]) == 0
    result = last_json(capsys.readouterr().out)
    assert (result["epoch"], result["tiers"], result["running_jobs"]) == (3, 3, ["job-1"])
    assert (result["leader"], result["standbys"]) == ("agg", [{"name": "agg-b", "seconds_since_heard": 0.25}])
    assert result["workers"][0]["name"] == "host-a"
    assert result["shards"] == []


def test_status_has_a_line_for_each_of_several_jobs(
    aggregator: FakeAggregator, capsys: pytest.CaptureFixture[str]
) -> None:
    aggregator.status.running_jobs[:] = ["job-1", "job-2"]
    aggregator.status.job_waits[:] = ["phase train, step 7", "stops after its step: paused by request"]
    aggregator.status.waiting = "job job-1: phase train, step 7; job job-2: ..."
    aggregator.status.waits.add(
        role="optimizer", peer="opt", job="job-2", step=3, what="the update", seconds=1.5
    )
    assert main(["status", "--aggregator", aggregator.address]) == 0
    lines = capsys.readouterr().out.splitlines()
    for line in (
        "running job: job-1 (phase train, step 7)",
        "running job: job-2 (stops after its step: paused by request)",
        "waiting 1.5 s for optimizer opt: the update, job job-2, step 3",
    ):
        assert line in lines
    assert main(["status", "--aggregator", aggregator.address, "--json"]) == 0
    result = last_json(capsys.readouterr().out)
    waits = {"job-1": "phase train, step 7", "job-2": "stops after its step: paused by request"}
    assert result["job_waits"] == waits


def test_status_shows_the_shards(aggregator: FakeAggregator, capsys: pytest.CaptureFixture[str]) -> None:
    aggregator.status.shards.add(index=0, address="a:7073", name="host-a", seconds_since_heard=0.5)
    aggregator.status.shards.add(index=1, address="b:7073", detail="connection refused")
    assert main(["status", "--aggregator", aggregator.address]) == 0
    text = capsys.readouterr().out
    assert "shard 0 of 2 host-a at a:7073: last message 0.5 s ago" in text
    assert "shard 1 of 2 at b:7073: not connected: connection refused" in text
    assert main(["status", "--aggregator", aggregator.address, "--json"]) == 0
    first, second = last_json(capsys.readouterr().out)["shards"]
    assert (first["name"], first["connected"], first["detail"]) == ("host-a", True, None)
    assert (second["name"], second["connected"], second["detail"]) == (None, False, "connection refused")


def test_a_submit_whose_answer_is_lost_is_sent_again_with_the_same_request_id(
    aggregator: FakeAggregator, job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_module, "_RETRY_SECONDS", 0.01)
    for attempts in (3, 6):
        aggregator.lost_answers = 2
        assert main(["submit", str(job_file), "--aggregator", aggregator.address]) == 0
        assert len(aggregator.submitted) == attempts
    ids = [request.request_id for request in aggregator.submitted]
    assert ids[0] == ids[2] != ids[3] == ids[5], "each command has an id of its own"


def test_jobs_are_listed_newest_last_in_pages(
    aggregator: FakeAggregator, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(1, 9):
        aggregator.jobs[f"job-{number}"] = jobs_pb2.Job(id=f"job-{number}", state=jobs_pb2.QUEUED)
    for flags, first in (["--all"], 1), ([], 1), (["--limit", "4"], 5), (["--limit", "8"], 1):
        assert main(["jobs", *flags, "--aggregator", aggregator.address, "--json"]) == 0
        captured = capsys.readouterr()
        listed = [job["job"] for job in last_json(captured.out)["jobs"]]
        assert listed == [f"job-{number}" for number in range(first, 9)]
        assert ("--all lists the older ones too" in captured.err) == (first > 1)


def test_a_refusal_of_the_aggregator_is_exit_code_2(
    aggregator: FakeAggregator, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["status", "job-9"], ["cancel", "job-9"], ["logs", "job-9"]):
        assert main([*command, "--aggregator", aggregator.address, "--json"]) == 2
        captured = capsys.readouterr()
        assert captured.err == "tiermesh: no job 'job-9'\n"
        assert last_json(captured.out) == {"error": "no job 'job-9'", "exit_code": 2}


def test_an_unreachable_aggregator_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", "--aggregator", "127.0.0.1:1"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "tiermesh: nothing listens at 127.0.0.1:1: start `tiermesh aggregator`, or name another with --aggregator"
    )


@pytest.mark.long
def test_the_address_that_answers_is_called(
    aggregator: FakeAggregator, job_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check four addresses: one dead, one frozen, one standby, one leader."""
    with socket.create_server(("127.0.0.1", 0)) as frozen, serving(FakeAggregator()) as standby:
        standby.standby_of = "agg-a (epoch 3)"
        others = ["127.0.0.1:1", f"127.0.0.1:{frozen.getsockname()[1]}", standby.address]
        where = ["--aggregator", ",".join([*others, aggregator.address]), "--timeout-seconds", "8"]
        aggregator.events = [RUN]
        assert main(["submit", str(job_file), "--follow", *where]) == 0
        assert (len(standby.submitted), len(aggregator.submitted)) == (0, 1)
        assert main(["status", *where]) == 0
        assert f"aggregator agg at {aggregator.address}: 3-tier" in capsys.readouterr().out
        assert main(["jobs", "--aggregator", ",".join(others), "--timeout-seconds", "6"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "tiermesh: no aggregator answers for the cluster (nothing listens at 127.0.0.1:1; "
    )
    assert f"{others[1]}: no answer within 2 s; {standby.address}: this aggregator is a stan" in line


def test_following_continues_with_the_standby_that_takes_over(
    aggregator: FakeAggregator, job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_module, "_RETRY_SECONDS", 0.01)
    with serving(FakeAggregator()) as standby:
        standby.standby_of = "agg-a (epoch 3)"
        aggregator.events, standby.events = [RUN[:2], []], [RUN]

        def take_over() -> None:
            aggregator.standby_of, standby.standby_of = "agg-b (epoch 4)", ""
            standby.jobs = aggregator.jobs

        aggregator.at_end_of_events = take_over
        where = ["--aggregator", f"{aggregator.address},{standby.address}"]
        assert main(["submit", str(job_file), "--follow", *where]) == 0
        assert standby.events == []


@pytest.mark.parametrize("command", ["local", "chaos"])
def test_a_state_dir_that_cannot_be_created_is_refused(
    command: str, job_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = job_file / "state"  # in a file
    assert main([command, str(job_file), "--state-dir", str(folder)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"--state-dir {folder}: can't be created (Not a directory)" in line


def test_the_wait_for_an_answer_is_limited(
    aggregator: FakeAggregator, capsys: pytest.CaptureFixture[str]
) -> None:
    aggregator.silent = True
    assert main(["jobs", "--aggregator", aggregator.address, "--timeout-seconds", "0.3"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "no answer to List within 0.3 s" in line


def test_commands_speak_tls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    authority = make_authority(tmp_path, "authority")
    cert, key = make_certificate(tmp_path, "alice", authority, CallerKind.PERSON)
    with serving(FakeAggregator(), Security(cert, key, authority)) as fake:
        where = ["--aggregator", fake.address]
        assert (
            main(["jobs", *where, "--tls-ca", str(authority), "--tls-cert", str(cert), "--tls-key", str(key)])
            == 0
        )
        capsys.readouterr()
        assert main(["jobs", *where]) == 1
        assert f"{fake.address} speaks TLS: give --tls-ca" in capsys.readouterr().err


def test_every_flag_can_be_set_by_variable_and_config_file(
    aggregator: FakeAggregator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    what_to_do = {
        ("launch", "--config"),
        ("launch", "--attach"),
        ("launch", "--stop"),
    }  # arguments in all but name
    for name, command in tiermesh.load_all().items():
        for parameter in command.params:
            flag = parameter.opts[0]
            if (
                parameter.param_type_name == "option"
                and not command.hidden
                and (name, flag) not in what_to_do
            ):
                assert parameter.envvar == "TIERMESH_" + flag[2:].replace("-", "_").upper()
    config = tmp_path / "flags.yaml"
    config.write_text(f"aggregator: {aggregator.address}\ntimeout-seconds: 5\njson: true\n")
    assert main(["jobs", "--config", str(config)]) == 0
    assert last_json(capsys.readouterr().out) == {"jobs": []}
    monkeypatch.setenv("TIERMESH_AGGREGATOR", "127.0.0.1:1")
    assert main(["jobs", "--config", str(config)]) == 1, "the environment wins over the file"
    capsys.readouterr()
    assert main(["jobs", "--config", str(config), "--aggregator", aggregator.address]) == 0, (
        "flags win over both"
    )


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("agregator: a:1", 'agregator: unknown key (value "a:1"), did you mean aggregator?'),
        ("timeout-seconds: soon", "soon given, expected a number of at least"),
        ("aggregator: {a: 1}", "expected a plain value"),
        ("- a", "expected a mapping"),
    ],
)
def test_a_bad_config_file_is_refused(
    content: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "flags.yaml"
    config.write_text(content)
    assert main(["jobs", "--config", str(config)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["jbos"], "No such command 'jbos'"),
        (["jobs", "--agregator", "x"], "No such option '--agregator'"),
        (["submit"], "Missing argument 'JOB.yaml'"),
        (["jobs", "--aggregator", "nowhere"], "--aggregator 'nowhere': not HOST:PORT"),
        (["jobs", "--aggregator", "a:1,nowhere"], "--aggregator 'nowhere': not HOST:PORT"),
        (["submit", "missing.yaml"], "missing.yaml: no such file"),
        (["local", "missing.yaml"], "missing.yaml: no such file"),
        (["validate", "missing.yaml"], "missing.yaml: no such file"),
        (["local", "missing.yaml", "--tiers", "4"], "'4' is not one of '2', '3'"),
        (["generate", "missing"], "missing: no checkpoint"),
        (["worker", "--tls-ca", "missing.pem"], "--tls-ca: missing.pem: no such file"),
    ],
)
def test_bad_arguments_are_one_line_and_exit_code_2(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("tiermesh: ")
    assert expected in line


@pytest.mark.parametrize("command", ["local", "submit", "validate", "chaos"])
def test_every_command_with_a_job_takes_settings(
    command: str, job_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(job_file), "max_steps=zero"]) == 2
    assert 'training_config.max_steps: "zero" given' in capsys.readouterr().err


def test_a_closed_output_is_no_error() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; sys.stdout.close(); from cli.main import main; sys.exit(main(['--help']))",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "Traceback" not in done.stderr


def test_submit_names_settings_that_use_all_workers(
    aggregator: FakeAggregator, job_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    submit = ["submit", str(job_file), "--aggregator", aggregator.address]
    aggregator.status.workers.extend(jobs_pb2.Member(name=f"w{number}") for number in range(40))
    assert main(submit) == 0
    captured = capsys.readouterr()
    assert "of 40 workers compute" in captured.err
    assert len(captured.out.splitlines()) == 1, "only the id, which scripts read"
    del aggregator.status.workers[1:]
    assert main(submit) == 0
    assert capsys.readouterr().err == ""
