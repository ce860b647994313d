"""`tiermesh local --supervise`: daemons that are killed are restarted, and the job ends with the same bits."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
from contextlib import closing
from pathlib import Path

import pytest

from cli import local
from cli.output import Output
from cli.supervise import LONGEST_WAIT_SECONDS, STEADY_SECONDS, RestartBackoff, supervise
from protos.jobs_pb2 import Job
from services.jobs.client import JobsClient
from services.jobs.connection import Unreachable
from services.runtime.launcher import DaemonProcess
from tests.cli.test_local import daemon_pid, rest_of, run, training
from tests.support.gated_model import ALLOWED, Gate

LENGTH = ("--workers", "1", "--set", "max_steps=400", "--set", "model_save_interval=20", *ALLOWED)
ALL_PASSES, FIRST_PASSES, PASSES_OF_A_DEATH = 2000, 50, 100
"""Passes that a job may run in all, before the first death, and from each death on. The first deaths leave some of the
400 steps to the last one. A death takes at most those since the latest checkpoint, and more follow up to the next one.
"""


def test_waits_double_up_to_a_limit_and_start_over_after_a_healthy_life() -> None:
    backoff = RestartBackoff()
    waits = [backoff.wait_seconds(1.0) for _ in range(7)]
    assert waits == [0.5, 1, 2, 4, 8, LONGEST_WAIT_SECONDS, LONGEST_WAIT_SECONDS]
    assert backoff.wait_seconds(STEADY_SECONDS) == 0.5
    assert backoff.wait_seconds(STEADY_SECONDS - 0.1) == 1


def model_sha256(line: str) -> str:
    """Return the sha256 of the model in the checkpoint that a line names."""
    model = Path(line.rpartition(": ")[2]) / "model.safetensors"
    return hashlib.sha256(model.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """sha256 of the model of a run without faults."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with closing(Gate(folder)) as gate:
        gate.let(ALL_PASSES)
        code, result, line = run(gate.job_file, folder / "state", "--tiers", "2", *LENGTH)
    assert code == 0, line
    return str(result["model_sha256"])


@pytest.mark.long
@pytest.mark.parametrize(
    ("tiers", "victims"),
    [
        ("2", ["worker-1", "aggregator"]),
        ("3", ["worker-1", "aggregator", "optimizer"]),
    ],
)
def test_each_role_is_killed_and_the_job_ends_with_the_same_bits(
    gate: Gate, tmp_path: Path, tiers: str, victims: list[str], undisturbed: str
) -> None:
    state = tmp_path / "state"
    gate.let(FIRST_PASSES)
    with training(gate.job_file, state, "--tiers", tiers, "--supervise", *LENGTH) as process:
        assert process.stdout is not None
        for name in victims:
            os.kill(daemon_pid(state, name), signal.SIGKILL)
            line = next(line for line in process.stdout if f"{name} (process" in line)
            assert "ended, killed by SIGKILL" in line
            assert "restart in 0.5 s" in line
            gate.let(PASSES_OF_A_DEATH)
            assert next(line for line in process.stdout if "checkpoint of step" in line)
        gate.let(ALL_PASSES)
        code, lines = rest_of(process)
    assert code == 0, lines
    assert "checkpoint of step 400" in lines[-1]
    assert model_sha256(lines[-1]) == undisturbed


@pytest.mark.long
def test_a_daemon_is_restarted_on_its_port_unless_its_state_is_refused(tmp_path: Path) -> None:
    lines: list[str] = []
    state = tmp_path / "state"

    async def live() -> int:
        daemon = DaemonProcess("aggregator", "aggregator", tmp_path, ["--state-dir", str(state)]).start()
        try:
            await daemon.wait_ready()
            port = daemon.port
            os.kill(daemon.pid, signal.SIGKILL)
            await daemon.wait_ended()
            daemon.start()
            await daemon.wait_ready()
            assert daemon.port == port
            state.rename(tmp_path / "moved")
            state.touch()  # a file in place of the folder: the restart is refused
            os.kill(daemon.pid, signal.SIGKILL)
            await asyncio.wait_for(supervise(daemon, lines.append), 60)
            return port
        finally:
            await daemon.stop()

    port = asyncio.run(live())
    assert len(lines) == 1
    log = (tmp_path / "aggregator.log").read_text()
    assert log.count(f"serves on port {port}") == 2
    assert f"--state-dir {state}" in log.splitlines()[-1]


@pytest.mark.long
@pytest.mark.parametrize("answered", [False, True])
def test_a_job_is_queued_once_although_the_aggregator_dies_during_submit(
    job_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answered: bool
) -> None:
    """Kill the aggregator before or after it stores the job, which must be queued once."""
    state = tmp_path / "state"
    submit, deaths = JobsClient.submit, iter([True])

    async def dying(self: JobsClient, name: str, spec_json: str, request_id: str) -> Job:
        if not next(deaths, False):
            return await submit(self, name, spec_json, request_id)
        if answered:
            await submit(self, name, spec_json, request_id)
        os.kill(daemon_pid(state, "aggregator"), signal.SIGKILL)
        raise Unreachable("killed")

    monkeypatch.setattr(JobsClient, "submit", dying)
    options = local.LocalOptions(job_file, (), 1, 2, 0, state, False, 0, "info", supervise=True)
    local.run(options, Output(as_json=True))
    assert len(list((state / "logs").glob("*.jsonl"))) == 1, "the logs of jobs"
