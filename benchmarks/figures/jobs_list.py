"""jobs_list: seconds of `tiermesh jobs`, and of a job named by a part of its id, with 10,000 jobs in the queue.

The jobs are written into the queue's file, and an aggregator without workers serves it. Each figure is the median of
whole processes, from start to end. Beside it stands their processor time, which a busy machine changes less.
"""

from __future__ import annotations

import asyncio
import resource
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

from aggregator.storage.job_queue import JobQueue, open_queue
from aggregator.storage.schema import room_of
from benchmarks.harness.job_settings import BUILD, ROOT
from benchmarks.harness.report import median, report
from protos import jobs_pb2
from services.errors import Failed
from services.runtime.launcher import DaemonProcess, kill_all
from services.timeouts import Timeouts

NAME = "jobs_list"
JOBS = 10_000
BOUND_SECONDS = 0.5
REPEATS = 7


def run(count: int = JOBS) -> bool:
    """Measure the commands, and report each."""
    folder = BUILD / NAME
    shutil.rmtree(folder, ignore_errors=True)
    fill_queue(folder, count)
    kept = []
    for name, times in asyncio.run(_measure(folder, f"{count // 2:08x}")).items():
        seconds, used = zip(*times, strict=True)
        kept.append(
            report(
                f"{NAME}_{name}_seconds",
                median(seconds),
                BOUND_SECONDS,
                f"the whole process, {count} jobs, n = {len(seconds)}, longest {max(seconds):.2f} s",
                f"processor time {median(used):.2f} s",
                decimals=2,
            )
        )
    return all(kept)


def fill_queue(state_dir: Path, count: int) -> None:
    """Make a queue with so many ended jobs, every thousandth of them rare."""
    state_dir.mkdir(parents=True)
    with open_queue(state_dir, Timeouts.from_heartbeat(5.0)) as queue:
        assert isinstance(queue, JobQueue)
        queue.raise_epoch()
    rows = []
    for number in range(count):
        submitted = 1.8e9 + 60 * number
        job = jobs_pb2.Job(
            id=f"{time.strftime('%m%d-%H%M%S', time.gmtime(submitted))}-{number:08x}",
            name="rare" if number % 1000 == 0 else f"attempt {number}",
            owner="ann",
            state=jobs_pb2.SUCCEEDED,
            step=1000,
            steps=1000,
            loss=2.5,
            submitted_seconds=submitted,
            started_seconds=submitted + 5,
            ended_seconds=submitted + 3000,
            checkpoint=f"/var/lib/tiermesh/checkpoints/{number}/step-00001000",
            model_sha256="ab" * 32,
            worker_seconds={"computing": 1e4, "wire": 1e3, "update": 1e2, "others": 1e2},
        )
        record = job.SerializeToString()
        rows.append((job.id, job.owner, record, room_of(record)))
    with sqlite3.connect(state_dir / "queue.sqlite") as connection:
        connection.executemany("INSERT INTO jobs (id, owner, live, job, room) VALUES (?, ?, 0, ?, ?)", rows)
    connection.close()


async def _measure(state_dir: Path, part: str) -> dict[str, list[tuple[float, float]]]:
    """Return the seconds of each command, several times, and its processor time."""
    aggregator = DaemonProcess("aggregator", "aggregator", state_dir, ["--state-dir", str(state_dir)]).start()
    try:
        await aggregator.wait_ready()
        commands = {"newest": ["jobs"], "filtered": ["jobs", "--named", "rare"], "part": ["status", part]}
        return {
            name: [_time(words, aggregator.address) for _ in range(REPEATS)]
            for name, words in commands.items()
        }
    finally:
        kill_all([aggregator])


def _time(words: list[str], address: str) -> tuple[float, float]:
    """Return the seconds of a command, from the start of its process to its end, and its processor time."""
    started, used = time.perf_counter(), _processor_seconds()
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", *words, "--aggregator", address],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise Failed(f"tiermesh {' '.join(words)}: {done.stderr.strip()}")
    return time.perf_counter() - started, _processor_seconds() - used


def _processor_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime
