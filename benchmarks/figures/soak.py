"""soak: growth of each role's memory while workers are killed and restarted for an hour.

`tiermesh local --supervise` with 3 tiers runs an endless job. At regular intervals SIGKILL ends one of the workers,
which a seed chooses. The figure compares each role's peak resident memory in the second half with that in the first.
TIERMESH_BENCH_SOAK_SECONDS sets the duration; the default is an hour.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.harness.job_settings import BUILD, ROOT
from benchmarks.harness.report import report
from services.errors import Failed

WORKERS = 3
HOUR_SECONDS = 3600.0
BOUND_MEGABYTES = 2.0
KILLS = 60
"""Number of kills over the whole run. A kill is skipped while its worker is being restarted."""
LOOK_SECONDS = 1.0
READY_SECONDS = 120.0
_CONFIG = ROOT / "configs" / "training_configs" / "linear_regression.yaml"
_SETTINGS = ("training_config.max_steps=1000000000", "eval_every=0", "model_save_interval=20000")

Samples = Mapping[str, Sequence[tuple[float, int]]]


def run() -> bool:
    """Run the cluster, and report the role whose memory grew most."""
    seconds = float(os.environ.get("TIERMESH_BENCH_SOAK_SECONDS", HOUR_SECONDS))
    log = BUILD / "soak" / "local.log"
    with _cluster(log) as cluster:
        _await_job(cluster, log)
        samples, kills = _soak(cluster, log, seconds)
    growth = grown(samples)
    most = max(growth, key=lambda role: growth[role][1] - growth[role][0])
    first, second = growth[most]
    return report(
        "soak_memory_growth_megabytes",
        (second - first) / 1e6,
        BOUND_MEGABYTES,
        *(
            f"{role}: {before / 1e6:.1f} MB at most in the first half, {after / 1e6:.1f} MB in the second"
            for role, (before, after) in sorted(growth.items())
        ),
        f"{seconds:.0f} s, {kills} kills of workers",
        decimals=2,
    )


def grown(samples: Samples) -> dict[str, tuple[int, int]]:
    """Return each role's peak bytes in the first and in the second half of the measured time.

    Args:
        samples: (seconds, bytes) of each role, by name.

    Raises:
        Failed: a role has no sample in one of the halves.
    """
    times = [at for looked in samples.values() for at, _ in looked]
    middle = (min(times) + max(times)) / 2
    found = {}
    for role, looked in samples.items():
        first = [size for at, size in looked if at <= middle]
        second = [size for at, size in looked if at > middle]
        if not first or not second:
            raise Failed(f"{role}: no sample in {'the first' if not first else 'the second'} half")
        found[role] = (max(first), max(second))
    return found


@contextmanager
def _cluster(log: Path) -> Iterator[subprocess.Popen[bytes]]:
    folder = log.parent
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "cli.main", "local", str(_CONFIG), "--supervise", "--tiers", "3"]
    command += ["--workers", str(WORKERS), "--state-dir", str(folder / "state")]
    for setting in (*_SETTINGS, f"multihost_config.num_workers={WORKERS}"):
        command += ["--set", setting]
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(READY_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _soak(cluster: subprocess.Popen[bytes], log: Path, seconds: float) -> tuple[Samples, int]:
    """Sample memory and kill workers for this long. Return the samples and the number of kills."""
    names = ["optimizer", "aggregator", *(f"worker-{number + 1}" for number in range(WORKERS))]
    samples: dict[str, list[tuple[float, int]]] = {name: [] for name in names}
    draw = random.Random(5)
    started = time.monotonic()
    kills, kill_seconds = 0, seconds / KILLS
    while (now := time.monotonic() - started) < seconds:
        daemons = _daemons(cluster.pid)
        for name, process in daemons.items():
            samples[name].append((now, _resident_bytes(process)))
        if now >= kill_seconds:
            kill_seconds += seconds / KILLS
            victim = daemons.get(f"worker-{draw.randint(1, WORKERS)}")
            if victim is not None:
                os.kill(victim, signal.SIGKILL)
                kills += 1
        _look_again(cluster, log)
    return samples, kills


def _await_job(cluster: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the job is submitted. From then on, daemons that die are restarted."""
    deadline = time.monotonic() + READY_SECONDS
    while b"; logs: " not in log.read_bytes():
        if time.monotonic() > deadline:
            raise Failed(f"no job was submitted within {READY_SECONDS:g} s; see {log}")
        _look_again(cluster, log)


def _look_again(cluster: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the next sample is due.

    Raises:
        Failed: the cluster has ended.
    """
    with suppress(subprocess.TimeoutExpired):
        cluster.wait(LOOK_SECONDS)
        raise Failed(f"the cluster has ended; see {log}")


def _daemons(parent: int) -> dict[str, int]:
    """Return the process ids of a process's daemons, by name."""
    found = {}
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        with suppress(OSError, ValueError):  # The process has just ended.
            words = Path(f"/proc/{child}/cmdline").read_text().split("\0")
            found[words[words.index("--name") + 1]] = int(child)
    return found


def _resident_bytes(process: int) -> int:
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except OSError:  # The process has just ended.
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
