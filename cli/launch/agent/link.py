"""The launcher's end of the connection to an agent."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import IO, TypeVar

from cli.launch.agent import protocol
from cli.launch.agent.protocol import (
    HEARTBEAT_SECONDS,
    MAX_LINE_BYTES,
    PREFIX,
    SILENCE_SECONDS,
    AgentMessage,
    Detached,
    Facts,
    Heartbeat,
    LauncherMessage,
    Message,
    Problem,
    RunOver,
)
from cli.launch.openssh import AgentGone
from services.errors import Failed, Refused, TiermeshError
from services.printable import one_line
from services.tasks import start_task

OPEN_SECONDS = 60.0
"""Longest wait for an agent's first message; importing takes long on a busy host or a network file system."""
_ERROR_LINES = 20
_FOREIGN_LINES = 200
"""Lines that a login shell may print before the agent starts."""
_ERRORS_SECONDS = 5.0
_END_SECONDS = 15.0
"""Longest wait for an agent to end, which gives its daemons 10 s for that."""

Answer = TypeVar("Answer", bound=Message)
ExplainEnd = Callable[[int, Sequence[str]], TiermeshError]


class RunEnded(AgentGone):
    """Lack of the agent of a run that has ended by itself.

    Attributes:
        over: what the agent has left.
    """

    def __init__(self, host: str, over: RunOver) -> None:
        super().__init__(f"host {host}: the run has ended: {over.text or 'its job has'}")
        self.over = over


class AgentLink:
    """Connection to the agent of one host. `open` makes one.

    Attributes:
        host: host as errors name it.
        facts: what the agent has told of its host.
    """

    def __init__(
        self,
        host: str,
        process: subprocess.Popen[bytes],
        requests: asyncio.WriteTransport,
        answers: asyncio.StreamReader,
        errors: asyncio.StreamReader,
        explain_end: ExplainEnd,
    ) -> None:
        self.host = host
        self.facts: Facts
        self._process = process
        self._requests = requests
        self._answers = answers
        self._explain_end = explain_end
        self._detached = False
        self._errors: deque[str] = deque(maxlen=_ERROR_LINES)
        self._tasks = [start_task(self._read_errors(errors), f"host {host}: errors of the agent")]

    @classmethod
    async def open(cls, host: str, command: Sequence[str], explain_end: ExplainEnd) -> AgentLink:
        """Start an agent, and return the connection once it has told its facts.

        Args:
            host: host as errors name it.
            command: command that starts the agent, here or over ssh.
            explain_end: returns one line about an end of the command, from its exit code and last lines of errors.

        Raises:
            RunEnded: there is the result of a run that has ended by itself.
            TiermeshError: the agent can't be started, or is of another version of the protocol.
        """
        try:
            # asyncio's own subprocesses are killed when their object goes, but a detached agent lives on.
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C reaches the launcher alone, which then stops the daemons
            )
        except OSError as error:
            raise Refused(
                f"{command[0]}: can't be started ({error.strerror}); install OpenSSH's client on this host"
            ) from None
        requests, _ = await asyncio.get_running_loop().connect_write_pipe(asyncio.BaseProtocol, process.stdin)
        answers, errors = await _open_reader(process.stdout), await _open_reader(process.stderr)
        link = cls(host, process, requests, answers, errors, explain_end)
        try:
            link.facts = await asyncio.wait_for(link._meet(), OPEN_SECONDS)
        except asyncio.TimeoutError:
            await link.close()
            raise Failed(
                f"host {host}: no agent answered within {OPEN_SECONDS:g} s; see why it is slow"
            ) from None
        except BaseException:
            await link.close()
            raise
        link._tasks.append(start_task(link._beat(), f"host {host}: heartbeats"))
        return link

    @property
    def pid(self) -> int:
        """Process id of the agent or of ssh, on this host."""
        return self._process.pid

    def fall_silent(self) -> None:
        """Send no more heartbeats, as a launcher that is cut off."""
        self._tasks[1].cancel()

    def send(self, message: LauncherMessage) -> None:
        """Send a message; an agent that is gone is noticed by `receive`.

        Raises:
            Refused: the message is too long.
        """
        line = protocol.encode(message)
        if not self._requests.is_closing():
            self._requests.write(line)

    async def receive(self) -> AgentMessage:
        """Return the next message that is no heartbeat.

        Raises:
            TiermeshError: the connection has ended or fell silent, or the agent reports a problem.
        """
        while True:
            message = await self._receive_any()
            if isinstance(message, Problem):
                kind = Refused if message.refused else Failed
                raise kind(f"host {self.host}: {message.text}")
            if isinstance(message, Detached):
                self._detached = True
            if not isinstance(message, Heartbeat):
                return message

    async def ask(self, message: LauncherMessage, answer: type[Answer]) -> Answer:
        """Return the answer to a message, before any daemon is started.

        Raises:
            TiermeshError: see `receive`.
        """
        self.send(message)
        received: Message = await self.receive()
        if not isinstance(received, answer):
            raise Failed(
                f"host {self.host}: {type(received).__name__} came, expected {answer.__name__}; try again"
            )
        return received

    async def close(self) -> None:
        """Close the connection; an agent that is not detached then stops its daemons and ends."""
        for task in self._tasks[1:]:
            task.cancel()
        self._requests.close()
        deadline = time.monotonic() + _END_SECONDS
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._read_to_end(), _END_SECONDS)
        if not self._detached:
            await self._wait_ended(max(0.0, deadline - time.monotonic()))
        self._tasks[0].cancel()

    async def _wait_ended(self, limit_seconds: float) -> int:
        """Return the exit code of the agent or of ssh, which is asked to end after a limit and killed after another."""
        for end in (self._process.terminate, self._process.kill):
            try:
                return await asyncio.to_thread(self._process.wait, limit_seconds)
            except subprocess.TimeoutExpired:
                end()
                limit_seconds = _END_SECONDS
        return await asyncio.to_thread(self._process.wait)

    async def _read_to_end(self) -> None:
        while await self._answers.read(MAX_LINE_BYTES):
            pass

    async def _meet(self) -> Facts:
        """Return the agent's first message, after what a login shell may have printed."""
        for _ in range(_FOREIGN_LINES):
            line = await self._read_line()
            if line.startswith(PREFIX):
                message = self._decode(line)
                if isinstance(message, Facts):
                    return message
                if isinstance(message, RunOver):
                    raise RunEnded(self.host, message)
                if isinstance(message, Problem):
                    raise Refused(f"host {self.host}: {message.text}")
        raise Refused(
            f"host {self.host}: its login shell prints without end; let its start-up files print nothing for ssh"
        )

    async def _receive_any(self) -> AgentMessage:
        started = time.monotonic()
        try:
            line = await asyncio.wait_for(self._read_line(), SILENCE_SECONDS)
        except asyncio.TimeoutError:
            silent = time.monotonic() - started
            raise Failed(
                f"host {self.host}: no sign of life for {silent:.0f} s; see the host and the network"
            ) from None
        message = self._decode(line)
        if not isinstance(message, AgentMessage):
            raise Failed(
                f"host {self.host}: {type(message).__name__} came from an agent; install the same Tiermesh there"
            )
        return message

    def _decode(self, line: bytes) -> Message:
        try:
            return protocol.decode(line)
        except Refused as refused:
            raise Refused(f"host {self.host}: {refused}") from None

    async def _read_line(self) -> bytes:
        try:
            line = await self._answers.readline()
        except ValueError:
            raise Failed(f"host {self.host}: sent a line of more than {MAX_LINE_BYTES} bytes") from None
        if line.endswith(b"\n"):
            return line
        await asyncio.wait([self._tasks[0]], timeout=_ERRORS_SECONDS)
        code = await self._wait_ended(_END_SECONDS)
        raise self._explain_end(code, tuple(self._errors))

    async def _read_errors(self, errors: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await errors.readline()
            except ValueError:
                continue  # a line that is too long is left out
            if not line:
                return
            if text := one_line(line.decode(errors="replace")):
                self._errors.append(text)

    async def _beat(self) -> None:
        while True:
            self.send(Heartbeat())
            await asyncio.sleep(HEARTBEAT_SECONDS)


async def _open_reader(pipe: IO[bytes] | None) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    return reader
