"""The compute process of this worker, as its daemon sees it: started, asked, and ended.

docs/internals/compute-protocol.md has the messages. The device thread alone uses it. What the process says is checked
where it is used; a process that contradicts itself is ended like one that has died, and costs the request under way
alone.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple, Protocol

from protos import compute_pb2 as pb
from services.errors import Failed, TiermeshError
from services.printable import FAILURE_CHARACTERS, printable
from services.runtime.child_output import TakeLines
from services.runtime.child_process import ChildProcess
from services.runtime.compute_channel import PROTOCOL_VERSION, Channel, ChannelEnded, DaemonChannel

log = logging.getLogger("tiermesh.worker")

TRAINING_STEP = "training.step:TrainingStep"
"""The step that ships."""

STOP_SECONDS = 10.0
"""Time between SIGTERM and SIGKILL: that of closing a mesh."""

ENDING_SECONDS = 2.0
"""Time from the end of a process's socket to its own."""

RESULTS = {
    "open_job": "job_built",
    "describe_model": "model_described",
    "compute_gradients": "gradients_computed",
    "evaluate_batch": "batch_evaluated",
    "check_mesh": "mesh_checked",
}
"""Messages that end requests, besides `failed`; `done` ends the others."""

QUESTIONS = ("file_read", "need_weights", "begin_gradient", "send_array", "take_array")
"""Messages for whose answer the process waits."""


class ProcessLost(Failed):
    """The compute process has ended.

    Args:
        reason: of what, in one line for people.
        died: whether by itself, or because of what it said; not as the daemon meant it to.
    """

    def __init__(self, reason: str, *, died: bool) -> None:
        super().__init__(f"the compute process has ended: {reason}")
        self.reason = printable(reason, FAILURE_CHARACTERS)
        self.died = died


class RequestFailed(Failed):
    """A request failed in a process that goes on.

    Attributes:
        failed: what the process said.
    """

    def __init__(self, failed: pb.Failed) -> None:
        super().__init__(printable(failed.reason, FAILURE_CHARACTERS))
        self.failed = failed

    @property
    def is_memory(self) -> bool:
        """Whether the chips have too little memory."""
        return self.failed.kind == pb.Failed.MEMORY


class Child(Protocol):
    """A process with the other end of the socket."""

    def wait(self, seconds: float) -> bool:
        """Return whether it has ended; wait for that at most so many seconds."""

    def stop(self, grace_seconds: float, because: str = "") -> str:
        """End it, by SIGTERM and then SIGKILL, and return why it has ended, in one line. It may have died before."""


class Started(NamedTuple):
    """A compute process that has been started, or has joined.

    Attributes:
        end: the daemon's end of the socket.
        child: the process.
        hello: its first message, if that was read.
    """

    end: socket.socket
    child: Child
    hello: pb.Hello | None = None


Spawn = Callable[[TakeLines], Started]
"""Starts a compute process, given what takes its output. Raises Failed."""


def spawner(name: str, step: str) -> Spawn:
    """Return what spawns the processes of a worker.

    Args:
        name: name of the worker.
        step: `module:factory` of the training step.
    """

    def start(end: socket.socket, take_lines: TakeLines) -> ChildProcess:
        return ChildProcess(
            "compute",
            ("--socket", str(end.fileno()), "--name", name, "--step", step),
            descriptors=(end.fileno(),),
            environment=os.environ,
            take_lines=take_lines,
        )

    return over_socket_pair(start)


def over_socket_pair(start: Callable[[socket.socket, TakeLines], Child]) -> Spawn:
    """Return what starts processes that inherit one end of a socket pair, which is closed here afterwards."""

    def spawn(take_lines: TakeLines) -> Started:
        own, other = socket.socketpair()
        with other, ExitStack() as opened:
            opened.enter_context(own)
            child = start(other, take_lines)
            opened.pop_all()
        return Started(own, child)

    return spawn


class ComputeProcess:
    """A process that has been started and has said Hello.

    Attributes:
        mesh: facts of the mesh that it opened for a job; empty before.

    Raises:
        ProcessLost: it ended, or has another version.
    """

    def __init__(self, spawn: Spawn, take_lines: TakeLines) -> None:
        end, self._child, hello = spawn(take_lines)
        self._channel: DaemonChannel = Channel(end, pb.FromProcess)
        self.mesh = pb.MeshOpened()
        self._calls = 0
        self._lost: ProcessLost | None = None
        version = (hello or self.receive(0, ("hello",)).hello).version
        if version != PROTOCOL_VERSION:
            raise self.end(
                f"version {version} of the protocol, expected {PROTOCOL_VERSION}; restart the worker, whose files have "
                "been replaced"
            )

    @property
    def is_lost(self) -> bool:
        """Whether the process has ended."""
        return self._lost is not None

    def call(self, descriptors: Sequence[int] = (), **body: Any) -> Call:
        """Begin a request, a message by its field; descriptors go with it."""
        (request,) = body
        self._calls += 1
        self.send(pb.ToProcess(call=self._calls, **body), descriptors)
        return Call(self, self._calls, RESULTS.get(request, "done"))

    def request(self, descriptors: Sequence[int] = (), **body: Any) -> pb.FromProcess:
        """Make a request in which nothing is asked or told, and return its result."""
        with self.call(descriptors, **body) as call:
            return call.next()

    def send(self, message: pb.ToProcess, descriptors: Sequence[int] = ()) -> None:
        """Send a message (ProcessLost)."""
        if self._lost is not None:
            raise self._lost
        try:
            self._channel.send(message, descriptors)
        except ChannelEnded:
            raise self.end("") from None

    def receive(self, call: int, expected: Sequence[str]) -> pb.FromProcess:
        """Return the process's next message, which must belong to a call and be one of some kinds (ProcessLost)."""
        if self._lost is not None:
            raise self._lost
        try:
            message, _ = self._channel.receive()
            kind = message.WhichOneof("body")
            if message.call == 0 and kind == "failed":  # it leaves
                raise self.end(printable(message.failed.reason, FAILURE_CHARACTERS) or "without a reason")
            if message.call != call:
                raise ValueError(f"{kind} of request {message.call}, expected one of request {call}")
            if kind not in expected:
                raise ValueError(f"{kind}, expected one of {', '.join(expected)}")
        except ChannelEnded:
            raise self.end("") from None
        except ValueError as error:
            raise self.refuse(str(error)) from None
        return message

    def refuse(self, problem: str) -> ProcessLost:
        """End the process because of what it has said, and return the error to raise."""
        return self.end(f"its message is wrong: {problem}", died=True)

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended, perhaps by itself while nothing was asked."""
        return self.is_lost or self._child.wait(0)

    def end(self, because: str, *, died: bool = False) -> ProcessLost:
        """End the process: it closes its mesh if it can. Return the error of all that is asked of it from now on.

        Args:
            because: why, for people; empty if it should have ended by itself.
            died: whether that counts as its death, as if it had ended by itself.
        """
        if self._lost is None:
            reason = self._child.stop(STOP_SECONDS if because else ENDING_SECONDS, because)
            self._lost = ProcessLost(reason, died=died or not because)
        self._channel.close()
        return self._lost


class MeshUnfit(Failed):
    """The mesh can't be opened or sums wrongly, which may change."""


class ComputeProcesses:
    """The compute process of a worker, which is kept from job to job while its jobs end cleanly.

    Opening a mesh takes minutes, so the mesh stays open with it. After a process that did not close its mesh, the next
    one's all-reduce must be right before it has a job: a kill leaves links of the mesh up.

    Args:
        spawn: starts a compute process.
        take_lines: takes what it prints, on a thread of its own.
        mesh_closed: callback, called with the time that the closing of a mesh took, in seconds.
    """

    def __init__(self, spawn: Spawn, take_lines: TakeLines, mesh_closed: Callable[[float], None]) -> None:
        self._spawn = spawn
        self._take_lines = take_lines
        self._mesh_closed = mesh_closed
        self._kept: ComputeProcess | None = None
        self._suspect: pb.MeshOpened | None = None  # mesh of a process that did not close it

    def take(self) -> ComputeProcess:
        """Return the kept process, or a new one.

        Raises:
            MeshUnfit: the mesh of a process that was killed does not work.
            ProcessLost: the new one has ended.
        """
        kept, self._kept = self._kept, None
        if kept is not None:
            if not kept.has_ended:
                return kept
            kept.end("")
            self.note_lost(kept)
        process, mesh = ComputeProcess(self._spawn, self._take_lines), self._suspect
        if mesh is not None:
            order = pb.CheckMesh(rows=mesh.rows, columns=mesh.columns, backend=mesh.backend)
            report = process.request(check_mesh=order).mesh_checked.report
            problem = report.problem or "; ".join(each for axis in report.axes for each in axis.wrong)
            if problem:
                process.end("its mesh does not work")
                raise MeshUnfit(
                    f"the mesh does not work after its compute process was killed: "
                    f"{printable(problem, FAILURE_CHARACTERS)}"
                )
            self._suspect = None
        return process

    def keep(self, process: ComputeProcess) -> None:
        """Keep a process, whose mesh is open, for the next job."""
        self._kept = process

    def end(self, process: ComputeProcess, because: str) -> None:
        """Close a process's mesh, and end it."""
        try:
            if not process.is_lost:
                began_seconds = time.monotonic()
                process.request(close_job=pb.CloseJob())
                self._mesh_closed(time.monotonic() - began_seconds)
                if process.mesh.rows:
                    log.info("the mesh of %s is closed", [process.mesh.rows, process.mesh.columns])
        except Failed as error:  # the next process may still be able to open it
            log.error("the mesh did not close: %s", error)
        finally:
            process.end(because)

    def note_lost(self, process: ComputeProcess) -> None:
        """Note that a process has ended without closing its mesh, if it had one."""
        if process.mesh.rows:
            self._suspect = process.mesh

    def end_kept(self) -> None:
        """End the process that is kept, if there is one."""
        kept, self._kept = self._kept, None
        if kept is not None:
            self.end(kept, "no job needs it")


class Call:
    """A request under way. Leaving its `with` block by an exception abandons it: the process is free afterwards.

    Args:
        process: the process.
        number: number of the request.
        result: message that ends it, besides `failed`.
    """

    def __init__(self, process: ComputeProcess, number: int, result: str) -> None:
        self._process = process
        self._number = number
        self._result = result
        self._owes_answer = False
        self._has_ended = False

    def __enter__(self) -> Call:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and not self._has_ended and not self._process.is_lost:
            with suppress(TiermeshError):
                self._abandon()

    def next(self, expected: Sequence[str] = ()) -> pb.FromProcess:
        """Return the next message amid the request, of some kinds, or its result.

        Raises:
            RequestFailed: the request has failed.
            ProcessLost: the process has ended.
        """
        assert not self._owes_answer
        message = self._process.receive(self._number, (*expected, self._result, "failed"))
        kind = message.WhichOneof("body")
        self._owes_answer = kind in QUESTIONS
        if kind == "failed":
            self._has_ended = True
            raise RequestFailed(message.failed)
        self._has_ended = kind == self._result
        return message

    @property
    def has_ended(self) -> bool:
        """Whether the newest message was the result."""
        return self._has_ended

    def answer(self, answer: pb.Answer | None = None) -> None:
        """Answer the newest message."""
        self._owes_answer = False
        self._process.send(pb.ToProcess(call=self._number, answer=answer or pb.Answer()))

    def refuse(self, problem: str) -> ProcessLost:
        """End the process because of what it has said, and return the error to raise."""
        return self._process.refuse(problem)

    def _abandon(self) -> None:
        anything = tuple(each.name for each in pb.FromProcess.DESCRIPTOR.oneofs[0].fields)
        while not self._has_ended:
            if self._owes_answer:
                self.answer(pb.Answer(abandon=True))
            self.next(anything)
