"""`tiermesh launch-agent`: run the daemons of one host for a launcher, which talks to it over OpenSSH or a pipe.

The daemons end when the launcher's connection closes or falls silent, within 30 s. A detached agent goes on without a
launcher. It listens on a Unix socket in the run's folder, and `relay` connects a later ssh session to it. It stops its
daemons once the job has ended, and leaves the job's last state in the folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import shutil
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.launch.agent import protocol
from cli.launch.agent.protocol import (
    HEARTBEAT_SECONDS,
    MAX_LINE_BYTES,
    SILENCE_SECONDS,
    AgentMessage,
    Check,
    Detach,
    Detached,
    Ended,
    Facts,
    Heartbeat,
    JobSeen,
    Message,
    Probe,
    Probed,
    Problem,
    Ready,
    RunOver,
    Start,
    Stop,
    Stopped,
    WatchJob,
    WriteFile,
)
from cli.launch.agent.rank_process import RankProcess, process_environment
from mesh.backend import has_device
from services.durable_files import new_file
from services.errors import Failed, Refused, TiermeshError, describe_internal_error
from services.printable import one_line, printable_path
from services.runtime.host_memory import read_host_memory
from services.runtime.process import end_with_parent
from services.system_errors import system_error, unexplained_system_error
from services.tasks import start_awaited, start_task
from services.threads import finish_in_thread
from services.version import tiermesh_version

if TYPE_CHECKING:
    from cli.launch.agent.job_watch import JobWatch

SOCKET = "agent.sock"
RESULT_FILE = "result"
"""File with the message `RunOver`, for launchers that attach once the agent has ended."""
LOG = "agent.log"
GRACE_SECONDS = 10.0
"""Time that daemons have to end by themselves once the launcher is gone; with `SILENCE_SECONDS` it is below 30 s."""
LINGER_SECONDS = 15.0
"""Time that a detached agent stays after the job's end: agents notice it up to `POLL_SECONDS` apart."""
_MAX_UNSENT_BYTES = 1 << 20
_STOP_ORDER = ("web", "worker", "aggregator", "optimizer")

Streams = tuple[asyncio.StreamReader, asyncio.WriteTransport]


class Agent:
    """The daemons of one host, and the launcher that asks for them.

    Args:
        folder: absolute path of the run's folder on this host.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._daemons: dict[int, RankProcess] = {}
        self._states: dict[int, Ready | Ended] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._launcher: asyncio.WriteTransport | None = None
        self._secrets: list[Path] = []
        self._over = False
        self._detached = False
        self._job_watch: JobWatch | None = None
        self._server: asyncio.Server | None = None
        self._connections: asyncio.Queue[Streams] = asyncio.Queue(1)
        self._closed = False

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.WriteTransport) -> None:
        """Serve the launcher on a connection and, once detached, those that attach later, until the run is over."""
        job_end: asyncio.Task[RunOver] | None = None
        try:
            while True:
                await self._serve(reader, writer)
                if self._over or not self._detached or self._job_watch is None:
                    return
                if job_end is None:
                    _release_standard_streams(self._folder / LOG)
                    job_end = start_awaited(self._job_watch.wait())
                streams = await _next_launcher(self._connections, job_end)
                if streams is None:
                    await self._end_by_itself(job_end.result())
                    return
                reader, writer = streams
        finally:
            self._close()
            try:
                await self._stop(list(self._daemons), GRACE_SECONDS)
            finally:  # nothing is awaited here, so that a signal can't keep the secrets
                for task in (*self._tasks, *([] if job_end is None else [job_end])):
                    task.cancel()
                for path in self._secrets:
                    path.unlink(missing_ok=True)

    async def _offer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a launcher that attaches, unless there is another one."""
        if self._closed:
            writer.close()
        elif self._launcher is not None or self._connections.full():
            text = "another launcher is attached to this run; end it first"
            writer.write(protocol.encode(Problem(text, refused=True)))
            writer.close()
        else:
            self._connections.put_nowait((reader, writer.transport))

    def _close(self) -> None:
        """Take no more launchers. Those that wait get no answer, so they look for the result."""
        self._closed = True
        if self._server is not None:
            self._server.close()
            (self._folder / SOCKET).unlink(missing_ok=True)
        while not self._connections.empty():
            self._connections.get_nowait()[1].close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.WriteTransport) -> None:
        """Answer one launcher until it is gone, or has detached or ended the run."""
        self._launcher = writer
        beating = start_task(self._beat(), "heartbeats to the launcher")
        try:
            self._send(self._facts())
            for state in self._states.values():
                self._send(state)
            while (message := await receive(reader)) is not None:
                await self._answer(message)
                if isinstance(message, Detach):
                    return
        except asyncio.TimeoutError:  # a launcher that was only slow learns why its agent is gone
            text = f"heard nothing of the launcher for {SILENCE_SECONDS:g} s; see its host and the network"
            self._send(Problem(text, refused=False))
        except (TiermeshError, OSError) as error:
            self._send(_problem(error))
        finally:
            self._launcher = None
            beating.cancel()
            writer.close()

    async def _answer(self, message: Message) -> None:
        match message:
            case Probe():
                used = tuple(port for port in message.ports if not _is_free(port))
                self._send(Probed(time.time(), used))
            case WriteFile():
                path = self._own_path(message.path)
                if message.secret:
                    self._secrets.append(path)
                # Beside the heartbeats: a busy disk may take long.
                await finish_in_thread(_write, path, message.text)
            case Start():
                self._start(message)
            case Check():
                self._keep(self._check_and_tell(message))
            case Stop():
                # The next message may be that the launcher is gone, so this one does not wait for the daemons.
                self._keep(self._stop_and_tell(message.ranks))
            case WatchJob():
                self._keep(self._watch_job(message))
            case Detach():
                if self._job_watch is None:
                    raise Refused(
                        "Detach: before WatchJob, so the end would not be noticed; report this as a defect"
                    )
                if self._server is None:  # before the launcher goes, so that the next one can come at once
                    self._server = await _listen(self._folder, self._offer)
                self._detached = True
                self._send(Detached())
            case Heartbeat():
                pass
            case _:
                raise Refused(f"{type(message).__name__}: sent to an agent, expected a message of a launcher")

    def _start(self, start: Start) -> None:
        folder = self._own_path(start.folder)
        self._own_path(start.ready_file)
        if start.rank in self._daemons:
            raise Refused(f"rank {start.rank}: started twice, expected once; report this as a defect")
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            daemon = RankProcess(start).start()
        except OSError as error:
            raise system_error(error, f"{start.name}: can't be started ({error})") from None
        self._daemons[start.rank] = daemon
        self._keep(self._watch(start.rank, daemon))

    async def _watch_job(self, request: WatchJob) -> None:
        # Imported here, because gRPC takes time and memory that other agents don't need.
        from cli.launch.agent.job_watch import JobWatch

        watch = JobWatch(request)
        await watch.check()
        self._job_watch = watch
        self._send(JobSeen())

    async def _end_by_itself(self, over: RunOver) -> None:
        """Keep how the job has ended for those who attach later, then stop the daemons."""
        if not over.job:  # a daemon that ended here may be the reason
            ends = [state.text for state in self._states.values() if isinstance(state, Ended)]
            over = RunOver("", "; ".join(ends) or over.text)
        try:
            _write(self._folder / RESULT_FILE, protocol.encode(over).decode())
        finally:
            self._close()
            for role in _STOP_ORDER:
                await self._stop([rank for rank, daemon in self._daemons.items() if daemon.role == role])

    async def _check_and_tell(self, check: Check) -> None:
        self._send(await self._check(check))

    async def _check(self, check: Check) -> Ended:
        """Run a command to its end; the last line of its output says how it went."""
        folder = self._own_path(check.folder)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            process = await asyncio.create_subprocess_exec(
                *check.arguments,
                cwd=folder,
                env=process_environment(check.environment, check.unset),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                limit=MAX_LINE_BYTES,
                preexec_fn=end_with_parent,
            )
        except OSError as error:
            return Ended(check.rank, 1, f"can't be started ({error})")
        try:
            output, _ = await asyncio.wait_for(process.communicate(), check.limit_seconds)
        except asyncio.TimeoutError:
            return Ended(check.rank, 1, f"no end within {check.limit_seconds:g} s")
        finally:
            if process.returncode is None:
                process.kill()
        lines = [line for line in output.decode(errors="replace").splitlines() if line.strip()]
        return Ended(check.rank, process.returncode or 0, one_line(lines[-1] if lines else ""))

    async def _watch(self, rank: int, daemon: RankProcess) -> None:
        """Tell the launcher when a daemon serves, and when it ends."""
        try:
            await daemon.wait_ready()
            self._note(rank, Ready(rank))
        except Failed as error:
            if daemon.process.poll() is None:
                self._send(Problem(str(error), refused=False))
        code = await daemon.wait_ended()
        self._note(rank, Ended(rank, code, daemon.describe_end()))

    def _note(self, rank: int, state: Ready | Ended) -> None:
        self._states[rank] = state
        self._send(state)

    async def _stop_and_tell(self, ranks: tuple[int, ...]) -> None:
        await self._stop(ranks)
        self._send(Stopped())
        self._over = all(daemon.process.poll() is not None for daemon in self._daemons.values())

    async def _stop(self, ranks: tuple[int, ...] | list[int], limit_seconds: float | None = None) -> None:
        stops = [self._daemons[rank] for rank in ranks if rank in self._daemons]
        limits = () if limit_seconds is None else (limit_seconds,)
        await asyncio.gather(*(daemon.stop(*limits) for daemon in stops))

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine beside the answers, and tell the launcher of an error in it."""
        task = start_task(work, "request of the launcher", lambda error: self._send(_problem(error)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _facts(self) -> Facts:
        return Facts(
            protocol=protocol.PROTOCOL_VERSION,
            tiermesh=tiermesh_version(),
            python=platform.python_version(),
            hostname=socket.gethostname(),
            folder=str(self._folder),
            free_bytes=shutil.disk_usage(self._folder).free,
            memory_bytes=read_host_memory().total_bytes,
            has_chips=has_device(),
            running=bool(self._daemons),
        )

    def _own_path(self, text: str) -> Path:
        path = Path(text)
        if not path.is_relative_to(self._folder) or ".." in path.parts:
            raise Refused(
                f"{printable_path(text)}: outside of the run's folder {printable_path(self._folder)}"
            )
        return path

    async def _beat(self) -> None:
        while True:
            self._send(Heartbeat())
            await asyncio.sleep(HEARTBEAT_SECONDS)

    def _send(self, message: AgentMessage) -> None:
        """Send a message, if there is a launcher that reads."""
        writer = self._launcher
        if writer is None or writer.is_closing():
            return
        if writer.get_write_buffer_size() > _MAX_UNSENT_BYTES:
            writer.abort()
            return
        writer.write(protocol.encode(message))


async def _next_launcher(
    connections: asyncio.Queue[Streams], job_end: asyncio.Task[RunOver]
) -> Streams | None:
    """Return the streams of the next launcher; None if the job has ended and none came for a while."""
    getting = start_awaited(connections.get())
    try:
        await asyncio.wait({getting, job_end}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({getting}, timeout=LINGER_SECONDS)
        return getting.result() if getting.done() else None
    finally:
        getting.cancel()


async def receive(reader: asyncio.StreamReader) -> Message | None:
    """Return the next message; None at the end of the connection.

    Raises:
        Refused: the line is no message.
        asyncio.TimeoutError: there was none for SILENCE_SECONDS.
    """
    try:
        line = await asyncio.wait_for(reader.readline(), SILENCE_SECONDS)
    except ValueError:
        raise Refused(
            f"line of a launch's agent: longer than {MAX_LINE_BYTES} bytes; report this as a defect"
        ) from None
    return protocol.decode(line) if line.endswith(b"\n") else None


def _problem(error: BaseException) -> Problem:
    if isinstance(error, OSError):
        error = unexplained_system_error(error)
    text = str(error) if isinstance(error, TiermeshError) else describe_internal_error(error)
    return Problem(text, refused=isinstance(error, Refused))


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("", port)).close()
    except (OSError, OverflowError):
        return False
    return True


def _write(path: Path, text: str) -> None:
    with explain_write_errors(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with new_file(path, path.with_name(f".{path.name}"), mode=0o600) as file:
            file.write(text.encode())


@contextlib.contextmanager
def explain_write_errors(path: Path) -> Iterator[None]:
    """Turn an error of the system into one line about the path that can't be written."""
    try:
        yield
    except OSError as error:
        text = f"{printable_path(path)}: can't be written ({error.strerror}); free space there, or give another folder"
        raise system_error(error, text) from None


def _release_standard_streams(log: Path) -> None:
    """Let the ssh session end: it waits until nothing has its streams open."""
    nothing = os.open(os.devnull, os.O_RDWR)
    kept = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number, replacement in ((0, nothing), (1, kept), (2, kept)):
        os.dup2(replacement, number)
    os.close(nothing)
    os.close(kept)


async def _listen(
    folder: Path, offer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
) -> asyncio.Server:
    (folder / SOCKET).unlink(missing_ok=True)
    # A short relative path: a socket's may have 107 bytes.
    return await asyncio.start_unix_server(offer, SOCKET, limit=MAX_LINE_BYTES)
