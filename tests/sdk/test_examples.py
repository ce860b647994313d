"""The examples of sdk/examples, as their readers run them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from protos import jobs_pb2 as jobs
from services.config.load import load_job
from tests.support.cluster.bits import write_corpus
from tests.support.cluster.daemon import LIMIT_SECONDS
from tests.support.cluster.harness import Cluster
from tests.support.torch_python import WITHOUT, find_torch_python

EXAMPLES = Path(__file__).parents[2] / "sdk" / "examples"
MOST_LINES = 60
STEPS = 8
TORCH = find_torch_python()


@pytest.mark.parametrize("path", sorted(EXAMPLES.iterdir()), ids=lambda path: path.name)
def test_they_are_short(path: Path) -> None:
    if path.suffix == ".ipynb":
        cells = json.loads(path.read_text())["cells"]
        assert not any(cell.get("outputs") for cell in cells), "without results of somebody's run"
        lines = [line for cell in cells for line in cell["source"]]
    else:
        lines = path.read_text().splitlines()
    assert len(lines) < MOST_LINES


class Programs:
    """A cluster of external workers, at which an example joins.

    Args:
        stack: closes what was started.
        folder: folder of the cluster.
        command: interpreter and example.
    """

    def __init__(self, stack: ExitStack, folder: Path, *command: str) -> None:
        self.cluster = stack.enter_context(Cluster(folder, tiers=3))
        self._sockets = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tm-")))
        self._command = command
        self._corpus = write_corpus(folder)
        self._stack = stack

    def submit(self) -> str:
        overrides = (f"training_config.max_steps={STEPS}", "training_config.eval_every=4")
        return self.cluster.submit(load_job(EXAMPLES / "external.yaml", overrides)[0].to_json())

    def join(self, job: str) -> subprocess.Popen[str]:
        """Start a worker, and the example beside it."""
        socket = self._sockets / str(len(self.cluster.workers))
        self.cluster.start_worker("--external", "--socket", socket)
        process = subprocess.Popen(
            [*self._command, str(socket), job, str(self._corpus)],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(EXAMPLES.parent), "OPENBLAS_NUM_THREADS": "1"},
        )
        self._stack.enter_context(process)
        self._stack.callback(process.kill)
        return process


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def result_of(job: jobs.Job) -> tuple[str, float, float]:
    return job.model_sha256, job.loss, job.validation_loss


def run(programs: Programs, number: int, *, killed: int = 0) -> tuple[str, float, float]:
    """Run a job with some programs, of which some are killed amid it, and return what came of it."""
    job = programs.submit()
    started = [programs.join(job) for _ in range(number)]
    if killed:
        programs.cluster.wait_step(job, 2)
        for process in started[:killed]:
            process.send_signal(signal.SIGKILL)
    ended = programs.cluster.finish(job)
    for process in started[killed:]:
        _, errors = process.communicate(timeout=LIMIT_SECONDS)
        assert process.returncode == 0, errors
    return result_of(ended)


@pytest.mark.long
@pytest.mark.skipif(TORCH is None, reason=WITHOUT)
def test_nanogpt_in_pytorch_with_a_program_killed(stack: ExitStack, tmp_path: Path) -> None:
    """Three programs, of which one is killed amid the job, give the bits of one program alone."""
    programs = Programs(stack, tmp_path, str(TORCH), str(EXAMPLES / "nanogpt_torch.py"))
    alone = run(programs, 1)
    assert run(programs, 3, killed=1) == alone
    assert 0 < alone[1] < 6


@pytest.mark.long
def test_a_language_model_in_numpy_with_a_program_killed(stack: ExitStack, tmp_path: Path) -> None:
    programs = Programs(stack, tmp_path, sys.executable, str(EXAMPLES / "language_model_numpy.py"))
    alone = run(programs, 1)
    assert run(programs, 3, killed=1) == alone
