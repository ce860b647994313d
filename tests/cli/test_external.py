"""External workers on the command line: which flags they take, and `tiermesh local` with an external job."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from cli.main import main

ROOT = Path(__file__).resolve().parents[2]
JOB = """
training_config:
  model_type: external
  batch_size: 8
  gradient_accumulation_steps: 2
  max_steps: 3
  validation_batches: 2
"""


@pytest.mark.parametrize(
    ("flags", "refusal"),
    [
        (["--socket", "s"], "--socket: given without --external"),
        (["--allow-user", "root"], "--allow-user: given without --external"),
        (["--external", "--data", "."], "--data: given with --external"),
        (["--external", "--accept-code"], "--accept-code: given with --external"),
        (["--external", "--allow-models", "a"], "--allow-models: given with --external"),
    ],
)
def test_flags_of_external_workers_are_checked(
    flags: list[str], refusal: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    state = ["--state-dir", str(tmp_path), "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"]
    assert main(["worker", *flags, *state]) == 2 and refusal in capsys.readouterr().err


def test_an_environment_for_other_workers_is_not_in_the_way(tmp_path: Path) -> None:
    options = ["--state-dir", tmp_path, "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"]
    command = ["-m", "cli.main", "worker", "--external", "--socket", tmp_path / ("s" * 120), *options]
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=ROOT,
        env={**os.environ, "TIERMESH_DATA": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and "expected at most 107, as Unix sockets have" in done.stderr


@pytest.mark.long
def test_a_local_cluster_of_an_external_job_says_how_to_join(tmp_path: Path) -> None:
    job_file = tmp_path / "job.yaml"
    job_file.write_text(JOB)
    with tempfile.TemporaryDirectory(prefix="tm-") as folder:
        command = ["-m", "cli.main", "local", str(job_file), "--state-dir", folder, "--workers", "2"]
        local = subprocess.Popen(
            [sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            assert local.stdout is not None
            found: list[str] = []
            while len(found) < 2:
                line = local.stdout.readline()
                assert line, "it ended"
                found += re.findall(r"tiermesh\.join\('(.*)', job='.*", line)
                job = re.findall(r"job='(.*?)'", line) or [""]
            assert found == [str(Path(folder) / f"worker-{number}.sock") for number in (1, 2)]
            process = [sys.executable, "-m", "tests.support.external_process", found[1], job[0]]
            joined = subprocess.run(process, cwd=ROOT, capture_output=True, text=True, timeout=60)
            assert joined.stdout == "finished\n"
            rest, _ = local.communicate(timeout=60)
            assert local.returncode == 0, rest
        finally:
            local.kill()
            local.communicate()
