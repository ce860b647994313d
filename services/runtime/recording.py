"""Recording of a core's calls and results, one JSON line per call, and its replay.

A core is a pure state machine. So a daemon's recorded run replays to the same effects in another process, without
network, clock or disk: `make_core(AggregatorCore, path, ...)` in the daemon, then `replay(path, AggregatorCore)`.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from services.errors import Refused, TiermeshError
from services.system_errors import system_error

Core = TypeVar("Core")

FORMAT_VERSION = 9
"""Version of the format, in a recording's first line. It rises when older recordings can't be read any more."""
INPUTS = ("handle",)
"""Methods that take an input and return effects."""
PULLS = ("next_weights",)
"""Methods that return the next thing to send. A call that returns None changed nothing and is not recorded."""


class ReplayDiffers(TiermeshError):
    """Replayed call with another result than the recorded one."""


def make_core(kind: Callable[..., Core], record: Path | None, **arguments: Any) -> Core:
    """Return a core, and record its calls if a path is given.

    Args:
        kind: class of the core.
        record: file to write the recording to; None for no recording.
        arguments: arguments of the core's constructor.

    Raises:
        Refused: the file can't be written.
    """
    return CallRecorder(record).make(kind, **arguments) if record is not None else kind(**arguments)


class CallRecorder:
    """Writer of one core's calls. It flushes each line, so that SIGKILL loses at most the last one.

    Args:
        path: file to write; an existing one is replaced.

    Raises:
        Refused: the file can't be written.
        NotYet: the disk is full, or does not answer.
    """

    def __init__(self, path: Path) -> None:
        try:
            # Without waiting for the reader, if the path is that of a pipe.
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC
            self._file = os.fdopen(os.open(path, flags, 0o666), "w")
        except OSError as error:
            text = f"--record {path}: {error.strerror}; expected a writable file"
            raise system_error(error, text) from None

    def make(self, kind: Callable[..., Core], **arguments: Any) -> Core:
        """Return a core whose calls are recorded, and write the first line of the recording."""
        encoded = {key: encode(each) for key, each in arguments.items()}
        self._write({"recording": FORMAT_VERSION, "core": _name_of(kind), "arguments": encoded})
        return cast(Core, _Recorded(kind(**arguments), self))

    def call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of the core, and record its arguments and its result or exception."""
        name = method.__name__
        encoded = [
            encode(each) for each in arguments
        ]  # before the call, which may keep and change its arguments
        try:
            result = method(*arguments)
        except Exception as error:
            self._write({"call": name, "arguments": encoded, "raised": _describe(error)})
            raise
        if name in INPUTS or result is not None:
            self._write({"call": name, "arguments": encoded, "result": encode(result)})
        return result

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class _Recorded:
    """Proxy of a core that records the calls which change it."""

    def __init__(self, core: object, recorder: CallRecorder) -> None:
        self._core = core
        self._recorder = recorder

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._core, name)
        if name not in INPUTS + PULLS:
            return found

        def recorded(*arguments: Any) -> Any:
            return self._recorder.call(found, *arguments)

        self.__dict__[name] = recorded
        return recorded


def replay(path: Path, kind: Callable[..., Any]) -> int:
    """Make the recorded calls on a new core, and check that their results are the recorded ones.

    An incomplete last line is skipped.

    Args:
        path: the recording.
        kind: class of the core.

    Returns:
        Number of calls.

    Raises:
        ReplayDiffers: a result differs; the text names the first such line.
        Refused: the file is no recording of this format version and core.
    """
    lines = _lines(path)
    number, first = next(lines, (1, {}))
    _check_first_line(path, first, _name_of(kind))
    core = kind(**{key: decode(each) for key, each in first["arguments"].items()})
    for number, line in lines:  # ends with the number of calls plus 1, for the first line
        name = line.get("call")
        if name not in INPUTS + PULLS:
            raise Refused(
                f"{path}: line {number}: call {name!r}, expected one of {', '.join(INPUTS + PULLS)}"
            )
        outcome, expected = ("raised", line["raised"]) if "raised" in line else ("result", line["result"])
        try:
            arguments = [decode(each) for each in line["arguments"]]
        except (KeyError, ValueError, TypeError, DecodeError) as error:
            raise Refused(f"{path}: line {number}: {error}") from None
        try:
            replayed = {"result": encode(getattr(core, name)(*arguments))}
        except Exception as error:
            replayed = {"raised": _describe(error)}
        if replayed != {outcome: expected}:
            raise ReplayDiffers(
                f"{path}: line {number}: {name} returned {replayed}, recorded is {{{outcome!r}: {expected}}}"
            )
    return number - 1


def _check_first_line(path: Path, first: dict[str, Any], core: str) -> None:
    if "core" not in first:
        raise Refused(f"{path}: line 1: expected a recording, as a daemon's --record FILE writes it")
    version = first.get("recording", "1 or older (it has no version)")
    if version != FORMAT_VERSION:
        raise Refused(
            f"{path}: recording of format version {version}, this Tiermesh replays version {FORMAT_VERSION};"
            " record the run again with this version"
        )
    if first["core"] != core:
        raise Refused(f"{path}: line 1: core {first['core']!r}, expected a recording of {core}")


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the lines with their numbers, from 1."""
    with path.open() as file:
        for number, text in enumerate(file, 1):
            try:
                yield number, json.loads(text)
            except json.JSONDecodeError as error:
                if not text.endswith("\n"):
                    return
                raise Refused(f"{path}: line {number}: {error}; expected a JSON object") from None


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _name_of(kind: Any) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _type_named(name: str) -> Any:
    """Return a dataclass or named tuple of a loaded module; a recording can construct nothing else."""
    module, _, attribute = name.partition(":")
    found = getattr(sys.modules.get(module), attribute, None)
    if not isinstance(found, type) or not (dataclasses.is_dataclass(found) or hasattr(found, "_fields")):
        raise ValueError(f"{name!r} is no type of an input, effect or value of a core")
    return found


def encode(value: Any) -> Any:
    """Return plain data of inputs and effects as JSON values.

    Plain data is None, numbers, text, bytes, and tuples, lists, dicts, dataclasses, named tuples and protobuf messages
    of plain data. An exception, which only effects contain, becomes its text.

    Raises:
        TypeError: the value contains anything else.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, Message):
        data = base64.b64encode(value.SerializeToString(deterministic=True)).decode()
        return {"$message": value.DESCRIPTOR.full_name, "data": data}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"$type": _name_of(type(value)), **fields}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {"$type": _name_of(type(value)), **{key: encode(getattr(value, key)) for key in value._fields}}
    if isinstance(value, tuple):
        return {"$tuple": [encode(each) for each in value]}
    if isinstance(value, list):
        return [encode(each) for each in value]
    if isinstance(value, dict):
        # Sorted, since a protobuf map has no fixed order and may have another one after parsing.
        return {"$dict": [[encode(key), encode(value[key])] for key in sorted(value)]}
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, Exception):
        return {"$error": _describe(value)}
    raise TypeError(f"{type(value).__name__} can't be recorded: {value!r}")


def decode(value: Any) -> Any:
    """Return the data that `encode` encoded.

    Raises:
        ValueError, KeyError, TypeError, DecodeError: the value is not of `encode`'s format.
    """
    if isinstance(value, list):
        return [decode(each) for each in value]
    if not isinstance(value, dict):
        return value
    if "$message" in value:
        descriptor = descriptor_pool.Default().FindMessageTypeByName(value["$message"])
        return message_factory.GetMessageClass(descriptor).FromString(base64.b64decode(value["data"]))
    if "$type" in value:
        fields = {key: decode(each) for key, each in value.items() if key != "$type"}
        return _type_named(value["$type"])(**fields)
    if "$tuple" in value:
        return tuple(decode(each) for each in value["$tuple"])
    if "$dict" in value:
        return {decode(key): decode(each) for key, each in value["$dict"]}
    if "$bytes" in value:
        return base64.b64decode(value["$bytes"])
    return float(value["$float"])
