"""A cluster of real daemons, training a real model, whose workers can be held between steps and measured alone."""

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
"""nanoGPT's setting for a GPU on Shakespeare's characters: 10.7 M parameters, blocks of 256 tokens, dropout 0.2."""


@dataclass(frozen=True)
class ComputePass:
    """A forward and backward pass that nothing was exchanged in; seconds count from its begin.

    Attributes:
        seconds: that it took.
        uses: (stop, seconds): when it first used the parameter that ends at an element of the layout.
        ready: (offset, seconds): when the gradients of all elements from an offset on were in place.
    """

    seconds: float
    uses: tuple[tuple[int, float], ...]
    ready: tuple[tuple[int, float], ...]


def median_pass(passes: Sequence[ComputePass]) -> ComputePass:
    """The pass whose every moment is the median of these passes', all of one model."""

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
    """A Unix socket that all workers connect to, and say what peers/stepped_worker.py says.

    Args:
        path: of the socket.
        workers: how many there are.

    Attributes:
        elements: of the layout, once the workers are held.
    """

    def __init__(self, path: Path, workers: int) -> None:
        self.elements = 0
        self._workers = workers
        self._step = 0  # that the workers are held at
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
        """Let the job take its first steps; afterwards all workers are held.

        The first step may be one worker's alone: it is planned before the others hold any weights.
        """
        self._step = steps
        self._await()

    def compute_passes(self, count: int) -> list[list[ComputePass]]:
        """Have all workers, which are held, make so many passes side by side; those of each."""
        return [
            [
                ComputePass(
                    each["seconds"], tuple(map(tuple, each["uses"])), tuple(map(tuple, each["ready"]))
                )
                for each in said["passes"]
            ]
            for said in self._order({"passes": count})
        ]

    def steps(self, count: int) -> None:
        """Let the workers, which are held, take so many steps; afterwards they are held again."""
        self._step += count
        self._order({"until": self._step})

    def step_seconds(self, steps: int) -> float:
        """Let the workers, which are held, take one step more than so many, each a micro-batch; the seconds of a step.

        From the moment at which the last worker has computed its part of the first step to that at which the last has
        computed its part of the last step. So each step is counted whole, its exchange within it, in the order:
        what is exchanged of one step, what is computed of the next.
        """
        self._step += steps + 1
        ends: list[list[float]] = [said["ends"] for said in self._order({"until": self._step})]
        if any(len(each) != steps + 1 for each in ends):
            raise Failed(f"held workers: {[len(each) for each in ends]} micro-batches for {steps + 1} steps")
        return (max(each[-1] for each in ends) - max(each[0] for each in ends)) / steps

    def _order(self, order: dict[str, int]) -> list[dict[str, Any]]:
        for connection in self._heard:
            connection.sendall(json.dumps(order).encode() + b"\n")
        return self._await()

    def _await(self) -> list[dict[str, Any]]:
        """What all workers say when they are held at the step that is due."""
        deadline = time.monotonic() + LIMIT_SECONDS
        said: list[dict[str, Any]] = []
        while len(said) < self._workers:
            events = self._selector.select(max(0.0, deadline - time.monotonic()))
            if not events:
                raise Failed(f"held workers: not all of {self._workers} were held within {LIMIT_SECONDS:g} s")
            for key, _ in events:
                if key.fileobj is self._listener:
                    connection = self._listener.accept()[0]
                    self._heard[connection] = b""
                    self._selector.register(connection, selectors.EVENT_READ)
                    continue
                assert isinstance(key.fileobj, socket.socket)
                text = key.fileobj.recv(65536)
                if not text:
                    raise Failed("held workers: one has ended; see its log")
                self._heard[key.fileobj] += text
                if not text.endswith(b"\n"):
                    continue
                held = json.loads(self._heard[key.fileobj])
                self._heard[key.fileobj] = b""
                if held["step"] < self._step:  # before its first micro-batch
                    key.fileobj.sendall(json.dumps({"until": self._step}).encode() + b"\n")
                else:
                    said.append(held)
        self.elements = said[0]["elements"]
        return said


class SteppedCluster(Daemons):
    """See `Daemons`; a GPT of 10.7 M parameters, every worker a micro-batch a step.

    Args:
        settings: of the job, as `--set` takes them.

    Attributes:
        gate: that holds the workers.
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
