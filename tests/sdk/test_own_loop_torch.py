"""A PyTorch loop as a worker: it gets its weights in place, and gives its gradients from hooks."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np
import pytest

from services.runtime.child_output import TakeLines
from tests.support.joined_program import LIMIT_SECONDS, ROOT, Daemon, daemon_of
from tests.support.torch_python import WITHOUT, find_torch_python
from worker.compute_process import ProcessLost, RequestFailed

PYTHON = find_torch_python()
pytestmark = [pytest.mark.long, pytest.mark.skipif(PYTHON is None, reason=WITHOUT)]


class Loop:
    """A loop of tests/support/torch_loops.py, in the process that has imported PyTorch. It is a daemon's `Child`."""

    def __init__(self, orders: socket.socket, name: str) -> None:
        self._orders = orders
        self._name = name
        self._end: socket.socket | None = None

    def spawn(self, end: socket.socket, take_lines: TakeLines) -> Loop:
        self._end = end.dup()
        socket.send_fds(self._orders, [self._name.encode()], [end.fileno()])
        return self

    def wait(self, seconds: float) -> bool:
        return self._end is None

    def stop(self, grace_seconds: float, because: str = "") -> str:
        self._close()
        return because or "it has left"

    def _close(self) -> None:
        if self._end is not None:
            with suppress(OSError):
                self._end.shutdown(socket.SHUT_RDWR)
            self._end.close()
            self._end = None

    def result(self) -> dict[str, Any]:
        """Have the loop end, and return what it has seen."""
        self._close()
        answer = b""
        while not answer.endswith(b"\n"):
            part = self._orders.recv(1 << 16)
            assert part, "the process has ended"
            answer += part
        found: dict[str, Any] = json.loads(answer)
        return found


Start = Callable[..., tuple[Daemon, Loop]]


@pytest.fixture(scope="module")
def orders() -> Iterator[socket.socket]:
    """Return the socket of a process with PyTorch, which takes seconds to import."""
    assert PYTHON is not None
    own, other = socket.socketpair()
    with own, other:
        script = str(ROOT / "tests" / "support" / "torch_loops.py")
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "sdk")}
        process = subprocess.Popen(
            [PYTHON, script, str(other.fileno())], pass_fds=(other.fileno(),), env=environment
        )
        other.close()
        own.settimeout(LIMIT_SECONDS)
        yield own
        own.close()
        process.wait(LIMIT_SECONDS)


@pytest.fixture
def start(orders: socket.socket) -> Iterator[Start]:
    with ExitStack() as stack:

        def start(name: str, **config: Any) -> tuple[Daemon, Loop]:
            loop = Loop(orders, name)
            return stack.enter_context(daemon_of(loop.spawn, **config)), loop

        yield start


def test_gradients_are_those_of_pytorch(start: Start) -> None:
    """Bit by bit, with a tied parameter, on weights that arrive in the memory that the model's parameters view."""
    daemon, loop = start("train")
    assert [(each.name, each.shape) for each in daemon.layout.entries] == [
        ("0.weight", (4, 4)), ("3.weight", (2, 4)), ("3.bias", (2,))
    ]  # fmt: skip
    facts = {"adapter", "torch", "device", "threads", "deterministic", "fingerprint"}
    assert daemon.step.fingerprint.keys() >= facts
    first = daemon.step.initial_weights()
    assert np.isfinite(first).all() and first.std() > 0
    weights = np.linspace(-1, 1, daemon.layout.elements, dtype=np.float32)
    daemon.load(weights)
    loss, gradient = daemon.gradient(2, 1)
    assert daemon.gradient(2, 1)[0] == loss and daemon.ready == [0]
    assert daemon.evaluate(0) is not None
    daemon.load(weights / 2)
    assert daemon.gradient(3, 0)[0] != loss
    daemon.close()
    seen = loop.result()
    assert seen["done"] == [True] * 3 and seen["grads"] == 0
    assert seen["places"] == 1, "weights arrive in place"
    assert seen["is_apart"] and seen["weight"] == weights[0] / 2, "the model keeps the newest weights"

    daemon, loop = start("alone")
    daemon.load(weights)
    with pytest.raises(RequestFailed, match="left amid"):
        daemon.gradient(2, 1)
    assert loop.result()["gradient"] == gradient.tolist()


def test_a_job_that_begins_again_has_no_initial_weights_here(start: Start) -> None:
    daemon, loop = start("train")
    daemon.load(np.ones(daemon.layout.elements))
    daemon.gradient(0, 0)
    with pytest.raises(RequestFailed, match="join with a new model"):
        daemon.step.initial_weights()
    assert loop.result()["field"] == "parameters"


WRONG = {
    "unused": ("gradients", "none for other.weight, other.bias"),
    "step": ("parameters['3.bias']", "remove optimizer.step"),
    "step_after": ("parameters['3.bias']", "remove optimizer.step"),
    "data": ("parameters['3.bias']", "changed by the loop"),
    "backward_twice": ("gradients[", "a second time"),
    "backward_late": ("backward", "torch.no_grad"),
    "gradients": ("gradients", "leave it out"),
    "sparse": ("gradients['embedding.weight'].layout", "sparse=True"),
    "normed": ("buffers['1.", 'buffers="local"'),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(start: Start, name: str) -> None:
    field, expected = WRONG[name]
    daemon, loop = start(name)
    daemon.load(np.ones(daemon.layout.elements))
    with pytest.raises((RequestFailed, ProcessLost)):
        for index in range(2):
            daemon.gradient(0, index)
    seen = loop.result()
    assert seen["error"] == "Refused" and expected in seen["text"]
    assert seen["field"].startswith(field)


@pytest.mark.parametrize(
    ("name", "field", "expected"),
    [
        ("double", "parameters['0.weight'].dtype", "'torch.float64' given, expected torch.float32"),
        ("frozen", "parameters['0.weight']", "requires_grad"),
        ("empty", "parameters", "'0 of them' given"),
        ("mixed", "parameters['b']", "'int' given"),
    ],
)
def test_parameters_that_can_not_be_trained(
    orders: socket.socket, name: str, field: str, expected: str
) -> None:
    loop = Loop(orders, name)
    own, other = socket.socketpair()
    with own, other:
        loop.spawn(other, lambda lines: None)
        seen = loop.result()
        assert not own.recv(1), "the daemon hears nothing of it"
    assert seen["field"] == field and expected in seen["text"]


def test_parameters_by_name(start: Start) -> None:
    daemon, loop = start("by_name")
    daemon.load(np.ones(daemon.layout.elements))
    assert np.isfinite(daemon.gradient(0, 0)[1]).all()
    loop.result()


def test_unused_parameters_may_have_gradients_of_zero(start: Start) -> None:
    daemon, loop = start("unused_zero")
    daemon.load(np.ones(daemon.layout.elements))
    _, gradient = daemon.gradient(0, 0)
    place = {each.name: slice(each.offset, each.stop) for each in daemon.layout.entries}
    assert not gradient[place["other.weight"]].any() and gradient[place["first.weight"]].all()
    loop.result()


def test_buffers_may_change_on_each_worker(start: Start) -> None:
    daemon, loop = start("normed_local")
    daemon.load(np.ones(daemon.layout.elements))
    daemon.gradient(0, 0)
    daemon.gradient(0, 1)
    loop.result()


def test_data_loaders_that_fork_go_on(start: Start) -> None:
    daemon, loop = start("data_loader")
    daemon.load(np.ones(daemon.layout.elements))
    daemon.gradient(0, 0)
    assert loop.result() == {"batches": 2}
