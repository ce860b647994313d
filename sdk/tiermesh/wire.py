"""Messages of `protos/compute.proto` in protobuf's wire format, and the socket on which a worker's daemon speaks them.

A message is a dict: numbers, texts and lists by field name, other messages as dicts. One table says which field has
which number and type. Fields that are not in the table are skipped, so the daemon may be of a newer version.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable, Mapping
from typing import Any

from tiermesh.errors import NotAllowed, TiermeshError, Unreachable, error_of

VERSION = 1
"""Version of the protocol."""

MAX_MESSAGE_BYTES = 128 << 20
"""Size of the largest message."""

MEMORIES = 3
"""Number of descriptors that come with UseMemory."""

CONNECT_SECONDS = 10.0
"""Longest wait for a connection."""

SEND_SECONDS = 60.0
"""Longest wait until the daemon takes a message, which it reads at once unless it hangs."""

Message = dict[str, Any]

_SCHEMA = """
ToProcess: 1 call uint; 2 open_job OpenJob; 3 use_memory Empty; 4 load_weights LoadWeights;
    5 make_weights Empty; 6 describe_model Empty; 7 compute_gradients ComputeGradients;
    8 evaluate_batch EvaluateBatch; 10 close_job Empty; 11 answer Answer; 12 refused Refused; 13 finished Empty
FromProcess: 1 call uint; 2 hello Hello; 3 mesh_opened MeshOpened; 4 gradient_ready GradientReady;
    5 gradient_done GradientDone; 6 non_finite NonFinite; 7 pass_ended PassEnded; 10 need_weights NeedWeights;
    11 begin_gradient BeginGradient; 14 done Empty; 15 job_built JobBuilt; 16 model_described Empty;
    17 gradients_computed Empty; 18 batch_evaluated BatchEvaluated; 20 failed Failed
Empty:
Hello: 1 version uint; 2 job text; 3 name text
OpenJob: 1 job text; 2 spec_json text
MeshOpened: 1 rows uint; 2 columns uint; 3 backend text; 4 arch text; 5 board text
JobBuilt: 1 layout_json text; 2 ranges Range*; 3 all_ranges uint; 4 loaded uint*; 5 element_bytes uint;
    8 evaluation_batches uint; 9 tokens_per_micro_batch uint; 11 fingerprint map
Range: 1 index uint; 2 start uint; 3 stop uint
LoadWeights: 1 is_new bool; 2 entries uint
ComputeGradients: 1 step uint; 2 first uint; 3 count uint
NeedWeights: 1 entry uint
BeginGradient: 1 range uint; 2 micro_batch uint
GradientReady: 1 offset uint
GradientDone: 1 loss double?; 2 count uint; 3 non_finite text
NonFinite: 1 micro_batch uint; 2 parameter text
PassEnded: 1 is_backward bool; 2 began_seconds double; 3 ended_seconds double
Answer: 1 abandon bool
EvaluateBatch: 1 index uint
BatchEvaluated: 1 loss double?; 2 rows uint
Failed: 1 kind uint; 2 reason text
Refused: 1 reason text; 2 field text; 3 value text; 4 expected text; 5 fix text
Pair: 1 key text; 2 value text
"""
# Number, name and type of each field: uint, bool, text, double, or a message. `?` has presence, `*` is repeated. A map
# is from text to text.

TABLE: Mapping[str, Mapping[int, tuple[str, str]]] = {
    message: {
        int(number): (name, kind)
        for number, name, kind in (field.split() for field in fields.split(";") if field)
    }
    for message, fields in (line.split(":") for line in _SCHEMA.replace("\n   ", "").split("\n") if line)
}

_VARINT, _EIGHT_BYTES, _SIZED, _FOUR_BYTES = 0, 1, 2, 5
_WIRE_TYPES = {"uint": _VARINT, "bool": _VARINT, "double": _EIGHT_BYTES}
_DEFAULTS: Mapping[str, Any] = {"uint": 0, "bool": False, "text": ""}
_DOUBLE = struct.Struct("<d")
_FRAME = struct.Struct("<I")


def encode(kind: str, message: Mapping[str, Any]) -> bytes:
    """Return the bytes of a message to the daemon. Fields that are missing, None or zero are left out."""
    out = bytearray()
    for number, (name, field) in TABLE[kind].items():
        value = message.get(name)
        if value is None:
            continue
        if field == "map":
            field, value = "Pair*", [{"key": key, "value": text} for key, text in value.items()]
        if field == "uint*":
            parts = [_sized(b"".join(map(_varint, value)))] if value else []
        elif field.endswith("*"):
            parts = [_encode_value(field[:-1], each) for each in value]
        else:
            is_sent = value or field in TABLE or field.endswith("?")
            parts = [_encode_value(field.rstrip("?"), value)] if is_sent else []
        for part in parts:
            out += _varint(number << 3 | _WIRE_TYPES.get(field.rstrip("?"), _SIZED)) + part
    return bytes(out)


def decode(kind: str, content: bytes) -> Message:
    """Return a message of the daemon's, with all fields but messages that it has not. None of them is repeated.

    Raises:
        ValueError: the bytes are no message.
    """
    fields = TABLE[kind]
    message: Message = {name: _DEFAULTS[field] for name, field in fields.values() if field in _DEFAULTS}
    at = 0
    while at < len(content):
        tag, at = _read_varint(content, at)
        value, at = _read_value(tag & 7, content, at)
        if not tag >> 3:
            raise ValueError("a field of number 0")
        name, field = fields.get(tag >> 3, ("", ""))
        if not field or tag & 7 != _WIRE_TYPES.get(field, _SIZED):
            continue
        if field == "text":
            value = value.decode()
        elif field in TABLE:
            value = decode(field, value)
        message[name] = bool(value) if field == "bool" else value
    return message


def _encode_value(field: str, value: Any) -> bytes:
    if field in ("uint", "bool"):
        return _varint(value)
    if field == "double":
        return _DOUBLE.pack(value)
    return _sized(value.encode() if field == "text" else encode(field, value))


def _read_value(wire_type: int, content: bytes, at: int) -> tuple[Any, int]:
    """Return a value that is not interpreted yet, and the place after it."""
    if wire_type == _VARINT:
        return _read_varint(content, at)
    if wire_type == _SIZED:
        size, at = _read_varint(content, at)
    elif wire_type in (_EIGHT_BYTES, _FOUR_BYTES):
        size = 8 if wire_type == _EIGHT_BYTES else 4
    else:
        raise ValueError(f"a field of wire type {wire_type}")
    if size > len(content) - at:
        raise ValueError(f"a field of {size} bytes where {len(content) - at} are left")
    return content[at : at + size], at + size


def _read_varint(content: bytes, at: int) -> tuple[int, int]:
    number = 0
    for place, byte in enumerate(content[at : at + 10]):
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number & 0xFFFF_FFFF_FFFF_FFFF, at + place + 1
    raise ValueError("a number without an end")


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


def _sized(content: bytes) -> bytes:
    return _varint(len(content)) + content


class Channel:
    """A connection to a worker's daemon. One thread at a time uses it.

    Args:
        end: the socket.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def send(self, message: Message) -> None:
        """Send a FromProcess.

        Raises:
            Unreachable: the daemon has ended, or does not read.
        """
        content = encode("FromProcess", message)
        self._end.settimeout(SEND_SECONDS)
        try:
            self._end.sendall(_FRAME.pack(len(content)) + content)
        except TimeoutError:
            raise _gone(f"has read nothing for {SEND_SECONDS:g} s") from None
        except OSError:
            raise _gone("has ended") from None

    def receive(self) -> tuple[Message, list[int]]:
        """Wait for the next ToProcess; return it with the descriptors that came with it, which the caller closes.

        Raises:
            Unreachable: the daemon has ended, or has sent what is no message.
        """
        descriptors: list[int] = []
        self._end.settimeout(None)  # the cluster may have no work for long
        try:
            (size,) = _FRAME.unpack(self._receive_exactly(_FRAME.size, descriptors))
            if size > MAX_MESSAGE_BYTES:
                raise ValueError(f"a message of {size} bytes, expected at most {MAX_MESSAGE_BYTES}")
            return decode("ToProcess", self._receive_exactly(size, descriptors)), descriptors
        except ValueError as error:  # a text that is no UTF-8 is one, too
            close_all(descriptors)
            raise _gone(f"has sent what is no message: {error}") from None
        except OSError:
            close_all(descriptors)
            raise _gone("has ended") from None
        except BaseException:
            close_all(descriptors)
            raise

    def _receive_exactly(self, size: int, descriptors: list[int]) -> bytes:
        content = bytearray()
        while len(content) < size:
            part, found, _, _ = socket.recv_fds(self._end, min(size - len(content), 1 << 20), MEMORIES)
            descriptors += found
            if not part:
                raise ConnectionResetError
            content += part
        return bytes(content)

    def close(self) -> None:
        """Close this process's end. The daemon learns of it once no fork has it open."""
        self._end.close()


def connect(path: str | os.PathLike[str]) -> Channel:
    """Connect to the socket of a worker's daemon.

    Raises:
        Refused: it is no socket.
        NotAllowed: this user may not use it.
        Unreachable: no daemon listens there, or too many processes wait.
    """
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    end.settimeout(CONNECT_SECONDS)
    where = os.fspath(path)
    try:
        end.connect(where)
    except OSError as error:
        end.close()
        raise _not_connected(where, error) from None
    return Channel(end)


def _not_connected(where: str, error: OSError) -> TiermeshError:
    expected = "the socket of a running `tiermesh worker --external`"
    if isinstance(error, PermissionError):
        fix = "ask the operator of the worker for --allow-user"
        problem = error_of("socket_path", where, "a socket that this user may use", fix)
        return NotAllowed(str(problem), field="socket_path", value=where, expected=problem.expected, fix=fix)
    if isinstance(error, (FileNotFoundError, ConnectionRefusedError, TimeoutError)):
        why = {FileNotFoundError: "does not exist", ConnectionRefusedError: "nobody listens"}
        fix = "start the worker, or correct the path"
        return Unreachable(
            f"socket_path: {where!r}: {why.get(type(error), f'no answer in {CONNECT_SECONDS:g} s')}, "
            f"expected {expected}; {fix}",
            field="socket_path",
            value=where,
            expected=expected,
            fix=fix,
        )
    return error_of("socket_path", where, f"{expected} ({error.strerror or error})", "correct the path")


def _gone(how: str) -> Unreachable:
    fix = "join again once it runs; see its log"
    return Unreachable(f"the worker's daemon {how}; {fix}", fix=fix)


def close_all(descriptors: Iterable[int]) -> None:
    """Close descriptors."""
    for each in descriptors:
        os.close(each)
