"""`tiermesh local` with real daemons: a job to its end, interrupted, continued, and with daemons that die."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.gated_model import ALLOWED, Gate
from tests.support.launches import STEP

ROOT = Path(__file__).resolve().parents[2]
LONG = ("--set", "max_steps=1000000")


def arguments(
    job_file: Path, state_dir: Path, *more: str, program: tuple[str, ...] = ("-m", "cli.main")
) -> list[str]:
    return [
        sys.executable, *program, "local", str(job_file), "--state-dir", str(state_dir),
        "--sample-tokens", "0", *more,
    ]  # fmt: skip


def run(job_file: Path, state_dir: Path, *more: str) -> tuple[int, dict[str, Any], str]:
    """Run a job to its end; return exit code, JSON result and last line of standard error."""
    done = subprocess.run(
        arguments(job_file, state_dir, "--json", *more), cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stderr.splitlines()[-1]


@contextmanager
def training(
    job_file: Path, state_dir: Path, *more: str, program: tuple[str, ...] = ("-m", "cli.main")
) -> Iterator[subprocess.Popen[str]]:
    """Start a run and yield it after its first step."""
    process = subprocess.Popen(
        arguments(job_file, state_dir, *more, program=program),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if STEP.match(line):
                break
        else:
            raise AssertionError(f"ended before its first step: {line}")
        yield process
    finally:
        process.kill()
        process.wait(timeout=30)
        assert process.stdout is not None
        process.stdout.close()


def daemon_pid(state_dir: Path, name: str) -> int:
    return int(json.loads((state_dir / "logs" / f"{name}.ready.json").read_text())["pid"])


def rest_of(process: subprocess.Popen[str]) -> tuple[int, list[str]]:
    """Return exit code and remaining lines of a run that is about to end."""
    assert process.stdout is not None
    lines = process.stdout.read().splitlines()
    return process.wait(timeout=60), lines


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_job_runs_to_its_end_and_leaves_no_process(job_file: Path, tmp_path: Path) -> None:
    code, result, _ = run(job_file, tmp_path / "state", "--tiers", "3", "--workers", "2")
    assert (code, result["state"], result["step"]) == (0, "succeeded", 10)
    assert result["validation_loss"] is not None
    assert Path(result["checkpoint"]).name == "step-00000010"
    assert len(result["model_sha256"]) == 64
    logs = tmp_path / "state" / "logs"
    names = [
        ".lost",
        f"{result['job']}.jsonl",
        "aggregator.log",
        "optimizer.log",
        "worker-1.log",
        "worker-2.log",
    ]
    assert sorted(path.name for path in logs.iterdir()) == sorted(names)
    code, result, line = run(job_file, tmp_path / "state", "--resume", "--tiers", "3")
    assert code == 2
    assert "--resume: no unfinished job in" in line


@pytest.mark.long
def test_a_job_of_token_ids_without_a_tokenizer_ends_without_a_sample(tmp_path: Path) -> None:
    (tmp_path / "ids.csv").write_text(" ".join(str(number % 50) for number in range(500)))
    job_file = tmp_path / "ids.yaml"
    job_file.write_text(
        "training_config: {data_path: ids.csv, max_steps: 1, batch_size: 1}\n"
        "transformer_config: {vocab_size: 50, num_heads: 1, embedding_dim: 32, num_blocks: 1,"
        " max_sequence_length: 32}\n"
    )
    code, result, _ = run(job_file, tmp_path / "state", "--sample-tokens", "5")
    assert (code, result["state"], result["text"]) == (0, "succeeded", None)


@pytest.mark.long
def test_shards_change_no_bit_and_leave_no_process(job_file: Path, tmp_path: Path) -> None:
    found = []
    for more in (("--tiers", "2"), ("--shards", "2")):
        code, result, line = run(job_file, tmp_path / more[0], "--workers", "1", *more)
        assert code == 0, line
        found.append(result["model_sha256"])
    assert found[0] == found[1]
    log = (tmp_path / "--shards" / "logs" / "shard-1.log").read_text()
    assert "is shard 1 of 2 of aggregator aggregator" in log


def test_a_resume_where_nothing_ran_is_refused_before_anything_is_made(
    job_file: Path, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    code, _, line = run(job_file, state, "--resume")
    assert code == 2 and f"--resume: no unfinished job in {state}" in line
    assert not state.exists()


def test_shards_with_3_tiers_are_refused(job_file: Path, tmp_path: Path) -> None:
    code, _, line = run(job_file, tmp_path, "--shards", "2", "--tiers", "3")
    assert code == 2
    assert "--shards 2 and --tiers 3" in line


@pytest.mark.long
def test_an_interrupted_job_is_refused_then_continued(gate: Gate, tmp_path: Path) -> None:
    state = tmp_path / "state"
    more = ("--set", "max_steps=300", "--set", "model_save_interval=100", "--workers", "1", *ALLOWED)
    gate.let(50)
    with training(gate.job_file, state, "--tiers", "2", *more) as process:
        daemons = [daemon_pid(state, name) for name in ("aggregator", "worker-1")]
        process.send_signal(signal.SIGINT)
        gate.let(50)  # so that no pass waits while its worker stops
        code, lines = rest_of(process)
    assert code == 1
    saved = re.search(r"is unfinished; continue it from step (\d+) with: tiermesh local", lines[-1])
    assert saved and 0 < int(saved[1]) < 100, "the last step is saved, between two checkpoints of the job"
    assert not any(map(runs, daemons))
    gate.let(100)  # the job goes on while the command looks, but not to its end
    code, result, line = run(gate.job_file, state, "--tiers", "2", *ALLOWED)
    assert code == 2
    assert "is unfinished at step" in line
    assert "continue it with --resume, or give another --state-dir" in line
    gate.let(1000)
    code, result, line = run(gate.job_file, state, "--tiers", "3", "--workers", "2", "--resume", *ALLOWED)
    assert (code, result["state"], result["step"]) == (0, "succeeded", 300), line


SLOW_DISK = """
import sys
from cli import main
from services.runtime import launcher

environment = launcher.environment_without_options
slow = {"TIERMESH_FAILPOINTS": "checkpoint.before-rename=slow@2"}
launcher.environment_without_options = lambda: {**environment(), **slow}
sys.exit(main.main(sys.argv[1:]))
"""
"""Program of a command whose daemons have a disk that is slow after the first checkpoint."""


@pytest.mark.long
@pytest.mark.parametrize(("tiers", "writer"), [("2", "aggregator"), ("3", "optimizer")])
@pytest.mark.parametrize("again", [False, True])
def test_an_interrupted_run_waits_for_its_last_checkpoint_until_the_second_interrupt(
    gate: Gate, tmp_path: Path, tiers: str, writer: str, again: bool
) -> None:
    state = tmp_path / "state"
    more = ("--set", "max_steps=300", "--set", "model_save_interval=0", "--workers", "1", *ALLOWED)
    gate.let(50)
    with training(gate.job_file, state, "--tiers", tiers, *more, program=("-c", SLOW_DISK)) as process:
        process.send_signal(signal.SIGINT)
        gate.let(50)
        assert process.stdout is not None
        waiting = next(line for line in process.stdout if "waiting up to" in line)
        assert re.search(rf"15 min for the checkpoint of step \d+ of job .*, which {writer} writes", waiting)
        if again:
            process.send_signal(signal.SIGINT)
        code, lines = rest_of(process)
    saved = re.search(r"continue it from step (\d+) with: tiermesh local", lines[-1])
    assert code == 1 and saved is not None
    assert (int(saved[1]) == 0) == again


INTERRUPTED_STOP = """
import os, signal, sys
from cli import local, main

async def interrupt(daemons, say, stop_all=local.stop_all):
    os.kill(os.getpid(), signal.SIGINT)
    await stop_all(daemons, say)

local.stop_all = interrupt
sys.exit(main.main(sys.argv[1:]))
"""
"""Program of a command that is interrupted while it stops its daemons."""


@pytest.mark.long
def test_an_interrupt_after_the_end_of_a_job_does_not_call_it_unfinished(
    job_file: Path, tmp_path: Path
) -> None:
    cluster = ("--tiers", "2", "--workers", "1")
    words = arguments(job_file, tmp_path / "state", *cluster, program=("-c", INTERRUPTED_STOP))
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and "interrupted after the end of job" in last
    assert last.endswith(": succeeded")


@pytest.mark.long
def test_a_job_continues_without_a_worker_and_fails_without_any(job_file: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with training(job_file, state, "--tiers", "2", "--workers", "2", *LONG) as process:
        os.kill(daemon_pid(state, "worker-1"), signal.SIGKILL)
        assert process.stdout is not None
        line = next(line for line in process.stdout if "worker-1 (process" in line)
        assert "ended, killed by SIGKILL" in line
        assert "the job continues with the other workers" in line
        assert next(line for line in process.stdout if STEP.match(line))
        os.kill(daemon_pid(state, "worker-2"), signal.SIGKILL)
        code, lines = rest_of(process)
    assert code == 1
    assert "tiermesh: worker-2 (process" in lines[-1]


@pytest.mark.long
def test_a_dead_role_is_named_with_its_log(job_file: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with training(job_file, state, "--tiers", "3", "--workers", "1", *LONG) as process:
        aggregator = daemon_pid(state, "aggregator")
        code, _, line = run(job_file, state, "--tiers", "2")
        assert code == 2
        assert "in use by another `tiermesh local` or `chaos`" in line
        os.kill(daemon_pid(state, "optimizer"), signal.SIGKILL)
        code, lines = rest_of(process)
    assert code == 1
    assert lines[-1].startswith("tiermesh: optimizer (process")
    assert "killed by SIGKILL" in lines[-1]
    assert lines[-1].endswith(f"see {state / 'logs' / 'optimizer.log'}")
    assert not runs(aggregator)


def test_daemons_end_with_their_parent(job_file: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with training(job_file, state, "--tiers", "2", "--workers", "1", *LONG) as process:
        pids = {name: daemon_pid(state, name) for name in ("aggregator", "worker-1")}
        process.kill()
        process.wait(timeout=30)
    for name, pid in pids.items():
        log = state / "logs" / f"{name}.log"
        wait_until_gone(pid)
        assert "the parent is gone" in log.read_text()


def wait_until_gone(pid: int) -> None:
    """Wait for the end of a process that isn't our child, whose pidfd then becomes readable."""
    import select

    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ready, _, _ = select.select([descriptor], [], [], 60)
        assert ready, f"process {pid} still runs after 60 s"
    finally:
        os.close(descriptor)


OWN_MODEL = """
training_config: {data_path: text.txt, max_steps: 3, batch_size: 4}
transformer_config: {model_type: "mixer:Mixer", max_sequence_length: 32, width: 32, layers: 1}
"""


@pytest.mark.long
def test_a_custom_model_trains_if_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train the model of docs/use/own-model.md from a folder on PYTHONPATH."""
    for page, name in (("internals/ops.md", "mixing.py"), ("use/own-model.md", "mixer.py")):
        code = (ROOT / "docs" / page).read_text().split("```python\n")[1].split("```")[0]
        (tmp_path / name).write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "text.txt").write_text("".join(f"{number} comes next.\n" for number in range(200)))
    job = tmp_path / "own.yaml"
    job.write_text(OWN_MODEL)
    cluster = ("--tiers", "2", "--workers", "1", "--sample-tokens", "20")
    code, result, line = run(job, tmp_path / "refused", *cluster)
    assert (code, result["state"]) == (1, "failed")
    assert "mixer:Mixer: not allowed on this worker" in line and "--allow-models mixer" in line
    code, result, line = run(job, tmp_path / "state", *cluster, "--allow-models", "mixer")
    assert (code, result["state"], result["text"]) == (0, "succeeded", None), line


@pytest.mark.long
def test_a_custom_model_trains_if_its_code_is_given(tmp_path: Path) -> None:
    """Train the model of docs/use/own-model.md from a folder that nothing is installed in."""
    code_folder = tmp_path / "code"
    code_folder.mkdir()
    for page, name in (("internals/ops.md", "mixing.py"), ("use/own-model.md", "mixer.py")):
        code = (ROOT / "docs" / page).read_text().split("```python\n")[1].split("```")[0]
        (code_folder / name).write_text(code)
    (tmp_path / "text.txt").write_text("".join(f"{number} comes next.\n" for number in range(200)))
    job = tmp_path / "own.yaml"
    job.write_text(OWN_MODEL)
    arguments = ("--tiers", "2", "--workers", "2", "--code", str(code_folder))
    exit_code, result, line = run(job, tmp_path / "state", *arguments)
    assert (exit_code, result["state"]) == (0, "succeeded"), line
