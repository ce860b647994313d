"""Standard streams that are closed, full or not read."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from services.config.paths import REPOSITORY_ROOT

JOB = "configs/training_configs/linear_regression.yaml"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY_ROOT)}
    return subprocess.run(
        words, capture_output=True, text=True, env=environment, cwd=REPOSITORY_ROOT, check=False
    )


@pytest.mark.parametrize(
    ("streams", "code"),
    [("<&-", 0), (">&-", 0), ("<&- >&- 2>&-", 0), (">/dev/full", 75), (">/dev/full 2>/dev/full", 75)],
)
@pytest.mark.parametrize("command", [("validate", JOB), ("--help",)])
def test_a_stream_that_is_closed_or_full_costs_no_traceback(
    command: tuple[str, ...], streams: str, code: int
) -> None:
    done = run("bash", "-c", f'exec "$@" {streams}', "bash", sys.executable, "-m", "cli.main", *command)
    assert done.returncode == code, done.stderr
    assert "internal error" not in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= (code != 0)


@pytest.mark.parametrize("streams", ["2>/dev/full", ">/dev/full 2>/dev/full"])
def test_a_refusal_has_its_exit_code_though_a_stream_is_full(streams: str) -> None:
    words = (sys.executable, "-m", "cli.main", "validate", "no-such-file.yaml", "--json")
    assert run("bash", "-c", f'exec "$@" {streams}', "bash", *words).returncode == 2


def test_a_file_that_is_opened_never_gets_the_number_of_a_closed_stream() -> None:
    opens = "import sys, cli.main; cli.main._open_closed_streams(); print(open('/dev/null').fileno(), file=sys.stderr)"
    done = run("bash", "-c", 'exec "$@" <&- >&-', "bash", sys.executable, "-c", opens)
    assert int(done.stderr) > 2
