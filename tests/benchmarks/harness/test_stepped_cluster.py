"""Stepped workers pause together at the step that is due, and steps are counted whole."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from benchmarks.harness.stepped_cluster import ComputePass, StepController, median_pass
from services.errors import Failed

PASS = {"seconds": 2.0, "uses": [[4, 0.5], [8, 1.0]], "ready": [[4, 1.5], [0, 2.0]]}


class Worker:
    """Simulated stepped worker that answers from a thread of its own.

    Attributes:
        orders: orders it has received.
    """

    def __init__(self, path: Path, answers: list[dict[str, Any]]) -> None:
        self.orders: list[dict[str, int]] = []
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connection.connect(str(path))
        self._thread = Thread(target=self._run, args=(answers,))
        self._thread.start()

    def _run(self, answers: list[dict[str, Any]]) -> None:
        with self._connection, self._connection.makefile("r") as lines:
            for answer in answers:
                self._connection.sendall(json.dumps({"passes": [], "elements": 8, **answer}).encode() + b"\n")
                line = lines.readline()
                if line:
                    self.orders.append(json.loads(line))

    def join(self) -> None:
        """Wait for the thread's end."""
        self._thread.join()


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[StepController]:
    with StepController(tmp_path / "gate", workers=2) as opened:
        yield opened


def test_the_first_step_may_have_a_single_worker(gate: StepController, tmp_path: Path) -> None:
    first = Worker(tmp_path / "gate", [{"step": 0, "ends": []}, {"step": 2, "ends": [1.0, 2.0, 3.0]}])
    second = Worker(tmp_path / "gate", [{"step": 1, "ends": []}, {"step": 2, "ends": [3.0]}])
    gate.warm_up(2)
    assert gate.elements == 8
    gate.__exit__(None, None, None)
    for worker in (first, second):
        worker.join()
        assert worker.orders == [{"until": 2}]


def test_a_step_ends_with_its_last_worker(gate: StepController, tmp_path: Path) -> None:
    answers = [
        [{"step": 1, "ends": []}, {"step": 4, "ends": ends}] for ends in ([1.0, 4.0, 8.0], [2.0, 5.0, 7.0])
    ]
    workers = [Worker(tmp_path / "gate", each) for each in answers]
    gate.warm_up(1)
    assert gate.step_seconds(2) == (8.0 - 2.0) / 2
    gate.__exit__(None, None, None)
    for worker in workers:
        worker.join()
        assert worker.orders == [{"until": 4}]


def test_a_worker_that_computed_too_much_is_reported(gate: StepController, tmp_path: Path) -> None:
    answers = [
        [{"step": 1, "ends": []}, {"step": 4, "ends": ends}] for ends in ([1.0, 4.0], [2.0, 3.0, 5.0, 7.0])
    ]
    workers = [Worker(tmp_path / "gate", each) for each in answers]
    gate.warm_up(1)
    with pytest.raises(Failed, match="expected 3 each"):
        gate.step_seconds(2)
    gate.__exit__(None, None, None)
    for worker in workers:
        worker.join()


def test_lone_passes_are_measured_on_every_worker(gate: StepController, tmp_path: Path) -> None:
    answers = [{"step": 1, "ends": []}, {"step": 1, "ends": [], "passes": [PASS]}]
    workers = [Worker(tmp_path / "gate", answers) for _ in range(2)]
    gate.warm_up(1)
    lone = ComputePass(2.0, ((4, 0.5), (8, 1.0)), ((4, 1.5), (0, 2.0)))
    assert gate.compute_passes(1) == [[lone], [lone]]
    gate.__exit__(None, None, None)
    for worker in workers:
        worker.join()
        assert worker.orders == [{"passes": 1}]


def test_the_median_pass_has_the_median_of_each_moment() -> None:
    passes = [ComputePass(seconds, ((4, seconds / 4),), ((0, seconds),)) for seconds in (4.0, 1.0, 2.0)]
    assert median_pass(passes) == ComputePass(2.0, ((4, 0.5),), ((0, 2.0),))
