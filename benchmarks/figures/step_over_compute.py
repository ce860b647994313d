"""step_over_compute: a whole step of a 2-tier cluster with 1 worker, over its forward and backward pass.

Both come from the daemons' own metrics, read at the start and end of windows of the run.
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.harness.local_cluster import result_of, start_local, state_dir
from benchmarks.harness.report import median, report
from services.errors import Failed

NAME = "step_over_compute"
BOUND = 1.3
STEPS = 500
WARM_UP_STEPS = 50
WINDOW_STEPS = 25


@dataclass(frozen=True)
class Reading:
    """Totals of the daemons' metrics at one moment."""

    steps: float
    step_seconds: float
    compute_seconds: float
    update_seconds: float


def run() -> bool:
    """Follow the metrics of a run, and report the median over its windows."""
    state = state_dir(NAME)
    process = start_local(
        state, 2, 1, f"training_config.max_steps={STEPS}", "eval_every=0", "model_save_interval=0"
    )
    try:
        windows = _windows(process, state)
    finally:
        result_of(process, state)
    if not windows:
        raise Failed("the run ended before a window was over; see " + str(state))
    steps = [(last.step_seconds - first.step_seconds) / (last.steps - first.steps) for first, last in windows]
    compute = [
        (last.compute_seconds - first.compute_seconds) / (last.steps - first.steps) for first, last in windows
    ]
    update = [
        (last.update_seconds - first.update_seconds) / (last.steps - first.steps) for first, last in windows
    ]
    ratios = [whole / part for whole, part in zip(steps, compute, strict=True)]
    rest = [whole - part for whole, part in zip(steps, compute, strict=True)]
    return report(
        NAME,
        median(ratios),
        BOUND,
        f"medians over {len(windows)} windows of {WINDOW_STEPS} steps: step {1e3 * median(steps):.2f} ms, "
        f"forward and backward {1e3 * median(compute):.2f} ms, rest {1e3 * median(rest):.2f} ms "
        f"(update, beside sending new weights, {1e3 * median(update):.2f} ms)",
        f"ratios {min(ratios):.3f} - {max(ratios):.3f}",
    )


def _windows(process: subprocess.Popen[str], state: Path) -> list[tuple[Reading, Reading]]:
    """Return pairs of readings, WINDOW_STEPS apart, from the end of the warm-up to the end of the run."""
    windows: list[tuple[Reading, Reading]] = []
    start: Reading | None = None
    while process.poll() is None:
        try:
            now = _read(state)
        except (OSError, ValueError, KeyError):
            if start is not None:
                break  # The daemons are stopping.
            now = Reading(0, 0, 0, 0)
        if start is None:
            start = now if now.steps >= WARM_UP_STEPS else None
        elif now.steps >= start.steps + WINDOW_STEPS:
            windows.append((start, now))
            start = now
        time.sleep(0.2)  # Interval between two readings, like Prometheus' scrapes; it synchronises nothing.
    return windows


def _read(state: Path) -> Reading:
    aggregator, worker = _scrape(state, "aggregator"), _scrape(state, "worker-1")
    return Reading(
        steps=aggregator["tiermesh_step_seconds_count"],
        step_seconds=aggregator["tiermesh_step_seconds_sum"],
        compute_seconds=worker["tiermesh_compute_seconds_total"],
        update_seconds=aggregator["tiermesh_update_seconds_sum"],
    )


def _scrape(state: Path, daemon: str) -> dict[str, float]:
    port = json.loads((state / "logs" / f"{daemon}.ready.json").read_text())["metrics_port"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
