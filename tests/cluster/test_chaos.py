"""`tiermesh chaos` on real processes: what happens by the plan leaves the bits of the undisturbed run."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cluster.bits import regression_config, write_config
from tests.cluster.harness import tiermesh

SEED = 3


def test_a_seeded_run_ends_in_the_undisturbed_bits(tmp_path: Path) -> None:
    job = write_config(tmp_path, regression_config(max_steps=150, model_save_interval=25))
    done = tiermesh(
        "chaos", job, "--seed", SEED, "--faults", 6, "--tiers", 3, "--workers", 2, "--heartbeat-seconds", 0.4,
        "--verify", "--json", "--state-dir", tmp_path / "state", limit_seconds=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["state"], result["step"], result["same_bits"]) == ("succeeded", 150, True)
    assert result["model_sha256"] == result["undisturbed_sha256"]
    kinds = [fault["kind"] for fault in result["faults"]]
    assert sorted(kinds) == ["break", "cut", "delay", "freeze", "kill", "slow"]
    for fault in result["faults"]:
        assert f"step {fault['at_step']}: {fault['target']}: " in done.stderr
    (killed,) = (fault["target"] for fault in result["faults"] if fault["kind"] == "kill")
    log = (tmp_path / "state" / "logs" / f"{killed}.log").read_text()
    assert log.count("epoch 2") >= 1, "the aggregator came back"
    assert not list((tmp_path / "state" / "logs").glob("*.ready.json")), "all daemons were stopped"
