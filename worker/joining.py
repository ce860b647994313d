"""The socket at which processes of users join this worker: who may, and the process that did.

The kernel says who connects (SO_PEERCRED), before a byte is read. A process that may join takes the place of one that
the daemon would spawn (docs/use/own-loop.md).
"""

from __future__ import annotations

import asyncio
import grp
import logging
import os
import pwd
import re
import select
import socket
import stat
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from protos import compute_pb2 as pb
from services.config.refusals import format_value
from services.errors import Failed, Refused
from services.printable import FAILURE_CHARACTERS, printable, printable_path
from services.runtime.child_output import TakeLines
from services.runtime.compute_channel import PROTOCOL_VERSION, Channel, ChannelEnded, DaemonChannel, frame
from worker.compute_process import Started

log = logging.getLogger("tiermesh.worker")

GREETING_SECONDS = 5.0
"""Longest wait for the first message of a process that connects; others wait meanwhile."""

MOST_WAITING = 16
"""Number of connections that wait to be accepted; the kernel refuses more."""

LONGEST_PATH_BYTES = 107
"""Longest path of a Unix socket."""

_NAME_CHARACTERS = 60
_JOB = re.compile(r"[\w.-]{1,30}", re.ASCII)
_CREDENTIALS = struct.Struct("3i")


class Credentials(NamedTuple):
    """Process id, user and group of the process at the other end of a socket, as it connected."""

    pid: int
    uid: int
    gid: int


def read_credentials(end: socket.socket) -> Credentials:
    """Return what the kernel says of the process at the other end."""
    return Credentials(
        *_CREDENTIALS.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    )


class AllowedUsers:
    """The users that may join.

    Args:
        names: user names, user ids and `@GROUP`; empty for the user of this process alone.

    Raises:
        Refused: a name is unknown on this host.
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.includes_others = bool(names)
        self._uids = {_find_user(each) for each in names if not each.startswith("@")}
        self._gids = {_find_group(each) for each in names if each.startswith("@")}
        if not names:
            self._uids.add(os.getuid())

    def permit(self, credentials: Credentials) -> bool:
        """Return whether a process may join: by its user, or by one of its user's groups."""
        if credentials.uid in self._uids or credentials.gid in self._gids:
            return True
        if not self._gids:
            return False
        try:
            user = pwd.getpwuid(credentials.uid)
        except KeyError:
            return False
        return not self._gids.isdisjoint(os.getgrouplist(user.pw_name, user.pw_gid))


def _find_user(name: str) -> int:
    with suppress(KeyError):
        return pwd.getpwnam(name).pw_uid
    if name.isdecimal() and len(name) <= 10:
        return int(name)
    raise Refused(
        f"--allow-user: {format_value(name)} is no user of this host, expected a name, a number or @GROUP; correct it"
    )


def _find_group(name: str) -> int:
    try:
        return grp.getgrnam(name[1:]).gr_gid
    except KeyError:
        raise Refused(f"--allow-user: {format_value(name)} is no group of this host; correct it") from None


class JoinedProcess:
    """A process of a user that has joined this worker for one job. It is the `Child` of a compute process.

    Args:
        end: the daemon's end of its connection.
        hello: its first message.
        credentials: what the kernel says of it.

    Attributes:
        job: id of the job that it has joined for.
        reason: why its part is over, for people; empty while it is not.
        has_left: whether it has ended the conversation by itself.
        farewell: what it is told at the end; None for the reason of the end.
    """

    def __init__(self, end: socket.socket, hello: pb.Hello, credentials: Credentials) -> None:
        self._end = end
        self._hello = hello
        self._stopping = threading.Lock()
        self._is_taken = False
        self.job = hello.job
        self.reason = ""
        self.has_left = False
        self.farewell: pb.ToProcess | None = None
        name = printable(hello.name, _NAME_CHARACTERS) or "without a name"
        self._text = f"process {name} (pid {credentials.pid}, user {credentials.uid})"

    def __str__(self) -> str:
        return self._text

    def spawn(self, _: TakeLines) -> Started:
        """Be the compute process of a worker, which no other process follows.

        Raises:
            Failed: it was that already, and has ended.
        """
        if self._is_taken:
            raise Failed(f"{self.describe_end()}; join again")
        self._is_taken = True
        return Started(self._end.dup(), self, self._hello)

    def wait(self, seconds: float) -> bool:
        """Return whether it has closed its end; wait for that at most so many seconds."""
        poll = select.poll()
        poll.register(self._end, select.POLLRDHUP)
        return bool(poll.poll(round(1000 * seconds)))

    @property
    def is_over(self) -> bool:
        """Whether its part is over, or about to be."""
        return bool(self.reason) or self.wait(0)

    async def wait_ended(self) -> None:
        """Wait until it has closed its end, or has ended."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        with select.epoll() as poll:
            poll.register(self._end, select.EPOLLRDHUP)
            loop.add_reader(poll.fileno(), ended.set)
            try:
                await ended.wait()
            finally:
                loop.remove_reader(poll.fileno())

    def stop(self, grace_seconds: float, because: str = "") -> str:
        """End the conversation, and return why; the process itself is its user's. Any thread may call.

        Args:
            grace_seconds: not needed, as nothing is waited for.
            because: why, which the process is told; empty if it has ended the conversation.
        """
        with self._stopping:
            if not self.reason:
                self.has_left = not because
                self.reason = because or "it has ended"
                farewell = self.farewell or pb.ToProcess(refused=pb.Refused(reason=because))
                send_farewell(self._end, farewell)
                _shut_down(self._end)
        return self.reason

    def turn_away(self, what: str, fix: str) -> None:
        """Tell it that it can't join now."""
        refused = pb.Refused(reason=f"{self}: {what}; {fix}", field="process", value=str(self), fix=fix)
        send_farewell(self._end, pb.ToProcess(refused=refused))
        self.close()

    def describe_end(self) -> str:
        """Return who has ended and why, with its last words; call it once nobody else reads from it."""
        if not self.reason or self.has_left:
            self.reason = self._read_last_words() or self.reason or "it has ended"
        return f"{self}: {self.reason}"

    def _read_last_words(self) -> str:
        channel: DaemonChannel = Channel(self._end, pb.FromProcess)
        with suppress(ChannelEnded, ValueError):
            while self.wait(0):
                message, _ = channel.receive()
                if message.HasField("failed"):
                    return printable(message.failed.reason, FAILURE_CHARACTERS)
        return ""

    def close(self) -> None:
        """Close the daemon's end."""
        self._end.close()


class JoinSocket:
    """The socket that processes of users connect to.

    Args:
        path: path of the socket.
        allowed: the users that may join.
        read_credentials: returns what the kernel says of the process at the other end.
        greeting_seconds: longest wait for the first message.
    """

    def __init__(
        self,
        path: Path,
        allowed: AllowedUsers,
        read_credentials: Callable[[socket.socket], Credentials] = read_credentials,
        greeting_seconds: float = GREETING_SECONDS,
    ) -> None:
        self.path = path
        self._allowed = allowed
        self._read_credentials = read_credentials
        self._greeting_seconds = greeting_seconds
        self._listener: socket.socket | None = None

    def open(self) -> None:
        """Listen; what a former process has left at the path is replaced.

        Raises:
            Refused: the path can't be that of a socket, or another worker listens there.
        """
        text = str(self.path)
        if len(os.fsencode(text)) > LONGEST_PATH_BYTES:
            raise Refused(
                f"--socket {printable_path(text)}: {len(os.fsencode(text))} bytes, expected at most "
                f"{LONGEST_PATH_BYTES}, as Unix sockets have; give a shorter path"
            )
        listener = socket.socket(socket.AF_UNIX)
        try:
            self._remove_stale()
            listener.bind(text)
            self.path.chmod(0o666 if self._allowed.includes_others else 0o600)
            listener.listen(MOST_WAITING)
        except OSError as error:
            listener.close()
            raise Refused(
                f"--socket {printable_path(text)}: can't be made ({error.strerror}); give a path in a folder that this "
                "user may write to"
            ) from None
        except BaseException:
            listener.close()
            raise
        listener.setblocking(False)
        self._listener = listener
        log.info("processes join at %s", self.path)

    def _remove_stale(self) -> None:
        try:
            mode = self.path.lstat().st_mode
        except FileNotFoundError:
            return
        place = printable_path(self.path)
        if not stat.S_ISSOCK(mode):
            raise Refused(f"--socket {place}: is there and no socket; give another path")
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(self.path))
            except ConnectionRefusedError:
                self.path.unlink(missing_ok=True)
                return
        raise Refused(f"--socket {place}: another worker listens there; give each worker a path of its own")

    async def accept(self) -> JoinedProcess:
        """Wait for the next process that may join; tell others why they may not."""
        assert self._listener is not None
        loop = asyncio.get_running_loop()
        while True:
            end, _ = await loop.sock_accept(self._listener)
            joined = await self._greet(end)
            if joined is not None:
                return joined
            end.close()

    async def _greet(self, end: socket.socket) -> JoinedProcess | None:
        """Return the process at the other end, if it may join."""
        credentials = self._read_credentials(end)
        if not self._allowed.permit(credentials):
            user = str(credentials.uid)
            log.warning("user %s may not join, process %d", user, credentials.pid)
            refuse(end, "may not join this worker", "start the worker with --allow-user", ("user", user))
            return None
        end.setblocking(True)
        limit = asyncio.get_running_loop().call_later(self._greeting_seconds, _shut_down, end)
        try:
            hello = await asyncio.to_thread(_read_hello, end)
        finally:
            limit.cancel()
        return JoinedProcess(end, hello, credentials) if hello is not None else None

    def close(self) -> None:
        """Stop listening, and remove the socket."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            self.path.unlink(missing_ok=True)


def _shut_down(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


def _read_hello(end: socket.socket) -> pb.Hello | None:
    """Return the first message of a process, if it can join with that; else tell it why not, and return None."""
    try:
        message, _ = Channel[pb.ToProcess, pb.FromProcess](end, pb.FromProcess).receive()
    except (ChannelEnded, ValueError) as error:
        log.warning("a process has connected and sent no Hello: %s", error)
        return None
    hello = message.hello
    if hello.version != PROTOCOL_VERSION:
        fix = "install the version of the package tiermesh that belongs to the worker's"
        refuse(end, "speaks another version", fix, ("version", str(hello.version)), str(PROTOCOL_VERSION))
    elif not _JOB.fullmatch(hello.job):
        found = ("job", printable(hello.job, _NAME_CHARACTERS))
        refuse(end, "names no job", "name the job that it joins for", found, "the id of a job")
    else:
        return hello
    return None


def refuse(
    end: socket.socket, what: str, fix: str, found: tuple[str, str], expected: str = "another"
) -> None:
    """Tell a process that has connected why it can't join.

    Args:
        end: the daemon's end of its connection.
        what: what is wrong with it.
        fix: how to fix it.
        found: the field that is wrong, and its value.
        expected: what was expected.
    """
    field, value = found
    reason = f"{field} {value or 'none'}: {what}, expected {expected}; {fix}"
    refused = pb.Refused(reason=printable(reason), field=field, value=value, expected=expected, fix=fix)
    send_farewell(end, pb.ToProcess(refused=refused))


def send_farewell(end: socket.socket, message: pb.ToProcess) -> None:
    """Send a process the last message, unless it reads none."""
    with suppress(OSError):
        end.send(frame(message), socket.MSG_DONTWAIT)
