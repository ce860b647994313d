"""Records what a core was asked and what it answered, one JSON line a call, and replays it.

A core is a pure state machine, so a recorded run of a daemon replays to the same effects in another process, with no
network, clock or disk: `make_core(AggregatorCore, path, ...)` in the daemon, `replay(path, AggregatorCore)` later.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from services.errors import Refused, TiermeshError

Core = TypeVar("Core")

INPUTS = ("handle",)
"""Methods that take an input and return effects."""
PULLS = ("next_weights", "next_chunk")
"""Methods that hand out what is next, counted as sent. One that gives None has changed nothing and is not recorded."""


class ReplayDiffers(TiermeshError):
    """A replayed call gave something else than the recorded one."""


def make_core(kind: Callable[..., Core], record: Path | None, **arguments: Any) -> Core:
    """A core, built with these arguments; with a path its calls are recorded there.

    Raises:
        Refused: the file can't be written.
    """
    return CallRecorder(record).make(kind, **arguments) if record is not None else kind(**arguments)


class CallRecorder:
    """Writes one core's calls to a file; each line is written at once, so that kill -9 loses at most the last.

    Raises:
        Refused: the file can't be written.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("w")
        except OSError as error:
            raise Refused(f"--record {path}: {error.strerror}; expected a file that can be written") from None

    def make(self, kind: Callable[..., Core], **arguments: Any) -> Core:
        """A core whose calls are recorded from its first on."""
        self._write(
            {"core": _name_of(kind), "arguments": {key: encode(each) for key, each in arguments.items()}}
        )
        return cast(Core, _Recorded(kind(**arguments), self))

    def call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of the core, and write down what went in and what came out."""
        name = method.__name__
        encoded = [encode(each) for each in arguments]  # before the call: a core may keep what it is given
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
    """Stands in for a core: calls that change it are recorded, everything else is its own."""

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
    """Make the recorded calls on a fresh core of this kind; returns how many there were.

    A last line that was cut off is passed over.

    Raises:
        ReplayDiffers: a call gave something else; the text names the first such line.
        Refused: this is no record of such a core.
    """
    lines = _lines(path)
    number, first = next(lines, (1, {}))
    if first.get("core") != _name_of(kind):
        raise Refused(f"{path}: line 1: core {first.get('core')!r}, expected a record of {_name_of(kind)}")
    core = kind(**{key: decode(each) for key, each in first["arguments"].items()})
    for number, line in lines:  # the last line's number is that of the calls, and one more
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
            came = {"result": encode(getattr(core, name)(*arguments))}
        except Exception as error:
            came = {"raised": _describe(error)}
        if came != {outcome: expected}:
            raise ReplayDiffers(
                f"{path}: line {number}: {name} gave {came}, recorded is {{{outcome!r}: {expected}}}"
            )
    return number - 1


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Numbered lines, from 1."""
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
    """A dataclass or named tuple of a module that is loaded: a record makes nothing else."""
    module, _, attribute = name.partition(":")
    found = getattr(sys.modules.get(module), attribute, None)
    if not isinstance(found, type) or not (dataclasses.is_dataclass(found) or hasattr(found, "_fields")):
        raise ValueError(f"{name!r} names no input, effect or value of a core")
    return found


def encode(value: Any) -> Any:
    """Plain data of inputs and effects, as JSON values.

    Raises:
        TypeError: it holds something else than None, numbers, text, bytes, tuples, lists, dicts, dataclasses, named
            tuples and protobuf messages.
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
        # Sorted: a protobuf map has no order of its own, and another one after it was read back.
        return {"$dict": [[encode(key), encode(value[key])] for key in sorted(value)]}
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    raise TypeError(f"{type(value).__name__} can't be recorded: {value!r}")


def decode(value: Any) -> Any:
    """From what `encode` gave.

    Raises:
        ValueError, KeyError, TypeError, DecodeError: it gave no such thing.
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
