"""Messages between a worker's daemon and its compute process, over a socket (docs/internals/compute-protocol.md)."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Sequence
from typing import Generic, TypeVar

from google.protobuf.message import DecodeError, Message

from protos.compute_pb2 import FromProcess, ToProcess
from services.errors import Failed
from services.protocol.file_refs import MAX_TEXT_BYTES

PROTOCOL_VERSION = 1
"""Version of protos/compute.proto. It changes with any change that the other end would misunderstand."""

MAX_MESSAGE_BYTES = 2 * MAX_TEXT_BYTES
"""Size of the largest message: the files that describe a model, or its layout."""

MEMORIES = 3
"""Number of descriptors that come with UseMemory."""

_SIZE = struct.Struct("<I")

Sent = TypeVar("Sent", bound=Message)
Received = TypeVar("Received", bound=Message)


class ChannelEnded(Exception):
    """The other end has closed its socket, or has died."""


class Channel(Generic[Sent, Received]):
    """One end of the socket pair. One thread uses it.

    Args:
        end: the socket.
        received: type of the messages that the other end sends.
        max_descriptors: number of descriptors that a message may bring; the kernel closes those beyond it.
    """

    def __init__(self, end: socket.socket, received: type[Received], max_descriptors: int = 0) -> None:
        self._end = end
        self._received = received
        self._max_descriptors = max_descriptors

    def send(self, message: Sent, descriptors: Sequence[int] = ()) -> None:
        """Send a message, and open files with it.

        Raises:
            ChannelEnded: the other end is gone.
            Failed: the message is too large.
        """
        data = frame(message)
        try:
            if descriptors:
                data = data[socket.send_fds(self._end, [data], descriptors) :]
            self._end.sendall(data)
        except OSError as error:
            raise ChannelEnded(error.strerror) from None

    def receive(self) -> tuple[Received, list[int]]:
        """Wait for the next message; return it with the descriptors that came with it, which the caller closes.

        Raises:
            ChannelEnded: the other end is gone.
            ValueError: the bytes are no message, or too many.
        """
        descriptors: list[int] = []
        try:
            head = self._receive_exactly(_SIZE.size, descriptors)
            (size,) = _SIZE.unpack(head)
            if size > MAX_MESSAGE_BYTES:
                raise ValueError(f"a message of {size} bytes, expected at most {MAX_MESSAGE_BYTES}")
            content = self._receive_exactly(size, descriptors)
            return self._received.FromString(content), descriptors
        except DecodeError:
            close_all(descriptors)
            raise ValueError(f"bytes that are no {self._received.__name__}") from None
        except BaseException:
            close_all(descriptors)
            raise

    def _receive_exactly(self, size: int, descriptors: list[int]) -> bytes:
        content = bytearray(size)
        view, have = memoryview(content), 0
        while have < size:
            try:
                if self._max_descriptors:
                    part, found, _, _ = socket.recv_fds(self._end, size - have, self._max_descriptors)
                    descriptors += found
                    view[have : have + len(part)] = part
                    count = len(part)
                else:
                    count = self._end.recv_into(view[have:])
            except OSError as error:
                raise ChannelEnded(error.strerror) from None
            if not count:
                raise ChannelEnded("closed")
            have += count
        return bytes(content)

    def close(self) -> None:
        """Close this end, which the other end is told."""
        self._end.close()


def frame(message: Message) -> bytes:
    """Return a message's bytes on the socket.

    Raises:
        Failed: the message is too large.
    """
    content = message.SerializeToString()
    if len(content) > MAX_MESSAGE_BYTES:
        raise Failed(
            f"{type(message).__name__}: {len(content)} bytes, expected at most {MAX_MESSAGE_BYTES}; "
            "make the model's layout or files smaller"
        )
    return _SIZE.pack(len(content)) + content


DaemonChannel = Channel[ToProcess, FromProcess]
ProcessChannel = Channel[FromProcess, ToProcess]


def close_all(descriptors: Sequence[int]) -> None:
    """Close descriptors."""
    for each in descriptors:
        os.close(each)
