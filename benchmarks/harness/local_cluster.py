"""Run jobs with `tiermesh local`, as users do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness.job_settings import BUILD, CONFIG, data_dir
from services.errors import Failed


def state_dir(name: str) -> Path:
    """Return a new state folder for the run of that name."""
    folder = BUILD / name
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def start_local(state: Path, tiers: int, workers: int, *overrides: str) -> subprocess.Popen[str]:
    """Start the setting's job on a cluster on this machine."""
    state.mkdir(parents=True)
    command = [
        sys.executable, "-m", "cli.main", "local", str(CONFIG), "--tiers", str(tiers), "--workers", str(workers),
        "--state-dir", str(state), "--sample-tokens", "0", "--json",
    ]  # fmt: skip
    for override in overrides:
        command += ["--set", override]
    environment = {**os.environ, "TIERMESH_DATA": str(data_dir())}
    with (state / "local.log").open("w") as log:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)


def result_of(process: subprocess.Popen[str], state: Path) -> dict[str, Any]:
    """Wait for a run's end, and return its JSON result.

    Raises:
        Failed: the run failed.
    """
    output, _ = process.communicate()
    if process.returncode != 0:
        lines = (state / "local.log").read_text().splitlines()
        raise Failed(f"tiermesh local: exit code {process.returncode}: {lines[-1] if lines else 'no output'}")
    result = json.loads(output.splitlines()[-1])
    assert isinstance(result, dict)
    return result


def step_losses(state: Path, job: str) -> list[float]:
    """Return the loss of each step of a job, from its log."""
    losses = []
    for line in (state / "logs" / f"{job}.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["kind"] == "step":
            losses.append(float(event["text"].partition("Loss: ")[2].split()[0]))
    return losses
