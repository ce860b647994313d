"""A compute process on a thread of the test, with a step and a mesh of the test's: the same messages, no spawning."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from compute.server import Server
from compute.step_interface import StepFactory
from mesh.device import Mesh, open_mesh
from protos.compute_pb2 import FromProcess, ToProcess
from services.errors import name_internal_error
from services.runtime.compute_channel import MEMORIES, Channel
from services.tasks import start_thread
from training.step import TrainingStep
from worker.compute_process import Spawn, over_socket_pair


class ChangedChannel(Channel[FromProcess, ToProcess]):
    """The process's end, whose messages a test changes."""

    def __init__(self, end: socket.socket, change: Callable[[FromProcess], None]) -> None:
        super().__init__(end, ToProcess, MEMORIES)
        self._change = change

    def send(self, message: FromProcess, descriptors: Sequence[int] = ()) -> None:
        """Change a message, and send it."""
        self._change(message)
        super().send(message, descriptors)


class ThreadChild:
    """The thread, which serves one end of a socket pair."""

    def __init__(
        self,
        end: socket.socket,
        make_step: StepFactory,
        open_mesh: Callable[..., Mesh],
        change: Callable[[FromProcess], None],
    ) -> None:
        self._end = end.dup()
        self._reason = "exit code 0"
        channel = ChangedChannel(end.dup(), change)
        self._server = Server(channel, make_step, open_mesh)
        self._thread = start_thread(self._serve, "compute")

    def _serve(self) -> None:
        try:
            self._server.serve()
        except BaseException as error:
            self._reason = name_internal_error(error)
        finally:
            with suppress(OSError):
                self._end.shutdown(socket.SHUT_RDWR)

    def wait(self, seconds: float) -> bool:
        """Return whether the thread has ended; wait for that at most so many seconds."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def stop(self, grace_seconds: float, because: str = "") -> str:
        """End the conversation, and wait for the thread."""
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)
        self._thread.join(grace_seconds)
        return f"stopped: {because}" if because else self._reason


def in_thread(
    make_step: StepFactory = TrainingStep,
    open_mesh: Callable[..., Any] = open_mesh,
    change: Callable[[FromProcess], None] = lambda message: None,
) -> Spawn:
    """Return what starts a compute process on a thread.

    Args:
        make_step: factory of a job's training step.
        open_mesh: opens a mesh.
        change: changes the process's messages, as a liar would.
    """
    return over_socket_pair(lambda end, take_lines: ThreadChild(end, make_step, open_mesh, change))
