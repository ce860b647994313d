"""Finds out, when a data stream opens, whether both ends may share memory; if so, payloads go through it.

Whoever connects makes the memory: a memfd, which no folder holds and the kernel takes back when the last process that
has it open is gone, however it went. Its metadata says where (process id, descriptors) and shows a token that the
memory holds. The server opens it through /proc, which the kernel allows to processes of the same user alone that see
each other, holds the token against it, and answers with a second token, which is known from inside the memory alone.
Anything else, and the payloads stay in the messages.
"""

from __future__ import annotations

import asyncio
import fcntl
import hmac
import logging
import mmap
import os
import secrets
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from protos.tensors_pb2 import Chunk
from services.errors import Refused
from services.streams import LinkClosed
from services.tensors import wire
from services.tensors.shared import DOWN_SLOTS, SLOT_BYTES, UP_SLOTS, SlotReceiver, SlotSender
from services.tensors.wire import TensorChunk

log = logging.getLogger("tiermesh")

SHARED_MEMORY_KEY = "tiermesh-shared-memory"
"""gRPC metadata of a data stream: the caller's offer, and in the initial metadata the answer to it."""
MEMORY_BYTES = 4096 + (UP_SLOTS + DOWN_SLOTS) * SLOT_BYTES
"""Of one stream: a page of tokens and counters, the caller's ring, the server's ring."""
PROC = Path("/proc")

_NAME = "tiermesh"
_TOKEN_BYTES = 32
_COUNTERS_START, _DATA_START = 1024, 4096
_DECLINED = "no"

Metadata = tuple[tuple[str, str], ...]


class TensorLink:
    """Tensors of one data stream: through shared memory if its ends agreed on it, else in the messages.

    Args:
        count: called with 1 when payloads begin to go through shared memory, with -1 when that is over.

    Attributes:
        sender: once the peer is known to see the memory.
        receiver: once the peer may put payloads into the memory.
    """

    def __init__(self, count: Callable[[int], None]) -> None:
        self.sender: SlotSender | None = None
        self.receiver: SlotReceiver | None = None
        self._count = count

    async def free_slot(self) -> int | None:
        """Where `serialize` shall put the next payload; waits for a slot. None: into the message.

        Raises:
            LinkClosed: the peer broke the rules of the ring.
        """
        return None if self.sender is None else await self.sender.free_slot()

    def serialize(self, chunk: TensorChunk, slot: int | None) -> bytes:
        """The bytes of a `Chunk` message, after `free_slot`; the only copy of the payload. On any thread."""
        if self.sender is None or slot is None:
            return wire.serialize(chunk)
        return self.sender.put(chunk, slot)

    def deserialize(self, message: bytes) -> TensorChunk:
        """The chunk of a message; its payload is a view of the message or of the memory.

        Raises:
            ValueError: the bytes are no `Chunk`.
            Refused: it refers to memory that isn't shared, or not to a whole payload there.
        """
        chunk = wire.deserialize(message)
        if len(chunk.payload) == 0:
            shared = Chunk.FromString(message)
            if shared.HasField("shared"):
                if self.receiver is None:
                    raise Refused(
                        f"chunk {chunk.header.index}: shared memory: none was agreed on; send the payload"
                    )
                return self.receiver.take(chunk.header, shared.shared)
        return chunk

    def unshared(self, message: bytes) -> bytes:
        """A message as it would have come without shared memory, for those who keep it.

        Raises:
            ValueError, Refused: as `deserialize`.
        """
        chunk = self.deserialize(message)
        return wire.serialize(wire.with_checksum(chunk)) if chunk.shared else message

    def close(self) -> None:
        """The stream is over: let go of the memory; the last payload that is viewed frees it."""
        if self.sender is not None:
            self._count(-1)
        for end in (self.sender, self.receiver):
            if end is not None:
                end.close()
        self.sender = self.receiver = None


class OfferedLink(TensorLink):
    """The caller's end. It makes the memory, and says so in `metadata`.

    Args:
        peer: for the log.
        enabled: whether memory is to be offered at all.
        count: see `TensorLink`.
    """

    def __init__(self, peer: str, *, enabled: bool, count: Callable[[int], None]) -> None:
        super().__init__(count)
        self._peer = peer
        self._memory = -1
        self._offered: SlotSender | None = None
        self._answer = ""
        self.metadata: Metadata = ()
        if not enabled:
            log.info("tensors of %s over gRPC: shared memory is switched off", peer)
            return
        try:
            self.metadata = ((SHARED_MEMORY_KEY, self._make()),)
        except (OSError, AttributeError) as error:  # full or forbidden; not Linux
            log.warning("tensors of %s over gRPC: no shared memory can be made here (%s)", peer, error)
            self.close()

    def _make(self) -> str:
        self._memory = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.fchmod(self._memory, 0o600)
        os.ftruncate(self._memory, MEMORY_BYTES)
        # Now or never: a page that can't be had later would be a bus error in the middle of a copy.
        os.posix_fallocate(self._memory, 0, MEMORY_BYTES)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(self._memory, fcntl.F_ADD_SEALS, seals)
        shown, answer = secrets.token_bytes(_TOKEN_BYTES), secrets.token_bytes(_TOKEN_BYTES)
        os.pwrite(self._memory, shown + answer, 0)
        self._answer = answer.hex()
        (up_slots, up_sequences), (down_slots, down_sequences) = _rings(self._memory)
        returned, peers = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.close(peers)  # the server opens its own, and its end is then seen
        self._offered = SlotSender(up_slots, up_sequences, returned)
        peers, returning = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.close(peers)
        self.receiver = SlotReceiver(down_slots, down_sequences, returning)
        return f"{os.getpid()} {self._memory} {returned} {returning} {shown.hex()}"

    async def confirm(self, call: Any) -> None:
        """Take the server's answer from a call's initial metadata, then wait until cancelled: ends with the stream.

        Raises:
            LinkClosed: the server claims to share memory that it has not seen.
        """
        if self._offered is not None:
            answer = _value(await call.initial_metadata() or ())
            if answer is None or answer == _DECLINED:
                said = (
                    "it does not see this process's memory"
                    if answer
                    else "it does not answer the offer of memory"
                )
                log.info("tensors of %s over gRPC: %s", self._peer, said)
                self.close()
            elif not hmac.compare_digest(answer.encode(), self._answer.encode()):
                raise LinkClosed("shared memory: the peer says that it sees memory which it does not")
            else:
                log.info("tensors of %s through shared memory", self._peer)
                self.sender, self._offered = self._offered, None
                self._count(1)
                self._forget()
        await asyncio.Event().wait()

    def close(self) -> None:
        """The stream is over."""
        super().close()
        self._forget()
        if self._offered is not None:
            self._offered.close()
            self._offered = None

    def _forget(self) -> None:
        if self._memory >= 0:
            os.close(self._memory)  # it stays mapped
            self._memory = -1


class AcceptedLink(TensorLink):
    """The server's end. It opens the memory that the call's metadata offers, if it may; `metadata` is the answer.

    Args:
        peer: for the log.
        invocation_metadata: of the call.
        enabled: whether memory may be shared at all.
        count: see `TensorLink`.

    Raises:
        Refused: the offer is not understood.
    """

    def __init__(
        self,
        peer: str,
        invocation_metadata: Iterable[tuple[str, Any]] | None,
        *,
        enabled: bool,
        count: Callable[[int], None] = lambda _: None,
    ) -> None:
        super().__init__(count)
        self.metadata: Metadata = ((SHARED_MEMORY_KEY, _DECLINED),)
        offer = _value(invocation_metadata or ())
        if offer is None:
            log.info("tensors of %s over gRPC: it offers no shared memory", peer)
            return
        numbers, token = _parse(offer)
        if not enabled:
            log.info("tensors of %s over gRPC: shared memory is switched off", peer)
            return
        try:
            answer = self._open(*numbers, token)
        except (OSError, AttributeError, _NotShared) as error:
            log.info("tensors of %s over gRPC: its memory can't be seen here (%s)", peer, error)
            self.close()
            return
        log.info("tensors of %s through shared memory", peer)
        self._count(1)
        self.metadata = ((SHARED_MEMORY_KEY, answer),)

    def _open(self, process: int, memory: int, to_caller: int, from_caller: int, token: bytes) -> str:
        opened = _open_of(process, memory, f"/memfd:{_NAME} ", os.O_RDWR)
        try:
            if not stat.S_ISREG(os.fstat(opened).st_mode):
                raise _NotShared("not a memory file")
            # Whoever could shorten it could make this process read past its end.
            if fcntl.fcntl(opened, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK == 0:
                raise _NotShared("memory that can be shortened")
            if os.fstat(opened).st_size != MEMORY_BYTES:
                raise _NotShared("memory of another size")
            tokens = os.pread(opened, 2 * _TOKEN_BYTES, 0)
            if not hmac.compare_digest(tokens[:_TOKEN_BYTES], token):
                raise _NotShared("another process's memory")
            (up_slots, up_sequences), (down_slots, down_sequences) = _rings(opened)
        finally:
            os.close(opened)
        self.receiver = SlotReceiver(
            up_slots, up_sequences, _open_of(process, to_caller, "pipe:", os.O_WRONLY)
        )
        self.sender = SlotSender(
            down_slots, down_sequences, _open_of(process, from_caller, "pipe:", os.O_RDONLY)
        )
        return tokens[_TOKEN_BYTES:].hex()


class _NotShared(Exception):
    """What was found is not the memory that was offered."""


def _open_of(process: int, descriptor: int, kind: str, flags: int) -> int:
    """Open what another process of this user has open, if it is of that kind."""
    path = PROC / str(process) / "fd" / str(descriptor)
    if not str(path.readlink()).startswith(kind):
        raise _NotShared(f"no {kind.strip()} there")
    opened = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    if os.fstat(opened).st_uid != os.geteuid():
        os.close(opened)
        raise _NotShared("another user's")
    return opened


def _rings(memory: int) -> list[tuple[Any, Any]]:
    """Slots and sequence numbers, of the caller's ring and of the server's; the arrays keep the memory mapped."""
    mapped = mmap.mmap(memory, MEMORY_BYTES)
    both = UP_SLOTS + DOWN_SLOTS
    counters = np.frombuffer(mapped, np.uint64, both, _COUNTERS_START)
    slots = np.frombuffer(mapped, np.uint8, both * SLOT_BYTES, _DATA_START).reshape(both, SLOT_BYTES)
    return [(slots[:UP_SLOTS], counters[:UP_SLOTS]), (slots[UP_SLOTS:], counters[UP_SLOTS:])]


def _value(metadata: Iterable[tuple[str, Any]]) -> str | None:
    return next((str(value) for key, value in metadata if key == SHARED_MEMORY_KEY), None)


def _parse(offer: str) -> tuple[tuple[int, int, int, int], bytes]:
    parts = offer.split(" ")
    try:
        process, memory, to_caller, from_caller = (
            int(part) for part in parts[:-1] if part.isascii() and part.isdigit()
        )
        token = bytes.fromhex(parts[-1])
        if len(parts) != 5 or len(token) != _TOKEN_BYTES:
            raise ValueError
    except ValueError:
        raise Refused(
            f"metadata {SHARED_MEMORY_KEY}: {offer[:100]!r}, expected a process id, three descriptors and a token; "
            "leave it out to send payloads in the messages"
        ) from None
    return (process, memory, to_caller, from_caller), token
