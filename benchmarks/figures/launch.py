"""launch: time from the command to the first step, of `tiermesh launch` through sshd over that of `tiermesh local`.

Five ranks on five loopback addresses of a real sshd: 3 workers, an aggregator and an optimizer. `tiermesh local` starts
the same cluster without ssh, agents, checks and certificates. Both run alternately, after one run each that is not
counted. The bound is 1.5 times the time of `local`, plus 5 seconds.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.harness.job_settings import BUILD, ROOT
from benchmarks.harness.report import Skipped, median, report
from tests.support.ports import free_port
from tests.support.sshd import NoSshd, Sshd, running_sshd

NAME = "launch"
RUNS = 5
FACTOR, EXTRA_SECONDS = 1.5, 5.0
CONFIG = ROOT / "configs" / "training_configs" / "linear_regression.yaml"
FOLDER = ROOT / "deploy" / "cluster_configurations" / "5loudboxes"
HOSTS = ",".join(f"127.0.0.{number}:1" for number in range(1, 6))
SETTINGS = (
    "training_config.max_steps=3", "device_config.backend=emulator", "multihost_config.enabled=true",
    "multihost_config.num_workers=3",
)  # fmt: skip


def run() -> bool:
    """Measure both commands alternately and print the figure."""
    folder = BUILD / NAME
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        with running_sshd(folder / "sshd") as sshd:
            pairs = [
                (_first_step(_local(sshd, each)), _first_step(_launch(sshd))) for each in range(RUNS + 1)
            ][1:]
    except NoSshd as error:
        raise Skipped(str(error)) from None
    local, launch = (median(times) for times in zip(*pairs, strict=True))
    return report(
        NAME,
        launch / (FACTOR * local + EXTRA_SECONDS),
        1.0,
        f"launch: {_seconds([pair[1] for pair in pairs])}, {launch / local:.2f} times local",
        f"local: {_seconds([pair[0] for pair in pairs])}",
        f"bound: {FACTOR} times local + {EXTRA_SECONDS:g} s = {FACTOR * local + EXTRA_SECONDS:.2f} s",
    )


def _local(sshd: Sshd, number: int) -> list[str]:
    state = sshd.folder / "local" / str(number)
    options = ("--workers", "3", "--tiers", "3", "--sample-tokens", "0", "--state-dir", str(state))
    settings = [text for setting in SETTINGS for text in ("--set", setting)]
    return [sys.executable, "-m", "cli.main", "local", str(CONFIG), *options, *settings]


def _launch(sshd: Sshd) -> list[str]:
    return [
        sys.executable, "-m", "cli.main", "launch", str(FOLDER), "--config", str(CONFIG), "--hosts", HOSTS,
        "--ssh-config", str(sshd.config), "--remote", str(sshd.remote), "--state-dir", str(sshd.folder / "runs"),
        "--aggregator-port", str(free_port()), "--optimizer-port", str(free_port()), *SETTINGS,
    ]  # fmt: skip


def _first_step(command: Sequence[str]) -> float:
    """Return the seconds from the start of a command to its first line about a step; wait for its end."""
    started = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    seconds = 0.0
    with process.stdout as lines:
        for line in lines:
            if "  step " in line and not seconds:
                seconds = time.monotonic() - started
    if process.wait() or not seconds:
        raise RuntimeError(f"{command[3]} failed with exit code {process.returncode}")
    return seconds


def _seconds(values: Sequence[float]) -> str:
    return f"{median(values):.2f} s [{min(values):.2f} - {max(values):.2f}], n = {len(values)}"
