"""Payloads through memory that both ends of a data stream have mapped: one ring of slots per direction.

The sender copies a payload into a free slot and sends a message that refers to it; the receiver views it there and
gives the slot back, through a pipe, when nobody views it any more. The message, which the kernel carries, is what
orders the memory: nothing in it is waited for. Slots are 1 MiB, as payloads are, and few: a sender without a free one
waits.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref

import numpy as np
from numpy.typing import NDArray

from protos.tensors_pb2 import Chunk, ChunkHeader, SharedSlot
from services.errors import Refused
from services.plan import WINDOW_CHUNKS
from services.streams import LinkClosed
from services.tensors.layout import CHUNK_ELEMENTS
from services.tensors.wire import TensorChunk

UP_SLOTS = WINDOW_CHUNKS
"""From whoever connected: an aggregator keeps payloads until their siblings are there, a window of them."""
DOWN_SLOTS = 8
"""To whoever connected: weights are taken as they come."""
SLOT_BYTES = 4 * CHUNK_ELEMENTS
"""The longest payload: a chunk in float32."""
FLOWING_SLOTS = 4
"""Slots of a ring that are not kept by a receiver that keeps payloads (it gets copies), so that no ring can lock up."""


class SlotSender:
    """The sending end of one direction.

    Args:
        slots: [slots, SLOT_BYTES] uint8, shared.
        sequences: [slots] uint64, shared: of the whole payload in each slot; 0 while it is being written.
        returned: pipe from the receiver, not blocking: a byte per slot given back. It is closed with this object.
    """

    def __init__(self, slots: NDArray[np.uint8], sequences: NDArray[np.uint64], returned: int) -> None:
        self._slots = slots
        self._sequences = sequences
        self._returned = returned
        self._free = list(range(len(slots)))
        self._sequence = 0

    async def free_slot(self) -> int:
        """A slot to `put` the next payload into; waits for one.

        Raises:
            LinkClosed: the receiver gave back what it did not have.
        """
        while not self._free:
            if not self._collect():
                await self._readable()
        return self._free.pop()

    def put(self, chunk: TensorChunk, slot: int) -> bytes:
        """Copy a payload into a slot; returns the bytes of the `Chunk` message that refers to it. On any thread."""
        payload = np.frombuffer(chunk.payload, np.uint8)
        self._sequence += 1
        self._sequences[slot] = 0
        self._slots[slot, : payload.size] = payload
        self._sequences[slot] = self._sequence
        shared = SharedSlot(slot=slot, sequence=self._sequence, payload_bytes=payload.size)
        return Chunk(header=chunk.header, shared=shared).SerializeToString()

    def close(self) -> None:
        """Give the pipe back to the system, and let go of the memory."""
        if self._returned >= 0:
            os.close(self._returned)
            self._returned = -1
        self._slots, self._sequences = self._slots[:0].copy(), self._sequences[:0].copy()

    def _collect(self) -> bool:
        """Take back what has been returned; False if that is nothing."""
        try:
            given_back = os.read(self._returned, 256)
        except BlockingIOError:
            return False
        for slot in given_back:
            if slot >= len(self._slots) or slot in self._free:
                raise LinkClosed(f"shared memory: the peer gave back slot {slot}, which it does not have")
            self._free.append(slot)
        return bool(given_back)

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self._returned, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self._returned)
        if not self._collect():
            # The peer has closed its end: the stream is about to end too, and says why.
            await asyncio.Event().wait()


class SlotReceiver:
    """The receiving end of one direction.

    Args:
        slots: [slots, SLOT_BYTES] uint8, shared.
        sequences: [slots] uint64, shared.
        returning: pipe to the sender, not blocking. It is closed with this object.
    """

    def __init__(self, slots: NDArray[np.uint8], sequences: NDArray[np.uint64], returning: int) -> None:
        self._slots = slots
        self._sequences = sequences
        self._returning = returning
        self._lent: dict[int, weakref.ref[NDArray[np.uint8]]] = {}
        self._sequence = 0
        # Payloads are let go of on any thread; re-entrant, as collecting garbage may let go of one in the middle of
        # another.
        self._lock = threading.RLock()

    @property
    def lent(self) -> int:
        """Slots whose payloads are still viewed."""
        return len(self._lent)

    def take(self, header: ChunkHeader, shared: SharedSlot) -> TensorChunk:
        """The chunk whose payload lies in a slot; a view of it while few are lent, else a copy.

        Raises:
            Refused: the reference is not to a whole payload, the next one of its sender.
        """
        slot, size = shared.slot, shared.payload_bytes
        with self._lock:
            wrong = self._what_is_wrong(shared)
            if wrong:
                raise Refused(f"chunk {header.index}: shared memory: {wrong}; the sender must start anew")
            self._sequence += 1
            view = self._slots[slot, :size]
            if len(self._lent) >= len(self._slots) - FLOWING_SLOTS:
                copy = view.tobytes()
                self._give_back(slot)
                return TensorChunk(header, copy, shared=True)
            view.flags.writeable = False
            self._lent[slot] = weakref.ref(view, lambda _: self._let_go(slot))
            return TensorChunk(header, view.data, shared=True)

    def _what_is_wrong(self, shared: SharedSlot) -> str:
        slot = shared.slot
        if slot >= len(self._slots):
            return f"slot {slot}, expected one of {len(self._slots)}"
        if shared.payload_bytes > self._slots.shape[1]:
            return f"a payload of {shared.payload_bytes} bytes, expected {self._slots.shape[1]} at most"
        if shared.sequence != self._sequence + 1:
            return f"payload number {shared.sequence}, expected {self._sequence + 1}"
        if slot in self._lent:
            return f"slot {slot}, which has not been given back"
        written = int(self._sequences[slot])
        if written != shared.sequence:
            return f"slot {slot} holds payload number {written}, expected {shared.sequence}: it is not whole"
        return ""

    def _let_go(self, slot: int) -> None:
        with self._lock:
            del self._lent[slot]
            self._give_back(slot)

    def _give_back(self, slot: int) -> None:
        if self._returning < 0:
            return
        try:
            os.write(self._returning, bytes((slot,)))
        except (BrokenPipeError, BlockingIOError):
            return  # the sender is gone, or reads no slots it is given: its stream ends or stands still

    def close(self) -> None:
        """Give the pipe back to the system, and let go of the memory; payloads that are still viewed stay."""
        with self._lock:
            if self._returning >= 0:
                os.close(self._returning)
                self._returning = -1
            self._slots, self._sequences = self._slots[:0].copy(), self._sequences[:0].copy()
