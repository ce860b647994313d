"""`tiermesh chaos` on real processes: its planned faults leave the bits of an undisturbed run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster.bits import deep_config, regression_config, split_config, write_config
from tests.support.cluster.daemon import LIMIT_SECONDS, environment, tiermesh
from tests.support.cluster.fork_server import ROOT

SEED, STEPS = 3, 300


@pytest.mark.long
def test_a_seeded_run_ends_in_the_undisturbed_bits(tmp_path: Path) -> None:
    job = write_config(tmp_path, regression_config(max_steps=STEPS, model_save_interval=50))
    done = tiermesh(
        "chaos", job, "--seed", SEED, "--faults", 6, "--tiers", 3, "--workers", 2, "--heartbeat-seconds", 0.4,
        "--verify", "--json", "--state-dir", tmp_path / "state", limit_seconds=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["state"], result["step"], result["same_bits"]) == ("succeeded", STEPS, True)
    assert result["model_sha256"] == result["undisturbed_sha256"]
    kinds = [fault["kind"] for fault in result["faults"]]
    # Steps of this job are fast. It may end before the command hears from it again after the kill.
    assert kinds == ["freeze", "kill", "delay", "cut", "slow", "break"][: len(kinds)] and "kill" in kinds
    for fault in result["faults"]:
        assert f"step {fault['at_step']}: {fault['target']}: " in done.stderr
    (killed,) = (fault["target"] for fault in result["faults"] if fault["kind"] == "kill")
    assert killed == "aggregator"
    assert "aggregator aggregator, epoch 2" in (tmp_path / "state" / "logs" / "aggregator.log").read_text()
    assert not list((tmp_path / "state" / "logs").glob("*.ready.json")), "all daemons were stopped"


@pytest.mark.long
def test_a_job_with_stages_ends_in_the_undisturbed_bits(tmp_path: Path, corpus: Path) -> None:
    config = deep_config(corpus, 3, tied=True, max_steps=30, model_save_interval=10)
    job = write_config(tmp_path, split_config(config, (1, 1, 1)))
    done = tiermesh(
        "chaos", job, "--seed", SEED, "--faults", 8, "--tiers", 3, "--workers", 4, "--heartbeat-seconds", 1,
        "--verify", "--json", "--state-dir", tmp_path / "state", limit_seconds=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["state"], result["same_bits"]) == ("succeeded", True)
    targets = [fault["target"] for fault in result["faults"]]
    assert any(each.startswith("row>") for each in targets), "a link between workers"
    assert any(each.startswith("worker-") and ">" not in each for each in targets), "a worker itself"


@pytest.mark.long
def test_an_unplanned_death_is_named_and_the_unfinished_job_refused(tmp_path: Path) -> None:
    job = write_config(tmp_path, regression_config(max_steps=1_000_000))
    state = tmp_path / "state"
    command = (
        "chaos",
        str(job),
        "--faults",
        "0",
        "--tiers",
        "2",
        "--workers",
        "1",
        "--state-dir",
        str(state),
    )
    with subprocess.Popen(
        [sys.executable, "-m", "cli.main", *command],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert next((line for line in process.stdout if "  step " in line), None), "it trains"
            pid = json.loads((state / "logs" / "worker-1.ready.json").read_text())["pid"]
            os.kill(pid, signal.SIGKILL)
            *_, last = process.stdout
            assert process.wait(LIMIT_SECONDS) == 1
        finally:
            process.kill()
    assert last.startswith(f"tiermesh: worker-1 (process {pid}) ended, killed by SIGKILL")
    refused = tiermesh(*command)
    assert refused.returncode == 2
    assert "is unfinished at step" in refused.stderr and "--resume --state-dir" in refused.stderr
