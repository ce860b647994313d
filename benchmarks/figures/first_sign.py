"""first_sign: time from a command's start until its terminal shows the first character; the slowest command's median.

Each command runs on a terminal of its own, in an empty folder with a small job, and is killed at its first character.
Nothing listens at the addresses that it names. Python's own start, without any import, is among the details: on a busy
machine it grows as much. tests/cli/test_start.py holds the counts of modules behind the figure.
"""

from __future__ import annotations

import os
import pty
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.job_settings import ROOT
from benchmarks.harness.report import median, milliseconds, report

NAME = "first_sign"
BOUND_SECONDS = 0.3
REPEATS = 7
JOB = ROOT / "configs" / "training_configs" / "linear_regression.yaml"
_NOBODY = "--aggregator 127.0.0.1:1"
LINES = (
    "--help", "--version", "completion bash",
    f"local {JOB}", f"launch --hosts localhost --config {JOB} --dry-run", f"submit {JOB} {_NOBODY}",
    f"continue JOB --steps 9 {_NOBODY}", f"jobs {_NOBODY}", f"status {_NOBODY}", f"logs JOB {_NOBODY}",
    f"cancel JOB {_NOBODY}", f"trust JOB WORKER {_NOBODY}", f"download JOB out {_NOBODY}", f"prune JOB {_NOBODY}",
    f"validate {JOB}", f"tokenize {JOB} --tokenizer {JOB} --output ids.bin", "generate .", f"measure {JOB}",
    f"import-weights missing.msgpack {JOB} --output out",
    f"worker {_NOBODY}", "aggregator --listen 127.0.0.1:0", "optimizer --listen 127.0.0.1:0",
    "certs show", "tokens show", "check --mesh", "queue check missing", "cluster show --state-dir missing",
    "timeline .", f"chaos {JOB}",
)  # fmt: skip
"""A command line of each command."""


def run() -> bool:
    """Measure and print the figure; return whether it keeps its bound."""
    python = [_seconds_to_output([sys.executable, "-c", "print(1)"]) for _ in range(REPEATS)]
    seconds = {
        line: [
            _seconds_to_output([sys.executable, "-m", "cli.main", *shlex.split(line)]) for _ in range(REPEATS)
        ]
        for line in LINES
    }
    details = [f"{milliseconds(values)}: {line.replace(str(ROOT), '')}" for line, values in seconds.items()]
    worst = max(median(sorted(values)) for values in seconds.values())
    return report(NAME, worst, BOUND_SECONDS, f"{milliseconds(python)}: Python alone", *details)


def _seconds_to_output(command: Sequence[str]) -> float:
    """Run a command on a terminal until it shows something; return the seconds until then."""
    master, slave = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, cwd=Path(folder), env=environment,
            start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        try:
            os.read(master, 1)
            return time.perf_counter() - began
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            os.close(master)
