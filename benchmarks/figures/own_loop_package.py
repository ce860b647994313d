"""own_loop_import, own_loop_first_call, own_loop_installed: what the package `tiermesh` costs its user.

The import is measured in fresh processes, after numpy and the HTTP client were imported. The first call is that of a
fresh process to `tiermesh web` on this machine: from the client's construction to the cluster's state. What is
installed is what pip writes, with bytecode. Times are medians of the clock on the wall.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.harness.job_settings import BUILD, ROOT
from benchmarks.harness.report import median, report
from services.errors import Failed
from services.runtime.launcher import DaemonProcess, kill_all

NAME = "own_loop"
IMPORT_BOUND_SECONDS = 0.080
FIRST_CALL_BOUND_SECONDS = 0.150
INSTALLED_BOUND_BYTES = 300_000
REPEATS = 11
IMPORT = """
import time, numpy, httpx2
began, used = time.perf_counter(), time.process_time()
import tiermesh
print(time.perf_counter() - began, time.process_time() - used)
"""
FIRST_CALL = """
import sys, time, tiermesh
url, token = sys.argv[1:]
began, used = time.perf_counter(), time.process_time()
tiermesh.Client(url, token=token).status()
print(time.perf_counter() - began, time.process_time() - used)
"""


def run() -> bool:
    """Install the package, and measure all three."""
    folder = BUILD / "own_loop_package"
    shutil.rmtree(folder, ignore_errors=True)
    installed = _install(folder)
    site = {**os.environ, "PYTHONPATH": str(folder / "site")}
    kept = [
        _report("import", [_seconds(IMPORT, site) for _ in range(REPEATS)], IMPORT_BOUND_SECONDS),
        _report("first_call", asyncio.run(_first_calls(folder, site)), FIRST_CALL_BOUND_SECONDS),
        report(f"{NAME}_installed_bytes", installed, INSTALLED_BOUND_BYTES, "with bytecode", decimals=0),
    ]
    return all(kept)


def _report(what: str, times: list[tuple[float, float]], bound_seconds: float) -> bool:
    seconds, used = zip(*times, strict=True)
    return report(
        f"{NAME}_{what}_seconds",
        median(seconds),
        bound_seconds,
        f"{len(seconds)} fresh processes, {min(seconds):.3f} - {max(seconds):.3f}; CPU time {median(used):.3f}",
    )


def _install(folder: Path) -> int:
    """Install the package alone into a folder, and return the size of what is there."""
    shutil.copytree(
        ROOT / "sdk", folder / "source", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    )
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-build-isolation"]
    done = subprocess.run(
        [*pip, "--target", str(folder / "site"), str(folder / "source")],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise Failed(f"{NAME}: pip can't install sdk/: {done.stderr.strip()}")
    return sum(each.stat().st_size for each in (folder / "site").rglob("*") if each.is_file())


def _seconds(script: str, environment: dict[str, str], *arguments: str) -> tuple[float, float]:
    """Return the seconds on the wall, and of CPU time, that a script in a fresh process prints."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise Failed(f"{NAME}: {done.stderr.strip().splitlines()[-1]}")
    seconds, used = map(float, done.stdout.split())
    return seconds, used


async def _first_calls(folder: Path, environment: dict[str, str]) -> list[tuple[float, float]]:
    daemons: list[DaemonProcess] = []

    async def start(role: str, *options: str) -> str:
        state = ("--state-dir", str(folder / role))
        daemons.append(DaemonProcess(role, role, folder, [*state, *options]).start())
        await daemons[-1].wait_ready()
        return daemons[-1].address

    try:
        kept = folder / "web-token"
        aggregator = await start("aggregator")
        url = "http://" + await start("web", "--aggregator", aggregator, "--token-file", str(kept))
        token = kept.read_text().strip()
        return [
            await asyncio.to_thread(_seconds, FIRST_CALL, environment, url, token) for _ in range(REPEATS)
        ]
    finally:
        kill_all(daemons)
