"""Tensors of one data stream between processes of the same host, which may read each other's memory.

When a data stream opens, its ends find out whether they can, and then send references to shared arrays
(tensors/shared_memory.py) instead of payloads. The client's metadata names a page of its memory (process id and
descriptor) and a token in that page. The server opens the page through /proc, which Linux allows to processes of
the same user only, and compares the token. It answers with a second token, readable in the page alone, and with a
page of its own. A client that can read that page copies the server's token into its own page. Each end shares only
after the other has proved that it sees the memory. In all other cases payloads stay in the messages.
"""

from __future__ import annotations

import hmac
import logging
import mmap
import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from protos.tensors_pb2 import Chunk, ChunkHeader, SharedPlaces
from services.errors import Refused
from services.protocol.checksums import ChecksumMismatch, set_checksum, verify_checksum
from services.tensors import chunk_messages
from services.tensors.chunk_messages import Message, TensorChunk, bytes_per_element
from services.tensors.layout import CHUNK_ELEMENTS
from services.tensors.layout_parts import Piece, make_piece_header
from services.tensors.shared_memory import MappedArray, NotShared, SharedArray, make_memory, open_memory
from services.transport.links import LinkClosed

log = logging.getLogger("tiermesh")

SHARED_MEMORY_KEY = "tiermesh-shared-memory"
"""gRPC metadata of a data stream: the client's offer, and in the initial metadata the server's answer."""
MAX_PLACES = 64
"""Chunks that one message may refer to."""
MAX_MAPPED_ARRAYS = 64
"""Arrays of a peer that stay mapped, those used last. It has one or a few for each running job."""

_PAGE_BYTES = 4096
_TOKEN_BYTES = 32
_OWNER_TOKEN, _SERVER_PROOF, _CLIENT_PROOF = (
    slice(start, start + _TOKEN_BYTES) for start in range(0, 3 * _TOKEN_BYTES, _TOKEN_BYTES)
)
_DECLINED = "no"
_NOTHING = np.empty(0, np.uint8)

Metadata = tuple[tuple[str, str], ...]


class TensorLink:
    """Tensors of one data stream, in shared memory or in messages.

    Args:
        peer: name of the peer, for the log.
        count: called with 1 when payloads begin to be shared, and with -1 when that ends.
    """

    def __init__(self, peer: str, count: Callable[[int], None]) -> None:
        self._peer = peer
        self._count = count
        self._peer_process = 0  # process id of the peer, if its memory can be read here
        self._page: mmap.mmap | None = None  # the client's page
        self._descriptor = -1  # of this end's page
        self._arrays: dict[int, MappedArray | None] = {}  # by identity, the one used last at the end
        self._counted = False
        self._has_checksums = False

    @property
    def shares(self) -> bool:
        """Whether the peer can read this process's memory, which `refer` requires."""
        return False

    def refer(
        self,
        header: ChunkHeader,
        array: SharedArray,
        sequence: int,
        indices: Sequence[int],
        positions: Sequence[int] = (),
    ) -> bytes:
        """Return the bytes of a `Chunk` message that refers to chunks in a shared array.

        Args:
            header: header of the first chunk. The others differ in index, offset and elements only. Losses and other
                values per micro-batch belong to chunk 0.
            array: array of this process.
            sequence: mark of the chunks in the array.
            indices: indices of at most `MAX_PLACES` chunks.
            positions: index in the array of each one's first element; none if all are at their chunks' places. With
                positions the first may be a piece of a chunk, and the others are full chunks.
        """
        places = SharedPlaces(
            identity=array.identity,
            descriptor=array.descriptor,
            sequence=sequence,
            indices=indices,
            positions=positions,
        )
        chunk = Chunk(header=header, shared=places)
        set_checksum(chunk.shared, chunk.header.SerializeToString())
        return chunk.SerializeToString()

    def deserialize(self, message: Message) -> list[TensorChunk]:
        """Return the chunks of a message; payloads are views of the message or of the peer's memory.

        A peer sends a checksum with all of its messages or with none. A message without one, after others that had
        one, is therefore what is left of a longer message.

        Raises:
            ValueError: the bytes are no `Chunk`.
            Refused: the message was damaged, or refers to memory without an agreement, or to none or too many chunks.
        """
        chunk = chunk_messages.deserialize_chunk(message)
        places, checked = None, chunk.checked
        if len(chunk.payload) == 0:
            parsed = Chunk.FromString(bytes(message))
            if parsed.HasField("shared"):
                places, checked = parsed.shared, _pop_checksum(parsed)
        if self._has_checksums and not checked:
            raise Refused(
                f"chunk {chunk.header.index}: its header has no crc32c, expected one as in the messages before: it was "
                "damaged"
            )
        self._has_checksums = checked
        return [chunk] if places is None else self._locate_chunks(chunk.header, places)

    def _locate_chunks(self, first: ChunkHeader, places: SharedPlaces) -> list[TensorChunk]:
        array = self.find_array(places, f"chunk {first.index}")
        if not 1 <= len(places.indices) <= MAX_PLACES:
            raise Refused(
                f"chunk {first.index}: shared memory: {len(places.indices)} places, expected 1 to {MAX_PLACES}"
            )
        if len(places.positions) not in (0, len(places.indices)):
            raise Refused(
                f"chunk {first.index}: shared memory: {len(places.positions)} positions, expected none or one for each "
                f"of {len(places.indices)} places"
            )
        if places.positions:
            return _at_positions(first, places, array)
        size = bytes_per_element(first.dtype)
        found = []
        for index in places.indices:
            payload = array.place(index) if array is not None else _NOTHING
            header = make_piece_header(first, Piece(index, index * CHUNK_ELEMENTS, payload.size // size))
            found.append(TensorChunk(header, payload.data, array, places.sequence, index))
        return found

    def find_array(self, places: SharedPlaces, what: str) -> MappedArray | None:
        """Return an array of the peer; None if it can't be mapped: that of a finished job may be gone already.

        Args:
            places: what the peer refers to.
            what: name of that, for errors.

        Raises:
            Refused: the ends have not agreed on shared memory.
        """
        if not self._peer_process:
            raise Refused(f"{what}: shared memory: not agreed on for this stream; send the payload")
        if places.identity in self._arrays:
            array = self._arrays.pop(places.identity)
        else:
            self._unmap_closed()
            array = self._map_array(places)
            if len(self._arrays) == MAX_MAPPED_ARRAYS:
                del self._arrays[next(iter(self._arrays))]
        self._arrays[places.identity] = array
        return array

    def _unmap_closed(self) -> None:
        """Unmap the arrays of jobs that are over: the last mapping keeps their memory."""
        for identity, array in list(self._arrays.items()):
            if array is not None and array.is_closed:
                del self._arrays[identity]

    def _map_array(self, places: SharedPlaces) -> MappedArray | None:
        try:
            return MappedArray(self._peer_process, places.descriptor, places.identity)
        except (OSError, NotShared) as error:
            log.warning("tensors of %s: an array in its memory can't be read here (%s)", self._peer, error)
            return None

    def _start_sharing(self) -> None:
        self._counted = True
        self._count(1)
        log.info("tensors of %s through shared memory", self._peer)

    def close(self) -> None:
        """Unmap the peer's memory at the end of the stream; views of it stay valid."""
        if self._counted:
            self._counted = False
            self._count(-1)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._peer_process = 0
        self._arrays.clear()


class ClientTensorLink(TensorLink):
    """The client's end: it offers its memory, in `metadata`.

    Args:
        peer: name of the peer, for the log.
        enabled: whether memory may be shared.
        count: see `TensorLink`.

    Attributes:
        metadata: the offer, as metadata of the call; empty for none.
    """

    def __init__(self, peer: str, *, enabled: bool, count: Callable[[int], None]) -> None:
        super().__init__(peer, count)
        self.metadata: Metadata = ()
        self._seen_by_peer = False
        if not enabled:
            log.info("tensors of %s over gRPC: shared memory is switched off", peer)
            return
        try:
            self._descriptor = make_memory(_PAGE_BYTES)
        except OSError as error:  # no memory left, not permitted, or not Linux
            log.warning("tensors of %s over gRPC: shared memory can't be created (%s)", peer, error)
            return
        self._page = mmap.mmap(self._descriptor, _PAGE_BYTES)
        self._page[_OWNER_TOKEN], self._page[_SERVER_PROOF] = (
            secrets.token_bytes(_TOKEN_BYTES) for _ in range(2)
        )
        self.metadata = (
            (SHARED_MEMORY_KEY, f"{os.getpid()} {self._descriptor} {self._page[_OWNER_TOKEN].hex()}"),
        )

    @property
    def shares(self) -> bool:
        """Whether the server has read this process's memory."""
        return self._seen_by_peer

    async def confirm(self, call: Any) -> None:
        """Read the server's answer from a call's initial metadata.

        Raises:
            LinkClosed: the server claims to see memory, but its token is wrong.
        """
        if self._page is not None:
            answer = _metadata_value(await call.initial_metadata() or ())
            if answer is None or answer == _DECLINED:
                reason = (
                    "the peer can't read this process's memory"
                    if answer
                    else "the peer does not answer the offer of shared memory"
                )
                log.info("tensors of %s over gRPC: %s", self._peer, reason)
                self.close()
            else:
                self._accept_answer(answer)

    def _accept_answer(self, answer: str) -> None:
        assert self._page is not None
        try:
            token, process, descriptor = answer.split(" ")
            peer_ids = int(process), int(descriptor)
        except ValueError:
            token, peer_ids = "", (0, 0)
        if not hmac.compare_digest(token.encode(), self._page[_SERVER_PROOF].hex().encode()):
            raise LinkClosed(
                "shared memory: the peer claims to read this process's memory, but its token is wrong"
            )
        self._seen_by_peer = True
        self._start_sharing()
        try:
            page = _open_page(*peer_ids)
        except (OSError, NotShared) as error:
            log.info("tensors from %s over gRPC: its memory can't be read here (%s)", self._peer, error)
            return
        self._peer_process = peer_ids[0]
        self._page[_CLIENT_PROOF] = page[_OWNER_TOKEN]

    def close(self) -> None:
        """Stop sharing at the end of the stream."""
        super().close()
        self._seen_by_peer = False


class ServerTensorLink(TensorLink):
    """The server's end: it opens the page that the call's metadata offers, and answers in `metadata`.

    Args:
        peer: name of the peer, for the log.
        invocation_metadata: metadata of the call.
        enabled: whether memory may be shared.
        count: see `TensorLink`.

    Attributes:
        metadata: the answer, as initial metadata of the call.

    Raises:
        Refused: the offer can't be parsed.
    """

    def __init__(
        self,
        peer: str,
        invocation_metadata: Iterable[tuple[str, Any]] | None,
        *,
        enabled: bool,
        count: Callable[[int], None] = lambda _: None,
    ) -> None:
        super().__init__(peer, count)
        self.metadata: Metadata = ((SHARED_MEMORY_KEY, _DECLINED),)
        self._own_token = secrets.token_bytes(_TOKEN_BYTES)
        offer = _metadata_value(invocation_metadata or ())
        if offer is None:
            log.info("tensors of %s over gRPC: the peer offers no shared memory", peer)
            return
        process, descriptor, token = _parse_offer(offer)
        if not enabled:
            log.info("tensors of %s over gRPC: shared memory is switched off", peer)
            return
        try:
            page = _open_page(process, descriptor)
            if not hmac.compare_digest(page[_OWNER_TOKEN], token):
                raise NotShared("another process's memory")
            self._descriptor = make_memory(_PAGE_BYTES)
            os.pwrite(self._descriptor, self._own_token, 0)
        except (OSError, NotShared) as error:
            log.info("tensors of %s over gRPC: its memory can't be read here (%s)", peer, error)
            return
        self._page, self._peer_process = page, process
        self.metadata = (
            (SHARED_MEMORY_KEY, f"{page[_SERVER_PROOF].hex()} {os.getpid()} {self._descriptor}"),
        )
        self._start_sharing()

    @property
    def shares(self) -> bool:
        """Whether the client has read this process's memory: its page then has the token."""
        return self._page is not None and self._page[_CLIENT_PROOF] == self._own_token

    def close(self) -> None:
        """Stop sharing at the end of the stream."""
        super().close()
        self._page = None


def _at_positions(first: ChunkHeader, places: SharedPlaces, array: MappedArray | None) -> list[TensorChunk]:
    """Return chunks that are at positions of their own; a payload is short if the array ends within it."""
    size = bytes_per_element(first.dtype)
    found: list[TensorChunk] = []
    for index, position in zip(places.indices, places.positions, strict=True):
        offset, elements = index * CHUNK_ELEMENTS, CHUNK_ELEMENTS
        if not found:
            offset, elements = first.offset, first.elements
        payload, place = _NOTHING, 0
        if array is not None:
            start = position * size
            payload, place = array.payload[start : start + elements * size], array.chunk_at(start)
        header = make_piece_header(first, Piece(index, offset, elements))
        found.append(TensorChunk(header, payload.data, array, places.sequence, place))
    return found


def _pop_checksum(referring: Chunk) -> bool:
    """Check a reference's checksum and remove it from the message; return whether there was one."""
    places = referring.shared
    try:
        return verify_checksum(places, referring.header.SerializeToString() + places.SerializeToString())
    except ChecksumMismatch as damaged:
        raise Refused(
            f"chunk {referring.header.index}: shared memory: the reference was damaged: {damaged}"
        ) from None


def _open_page(process: int, descriptor: int) -> mmap.mmap:
    opened = open_memory(process, descriptor, os.O_RDWR)
    try:
        if os.fstat(opened).st_size != _PAGE_BYTES:
            raise NotShared("memory of another size")
        return mmap.mmap(opened, _PAGE_BYTES)
    finally:
        os.close(opened)


def _metadata_value(metadata: Iterable[tuple[str, Any]]) -> str | None:
    return next((str(value) for key, value in metadata if key == SHARED_MEMORY_KEY), None)


def _parse_offer(offer: str) -> tuple[int, int, bytes]:
    parts = offer.split(" ")
    try:
        process, descriptor = (int(part) for part in parts[:-1] if part.isascii() and part.isdigit())
        token = bytes.fromhex(parts[-1])
        if len(parts) != 3 or len(token) != _TOKEN_BYTES:
            raise ValueError
    except ValueError:
        raise Refused(
            f"metadata {SHARED_MEMORY_KEY}: {offer[:100]!r}, expected a process id, a descriptor and a token; omit "
            "it to send payloads in the messages"
        ) from None
    return process, descriptor, token
