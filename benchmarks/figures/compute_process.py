"""compute_process: CPU time of a step with the worker's compute process, over that of a tree without one.

TIERMESH_BENCH_BEFORE names the other tree, a worktree with a .venv of a commit before the compute process. Sets of
daemons of both trees alternate: 2 tiers, 1 worker, the GPT with 10.7 M parameters.
"""

from __future__ import annotations

import json
import math
import os
import signal
import statistics
import subprocess
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.harness.job_settings import ROOT, data_dir
from benchmarks.harness.local_cluster import state_dir
from benchmarks.harness.report import Skipped, report
from services.errors import Failed

NAME = "compute_process"
BOUND = 1.03
BEFORE = "TIERMESH_BENCH_BEFORE"
CONFIG = "configs/training_configs/training_shakespeare_nanogpt_char.yaml"
OVERRIDES = (
    "batch_size=4", "gradient_accumulation_steps=2", "max_steps=100000", "eval_every=0", "model_save_interval=0",
    "device_config.backend=emulator",
)  # fmt: skip
PAIRS = 6
STUDENT_T = 2.571
"""0.975 quantile of Student's t for 5 degrees of freedom, those of 6 pairs."""
WARM_UP_STEPS, STEPS = 3, 15
LIMIT_SECONDS = 600.0
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Step:
    """Time of a step.

    Attributes:
        cpu_seconds: of all processes of the cluster.
        seconds: of the clock on the wall.
    """

    cpu_seconds: float
    seconds: float


def run() -> bool:
    """Alternate sets of daemons of both trees, and report the ratio with its 95 % interval."""
    if BEFORE not in os.environ:
        raise Skipped(f"set {BEFORE} to a worktree of a commit before the compute process")
    before, after = Path(os.environ[BEFORE]).resolve(), ROOT
    pairs = [(_measure(before, f"before-{pair}"), _measure(after, f"after-{pair}")) for pair in range(PAIRS)]
    cpu, wall = (
        [getattr(late, name) / getattr(early, name) for early, late in pairs]
        for name in ("cpu_seconds", "seconds")
    )
    middle, low, high = _interval(cpu)
    wall_middle, wall_low, wall_high = _interval(wall)
    return report(
        NAME,
        middle,
        BOUND,
        f"95 % interval {low:.3f} - {high:.3f}, {PAIRS} pairs of sets, {STEPS} steps each",
        f"CPU seconds of a step: before {_mean(early.cpu_seconds for early, _ in pairs):.3f}, "
        f"after {_mean(late.cpu_seconds for _, late in pairs):.3f}",
        f"seconds of a step: before {_mean(early.seconds for early, _ in pairs):.3f}, "
        f"after {_mean(late.seconds for _, late in pairs):.3f}; ratio {wall_middle:.3f} "
        f"({wall_low:.3f} - {wall_high:.3f}) on {os.cpu_count()} cores",
    )


_mean = statistics.fmean


def _interval(ratios: list[float]) -> tuple[float, float, float]:
    """Return the geometric mean of paired ratios, and its 95 % interval."""
    logs = [math.log(each) for each in ratios]
    middle, half = _mean(logs), STUDENT_T * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


def _measure(tree: Path, name: str) -> Step:
    """Run a set of daemons of a tree, and return the time of a step after its warm-up."""
    state = state_dir(f"{NAME}/{name}")
    state.mkdir(parents=True)
    command = [
        str(tree / ".venv/bin/python"), "-m", "cli.main", "local", str(tree / CONFIG), "--tiers", "2",
        "--workers", "1", "--state-dir", str(state), "--sample-tokens", "0",
    ]  # fmt: skip
    for override in OVERRIDES:
        command += ["--set", override]
    environment = {**os.environ, "TIERMESH_DATA": str(data_dir())}
    with (state / "local.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=tree)
    try:
        first = _wait_for_step(process, state, WARM_UP_STEPS)
        last = _wait_for_step(process, state, int(first[0]) + STEPS)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()
    steps = last[0] - first[0]
    return Step((last[1] - first[1]) / steps, (last[2] - first[2]) / steps)


def _wait_for_step(process: subprocess.Popen[bytes], state: Path, step: int) -> tuple[float, float, float]:
    """Wait until a number of steps are over; return the number, the cluster's CPU seconds, and the time."""
    deadline_seconds = time.monotonic() + LIMIT_SECONDS
    while process.poll() is None and time.monotonic() < deadline_seconds:
        try:
            steps = _steps(state)
        except (OSError, ValueError, KeyError):
            steps = 0.0
        if steps >= step:
            return steps, _cpu_seconds(process.pid), time.monotonic()
        time.sleep(0.02)  # a step takes seconds
    raise Failed(f"step {step} was not over within {LIMIT_SECONDS:g} s; see {state}/local.log")


def _steps(state: Path) -> float:
    port = json.loads((state / "logs" / "aggregator.ready.json").read_text())["metrics_port"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    samples = {sample.name: sample.value for family in families for sample in family.samples}
    return float(samples["tiermesh_step_seconds_count"])


def _cpu_seconds(process: int) -> float:
    """Return the CPU time of all processes that a process has started, and of theirs."""
    total = 0.0
    for thread in Path(f"/proc/{process}/task").iterdir():
        for child in (thread / "children").read_text().split():
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / _TICKS + _cpu_seconds(int(child))
    return total
