"""The examples of sdk/examples, as their readers run them."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiermesh
from protos import jobs_pb2 as jobs
from services.config.load import load_job
from tests.support.cluster.bits import write_corpus
from tests.support.cluster.daemon import LIMIT_SECONDS
from tests.support.cluster.harness import Cluster
from tests.support.torch_python import WITHOUT, find_torch_python

EXAMPLES = Path(__file__).parents[2] / "sdk" / "examples"
MOST_LINES = 60
"""Most lines of code of an example: without blank lines, comments and docstrings."""
STEPS = 8
TORCH = find_torch_python()


@pytest.mark.parametrize("path", sorted(EXAMPLES.iterdir()), ids=lambda path: path.name)
def test_they_are_short(path: Path) -> None:
    if path.suffix == ".ipynb":
        cells = json.loads(path.read_text())["cells"]
        assert not any(cell.get("outputs") for cell in cells), "without results of somebody's run"
        lines = [line for cell in cells for line in cell["source"]]
    else:
        lines = re.sub(r'^ *""".*?"""', "", path.read_text(), flags=re.DOTALL | re.MULTILINE).splitlines()
    code = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    assert len(code) < MOST_LINES


@pytest.fixture
def numpy_gpt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the example in numpy as a module, which got no work."""
    text = tmp_path / "text"
    text.write_bytes(b"none")
    monkeypatch.setattr(sys, "argv", ["language_model_numpy.py", "socket", "job", str(text)])
    monkeypatch.setattr(tiermesh, "join", lambda *_, **__: nullcontext([]))
    spec = importlib.util.spec_from_file_location("numpy_gpt", EXAMPLES / "language_model_numpy.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_gradients_in_numpy_are_those_of_finite_differences(numpy_gpt: Any) -> None:
    random = np.random.default_rng(5)
    weights = {name: random.normal(0, 0.3, shape) for name, shape in numpy_gpt.SHAPES.items()}
    ids, targets = random.integers(0, 9, (2, 3, numpy_gpt.TOKENS))  # few, so that each occurs often
    losses, gradients = numpy_gpt.compute(weights, ids, targets)
    assert losses.shape == ids.shape and gradients.keys() == weights.keys()
    for name, value in weights.items():
        assert gradients[name].shape == value.shape
        for _ in range(3):
            direction = random.normal(0, 1, value.shape)
            ahead, behind = (
                numpy_gpt.compute({**weights, name: value + step * direction}, ids, targets)[0].mean()
                for step in (1e-6, -1e-6)
            )
            expected = (ahead - behind) / 2e-6
            assert np.vdot(gradients[name], direction) == pytest.approx(expected, rel=1e-5, abs=1e-8), name


def test_no_token_of_the_model_in_numpy_sees_a_later_one(numpy_gpt: Any) -> None:
    random = np.random.default_rng(5)
    weights = {name: random.normal(0, 0.3, shape) for name, shape in numpy_gpt.SHAPES.items()}
    ids, targets = random.integers(0, 256, (2, 1, numpy_gpt.TOKENS))
    changed = ids.copy()
    changed[:, 20] += 1
    before, after = (numpy_gpt.compute(weights, each % 256, targets)[0][0] for each in (ids, changed))
    assert (before[:20] == after[:20]).all() and (before[20:] != after[20:]).all()


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
    assert 0 < alone[1] < 0.9 * math.log(256), "it has learned something"
