"""A cluster of real daemons with a real model, whose workers can be paused between steps and measured alone."""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.harness.daemons import Daemons, Job
from benchmarks.harness.hosts import Host
from benchmarks.harness.job_settings import CONFIG, data_dir
from benchmarks.harness.report import median
from services.errors import Failed

STEPPED_WORKER = Path(__file__).parents[1] / "peers" / "stepped_worker.py"
LIMIT_SECONDS = 120.0

GPT_SETTINGS = (
    "model_config=model_configs/nanogpt_char.yaml",
    "wire_dtype.gradients=bf16",
    "wire_dtype.weights=bf16",
)
"""nanoGPT's GPU setting on Shakespeare's characters: 10.7 M parameters, 256 tokens, dropout 0.2."""


@dataclass(frozen=True)
class ComputePass:
    """A forward and backward pass during which nothing was exchanged. Seconds count from its start.

    Attributes:
        seconds: duration of the pass.
        uses: pairs (stop, seconds): first use of the parameter that ends at element `stop` of the layout.
        ready: pairs (offset, seconds): when the gradients of all elements from `offset` on were complete.
    """

    seconds: float
    uses: tuple[tuple[int, float], ...]
    ready: tuple[tuple[int, float], ...]


def median_pass(passes: Sequence[ComputePass]) -> ComputePass:
    """Return a pass whose moments are the medians of those of the given passes, which are of one model."""

    def medians(of: Sequence[tuple[tuple[int, float], ...]]) -> tuple[tuple[int, float], ...]:
        return tuple(
            (moments[0][0], median([seconds for _, seconds in moments])) for moments in zip(*of, strict=True)
        )

    return ComputePass(
        median([each.seconds for each in passes]),
        medians([each.uses for each in passes]),
        medians([each.ready for each in passes]),
    )


class StepController:
    """A Unix socket that all workers (peers/stepped_worker.py) connect to and that decides when they go on.

    Args:
        path: Path of the socket.
        workers: number of workers.

    Attributes:
        elements: elements of the layout, known once the workers have paused.
    """

    def __init__(self, path: Path, workers: int) -> None:
        self.elements = 0
        self._workers = workers
        self._step = 0  # step at which the workers pause
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(workers)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._heard: dict[socket.socket, bytes] = {}

    def __enter__(self) -> StepController:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        for connection in (self._listener, *self._heard):
            connection.close()
        self._selector.close()

    def warm_up(self, steps: int) -> None:
        """Let the job take its first steps. All workers pause after them.

        The first step may have a lease for one worker only: it is planned before the others have any weights.
        """
        self._step = steps
        self._await()

    def compute_passes(self, count: int) -> list[list[ComputePass]]:
        """Let all paused workers make this many passes side by side, and return the passes of each."""
        return [
            [
                ComputePass(
                    each["seconds"], tuple(map(tuple, each["uses"])), tuple(map(tuple, each["ready"]))
                )
                for each in message["passes"]
            ]
            for message in self._order({"passes": count})
        ]

    def steps(self, count: int) -> None:
        """Let the paused workers take this many steps. They pause again after them."""
        self._step += count
        self._order({"until": self._step})

    def step_seconds(self, steps: int) -> float:
        """Let the paused workers take `steps` + 1 steps of one micro-batch each, and return the seconds of a step.

        The time lasts from the moment at which the last worker has computed its first micro-batch to the moment at
        which the last one has computed its last. So it contains each step's exchange and the computing of the next.
        """
        self._step += steps + 1
        ends: list[list[float]] = [message["ends"] for message in self._order({"until": self._step})]
        if any(len(each) != steps + 1 for each in ends):
            raise Failed(
                f"stepped workers: computed {[len(each) for each in ends]} micro-batches, expected {steps + 1} each"
            )
        return (max(each[-1] for each in ends) - max(each[0] for each in ends)) / steps

    def _order(self, order: dict[str, int]) -> list[dict[str, Any]]:
        for connection in self._heard:
            connection.sendall(json.dumps(order).encode() + b"\n")
        return self._await()

    def _await(self) -> list[dict[str, Any]]:
        """Return the messages of all workers when they pause at the step that is due."""
        deadline = time.monotonic() + LIMIT_SECONDS
        messages: list[dict[str, Any]] = []
        while len(messages) < self._workers:
            events = self._selector.select(max(0.0, deadline - time.monotonic()))
            if not events:
                raise Failed(
                    f"stepped workers: {len(messages)} of {self._workers} paused within {LIMIT_SECONDS:g} s; "
                    "see the logs of the others"
                )
            for key, _ in events:
                if key.fileobj is self._listener:
                    connection = self._listener.accept()[0]
                    self._heard[connection] = b""
                    self._selector.register(connection, selectors.EVENT_READ)
                    continue
                assert isinstance(key.fileobj, socket.socket)
                text = key.fileobj.recv(65536)
                if not text:
                    raise Failed("stepped workers: one closed its connection; see the logs of the workers")
                self._heard[key.fileobj] += text
                if not text.endswith(b"\n"):
                    continue
                message = json.loads(self._heard[key.fileobj])
                self._heard[key.fileobj] = b""
                if message["step"] < self._step:  # It has paused before its first micro-batch.
                    key.fileobj.sendall(json.dumps({"until": self._step}).encode() + b"\n")
                else:
                    messages.append(message)
        self.elements = messages[0]["elements"]
        return messages


class SteppedCluster(Daemons):
    """A cluster with a GPT of 10.7 M parameters. Each worker computes one micro-batch in a step.

    Args:
        settings: overrides of the job, in the form of `--set`.

    Attributes:
        gate: controller that pauses the workers.
    """

    gate: StepController

    def __init__(
        self,
        name: str,
        *,
        workers: int,
        settings: tuple[str, ...] = (),
        options: tuple[str, ...] = (),
        hosts: Mapping[str, Host] | None = None,
    ) -> None:
        environment = {"TIERMESH_DATA": str(data_dir())}
        job = Job(CONFIG, STEPPED_WORKER, (*GPT_SETTINGS, *settings), environment)
        super().__init__(name, job, workers=workers, options=options, hosts=hosts)

    def _open_gate(self, path: Path, stack: ExitStack) -> None:
        self.gate = stack.enter_context(StepController(path, self._workers))
