"""Messages between the launcher and an agent: lines of JSON on the agent's standard input and output.

Pure: it reads and writes no stream. Each line begins with `PREFIX`, so that what a login shell prints before the agent
starts is told from it. A line has at most `MAX_LINE_BYTES`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, NoReturn, get_type_hints

from services.errors import Refused
from services.printable import printable

PROTOCOL_VERSION = 3
"""Version of the messages. Launcher and agent must have the same one."""
PREFIX = b"tiermesh-agent "
MAX_LINE_BYTES = 1 << 20
"""Longest line, with its prefix and line end."""
HEARTBEAT_SECONDS = 5.0
"""Interval of the heartbeats in both directions."""
SILENCE_SECONDS = 15.0
"""Time without a message after which the other end counts as gone."""


# ---- from the agent ----


@dataclass(frozen=True)
class Facts:
    """First message of an agent: where it runs.

    Attributes:
        protocol: version of the messages.
        tiermesh: version of Tiermesh there.
        python: version of Python there.
        hostname: name that the host gives itself.
        folder: absolute path of the run's folder there.
        free_bytes: free space of that folder's disk.
        memory_bytes: memory that daemons can have there in all.
        has_chips: whether the host has devices of Tenstorrent.
        running: whether the agent was started before, so that its daemons run already.
    """

    protocol: int
    tiermesh: str
    python: str
    hostname: str
    folder: str
    free_bytes: int
    memory_bytes: int
    has_chips: bool
    running: bool


@dataclass(frozen=True)
class Probed:
    """Answer to `Probe`.

    Attributes:
        unix_seconds: the host's clock.
        used_ports: ports of the question that are in use.
    """

    unix_seconds: float
    used_ports: tuple[int, ...]


@dataclass(frozen=True)
class Ready:
    """News that a daemon serves.

    Attributes:
        rank: rank of the daemon.
    """

    rank: int


@dataclass(frozen=True)
class Ended:
    """News that a daemon or a command has ended.

    Attributes:
        rank: rank of the daemon.
        code: exit code, or minus the signal.
        text: one line about how it ended, with its last error and its log.
    """

    rank: int
    code: int
    text: str


@dataclass(frozen=True)
class Problem:
    """Request that failed, such as a file that doesn't fit on the disk.

    Attributes:
        text: one line.
        refused: whether the same request would fail again.
    """

    text: str
    refused: bool


@dataclass(frozen=True)
class Stopped:
    """Answer to `Stop`: the daemons have ended."""


@dataclass(frozen=True)
class JobSeen:
    """Answer to `WatchJob`: the aggregator has told the agent of the job."""


@dataclass(frozen=True)
class Detached:
    """Answer to `Detach`: the agent goes on without the launcher."""


@dataclass(frozen=True)
class RunOver:
    """First message in place of `Facts` where a detached run has ended by itself.

    Attributes:
        job: last state of its job, as protobuf's JSON; empty if it isn't known.
        text: one line about why it isn't.
    """

    job: str
    text: str


# ---- from the launcher ----


@dataclass(frozen=True)
class Probe:
    """Question about clock and ports.

    Attributes:
        ports: ports that daemons of this host will listen on.
    """

    ports: tuple[int, ...]


@dataclass(frozen=True)
class WriteFile:
    """Request to write a text file that only its owner can read.

    Attributes:
        path: absolute path in the run's folder.
        text: content.
        secret: whether the agent removes it when it ends.
    """

    path: str
    text: str
    secret: bool


@dataclass(frozen=True)
class Start:
    """Request to start a daemon.

    Attributes:
        rank: rank of the daemon.
        role: worker, aggregator, optimizer or web.
        name: daemon's name.
        folder: absolute path of the rank's folder.
        ready_file: absolute path of the file that says that it serves.
        arguments: program and arguments.
        environment: variables to add to those of the agent.
        unset: variables to take from those of the agent.
    """

    rank: int
    role: str
    name: str
    folder: str
    ready_file: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    unset: tuple[str, ...]


@dataclass(frozen=True)
class Check:
    """Request to run a command to its end, such as a check of the mesh; `Ended` is the answer.

    Attributes:
        rank: rank that it is for.
        folder: absolute path of the rank's folder.
        arguments: program and arguments.
        environment: variables to add to those of the agent.
        unset: variables to take from those of the agent.
        limit_seconds: longest time that it may take.
    """

    rank: int
    folder: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    unset: tuple[str, ...]
    limit_seconds: float


@dataclass(frozen=True)
class Stop:
    """Request to stop daemons.

    Attributes:
        ranks: ranks of the daemons.
    """

    ranks: tuple[int, ...]


@dataclass(frozen=True)
class WatchJob:
    """Request to watch over the run's job, with whose end a detached agent ends.

    Attributes:
        job: id of the job.
        aggregator: `HOST:PORT` of the aggregator.
        optimizer: name of the daemon that holds the optimizer.
        credentials: absolute paths of certificate, key and authority for calling it; none without TLS.
    """

    job: str
    aggregator: str
    optimizer: str
    credentials: tuple[str, ...]


@dataclass(frozen=True)
class Detach:
    """Request to go on without the launcher, until another one attaches or the job has ended."""


# ---- both ways ----


@dataclass(frozen=True)
class Heartbeat:
    """Sign of life."""


AgentMessage = Facts | Probed | Ready | Ended | Problem | Stopped | JobSeen | Detached | RunOver | Heartbeat
LauncherMessage = Probe | WriteFile | Start | Check | Stop | WatchJob | Detach | Heartbeat
Message = AgentMessage | LauncherMessage

MESSAGE_TYPES: tuple[type[Message], ...] = (
    *(Facts, Probed, Ready, Ended, Problem, Stopped, JobSeen, Detached, RunOver, Heartbeat),
    *(Probe, WriteFile, Start, Check, Stop, WatchJob, Detach),
)
_TYPES: Mapping[str, type[Message]] = {each.__name__: each for each in MESSAGE_TYPES}
_FIELDS = {each: get_type_hints(each) for each in _TYPES.values()}


def encode(message: Message) -> bytes:
    """Return a message as a line, with its end.

    Raises:
        Refused: the line is longer than `MAX_LINE_BYTES`, or a text is not UTF-8.
    """
    content = {"type": type(message).__name__, **asdict(message)}
    try:
        line = PREFIX + json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
    except UnicodeEncodeError:
        raise Refused(
            f"{type(message).__name__} for an agent: has text that is not UTF-8; correct it"
        ) from None
    if len(line) > MAX_LINE_BYTES:
        raise Refused(
            f"{type(message).__name__} for an agent: {len(line)} bytes, expected at most {MAX_LINE_BYTES}; make its "
            "files or variables smaller"
        )
    return line


def decode(line: bytes) -> Message:
    """Return the message of a line.

    Args:
        line: line with its prefix; the line end may be missing.

    Raises:
        Refused: it is no message.
    """
    if not line.startswith(PREFIX):
        _refuse(f"begins with {line[:40]!r}")
    if len(line) > MAX_LINE_BYTES:
        _refuse(f"has {len(line)} bytes")
    try:
        content = json.loads(line[len(PREFIX) :].decode(), parse_constant=_refuse)
        # Escapes can make surrogates that are no text, which neither files nor arguments can have.
        json.dumps(content, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        _refuse("has no JSON in UTF-8")
    if not isinstance(content, dict):
        _refuse("has no JSON object")
    kind = content.pop("type", None)
    if not isinstance(kind, str) or kind not in _TYPES:
        _refuse(f"has type {kind!r}")
    message_type = _TYPES[kind]
    names = [field.name for field in fields(message_type)]
    if sorted(content) != sorted(names):
        _refuse(f"of type {kind} has fields {', '.join(sorted(content))!r}")
    hints = _FIELDS[message_type]
    return message_type(**{name: _convert(f"{kind}.{name}", content[name], hints[name]) for name in names})


def _convert(place: str, value: object, hint: object) -> Any:
    """Return a value of JSON as the type of a field."""
    if hint is float and type(value) is int:
        value = float(value) if abs(value) < 1 << 53 else value
    if hint in (str, int, bool) and type(value) is hint:
        return value
    if hint is float and isinstance(value, float) and math.isfinite(value):
        return value
    if hint == tuple[int, ...] and isinstance(value, list) and all(type(each) is int for each in value):
        return tuple(value)
    if hint == tuple[str, ...] and isinstance(value, list) and all(isinstance(each, str) for each in value):
        return tuple(value)
    if (
        hint == Mapping[str, str]
        and isinstance(value, dict)
        and all(isinstance(each, str) for each in value.values())
    ):
        return value
    return _refuse(f"has {place} {value!r:.40}")


def _refuse(found: str) -> NoReturn:
    raise Refused(
        f"line of a launch's agent: {printable(found, 150)}, expected a message of protocol {PROTOCOL_VERSION}; "
        "install the same Tiermesh on all hosts"
    )
