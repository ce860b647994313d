"""NewestWeights: each chunk is made once per form, and every peer gets all chunks."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from numpy.typing import NDArray

from plane.streams.newest_weights import NewestWeights, StoredChunk
from plane.streams.shared_memory_link import ClientTensorLink, ServerTensorLink
from protos.tensors_pb2 import BFLOAT16, FLOAT16, FLOAT32, WEIGHTS, ChunkHeader, DType
from services.errors import Failed
from services.tensors.chunk_messages import TensorChunk, check_chunk, deserialize_chunk
from services.tensors.layout import CHUNK_ELEMENTS, chunk_range
from services.tensors.stripes import Stripe

ELEMENTS = 2 * CHUNK_ELEMENTS + 7
CHUNKS = 3


class Answered:
    """A call that a server's link has answered."""

    def __init__(self, link: ServerTensorLink) -> None:
        self._link = link

    async def initial_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._link.metadata


class Peer:
    """A peer that receives weights, on this host or over the network."""

    def __init__(self, newest: NewestWeights, *, on_host: bool) -> None:
        self.caller = ClientTensorLink("a", enabled=on_host, count=lambda _: None)
        self.link = ServerTensorLink("b", self.caller.metadata, enabled=True)
        asyncio.run(self.caller.confirm(Answered(self.link)))
        assert self.link.shares == on_host
        newest.links.append(self.link)
        self._newest = newest
        self.messages: list[bytes] = []

    def receive(self, *wanted: int | ChunkHeader) -> list[TensorChunk]:
        """Return the chunks that arrive when these are sent."""
        self.messages = []

        async def write(*parts: bytes) -> None:
            self.messages.append(parts[0] if len(parts) == 1 else b"".join(parts))

        headers = [whole(each) if isinstance(each, int) else each for each in wanted]
        asyncio.run(self._newest.send(self.link, headers, write))
        return [chunk for message in self.messages for chunk in self.caller.deserialize(message)]


def version(step: int, dtype: DType = FLOAT32, generation: int = 1) -> ChunkHeader:
    return ChunkHeader(job="j", epoch=1, generation=generation, step=step, kind=WEIGHTS, dtype=dtype)


def whole(index: int) -> ChunkHeader:
    """Return the header of a chunk to send."""
    start, stop = chunk_range(ELEMENTS, index)
    return ChunkHeader(job="j", index=index, offset=start, elements=stop - start)


def piece(index: int, start: int, stop: int, job: str = "j") -> ChunkHeader:
    """Return the header of some elements of a chunk to send."""
    return ChunkHeader(job=job, index=index, offset=index * CHUNK_ELEMENTS + start, elements=stop - start)


def values_of(step: int, index: int) -> NDArray[np.float32]:
    start, stop = chunk_range(ELEMENTS, index)
    return np.arange(start, stop, dtype=np.float32) % 251 + step


def put(newest: NewestWeights, step: int, *indices: int, dtype: DType = FLOAT32) -> None:
    for index in indices:
        newest.put(version(step, dtype), index, values_of(step, index), ELEMENTS)


def stored(newest: NewestWeights, index: int) -> StoredChunk:
    return newest._jobs["j"].stored[index]


def check_content(chunks: list[TensorChunk], step: int, *indices: int, dtype: DType = FLOAT32) -> None:
    assert [chunk.header.index for chunk in chunks] == list(indices)
    for chunk in chunks:
        check_chunk(chunk, ELEMENTS, dtype)
        assert (chunk.header.generation, chunk.header.step) == (1, step)
        np.testing.assert_array_equal(chunk.values(), values_of(step, chunk.header.index))


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
def test_each_peer_gets_its_form(dtype: DType) -> None:
    newest = NewestWeights()
    local, remote = Peer(newest, on_host=True), Peer(newest, on_host=False)
    put(newest, 3, 0, 1, 2, dtype=dtype)
    check_content(local.receive(0, 1, 2), 3, 0, 1, 2, dtype=dtype)
    assert len(local.messages) == 1
    assert len(local.messages[0]) < 200
    check_content(remote.receive(0, 1, 2), 3, 0, 1, 2, dtype=dtype)
    assert len(remote.messages) == 3


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
@pytest.mark.parametrize("on_host", [True, False])
def test_pieces_go_alone_with_checksums_of_their_own_or_in_shared_memory(dtype: DType, on_host: bool) -> None:
    newest = NewestWeights()
    peer = Peer(newest, on_host=on_host)
    put(newest, 3, 0, 1, 2, dtype=dtype)
    wanted = [piece(0, CHUNK_ELEMENTS - 9, CHUNK_ELEMENTS), piece(1, 0, CHUNK_ELEMENTS), piece(2, 2, 5)]
    chunks = peer.receive(*wanted)
    assert [chunk.header.elements for chunk in chunks] == [9, CHUNK_ELEMENTS, 3]
    for header, chunk in zip(wanted, chunks, strict=True):
        check_chunk(chunk, ELEMENTS, dtype, pieces=True)
        assert (chunk.header.offset, chunk.header.step) == (header.offset, 3)
        start = header.offset - header.index * CHUNK_ELEMENTS
        expected = values_of(3, header.index)[start : start + header.elements]
        np.testing.assert_array_equal(chunk.values(), expected)
    sizes = [len(message) for message in peer.messages]
    assert max(sizes[0], sizes[2]) < 200
    assert (sizes[1] < 200) == on_host, "a piece that is a whole chunk goes as one"
    assert all((chunk.memory is not None) == on_host for chunk in chunks)
    if not on_host:
        assert peer.messages[1] is stored(newest, 1).message, "and its checksum is not computed again"


def test_a_piece_of_a_former_job_is_not_sent() -> None:
    newest = NewestWeights()
    peer = Peer(newest, on_host=False)
    put(newest, 3, 0, 1, 2)
    assert peer.receive(piece(2, 2, 5, job="former"), piece(2, 0, 1))[0].header.elements == 1


def test_a_later_peer_gets_all_chunks() -> None:
    newest = NewestWeights()
    put(newest, 3, 0, 1, 2)  # no peer is connected yet
    local = Peer(newest, on_host=True)
    check_content(local.receive(0, 1, 2), 3, 0, 1, 2)
    put(newest, 4, 0, 1, 2)
    check_content(local.receive(0, 1, 2), 4, 0, 1, 2)
    assert len(local.messages) == 1
    remote = Peer(newest, on_host=False)
    check_content(remote.receive(0, 2), 4, 0, 2)
    first = remote.messages[0]
    remote.receive(0)
    assert remote.messages[0] is first, "made once"


def test_unneeded_forms_are_not_made() -> None:
    newest = NewestWeights()
    Peer(newest, on_host=True)
    put(newest, 3, 0)
    assert stored(newest, 0).message is None
    newest = NewestWeights()
    Peer(newest, on_host=False)
    put(newest, 3, 0)
    assert stored(newest, 0).array is None


def test_chunks_of_two_versions_go_in_two_messages() -> None:
    newest = NewestWeights()
    local = Peer(newest, on_host=True)
    put(newest, 3, 0, 1, 2)
    old = local.receive(0, 1, 2)
    put(newest, 4, 0)
    chunks = local.receive(0, 1, 2)
    assert [(chunk.header.step, chunk.header.index) for chunk in chunks] == [(4, 0), (3, 1), (3, 2)]
    assert len(local.messages) == 2
    assert [chunk.intact for chunk in old] == [False, True, True], "the first was overwritten"


def test_received_chunks_are_kept_unchanged_and_shared() -> None:
    source = NewestWeights()
    remote = Peer(source, on_host=False)
    put(source, 3, 1)
    remote.receive(1)
    (message,) = remote.messages
    newest = NewestWeights()
    local, other = Peer(newest, on_host=True), Peer(newest, on_host=False)
    newest.put_received(deserialize_chunk(message), message, ELEMENTS)
    check_content(local.receive(1), 3, 1)
    check_content(other.receive(1), 3, 1)
    assert other.messages[0] is message


def test_the_array_of_a_shard_has_places_of_its_stripe_only() -> None:
    stripe = Stripe(1, 2)
    newest = NewestWeights(stripe)
    local = Peer(newest, on_host=True)
    newest.put(version(3), 1, values_of(3, 1), stripe.element_count(ELEMENTS))
    check_content(local.receive(1), 3, 1)
    array = stored(newest, 1).array
    assert array is not None
    assert array.payload.size == 4 * CHUNK_ELEMENTS
    assert newest.is_last(1, ELEMENTS)
    assert not NewestWeights().is_last(1, ELEMENTS)


def test_pieces_of_a_shards_array_are_at_its_own_positions() -> None:
    stripe = Stripe(0, 2)
    newest = NewestWeights(stripe)
    local = Peer(newest, on_host=True)
    for index in (0, 2):
        newest.put(version(3), index, values_of(3, index), stripe.element_count(ELEMENTS))
    for chunk, start, stop in zip(
        local.receive(piece(0, 9, 12), piece(2, 2, 5)), (9, 2), (12, 5), strict=True
    ):
        check_chunk(chunk, ELEMENTS, FLOAT32, pieces=True)
        np.testing.assert_array_equal(chunk.values(), values_of(3, chunk.header.index)[start:stop])
    newest.put(version(4), 2, values_of(4, 2), stripe.element_count(ELEMENTS))
    old = local.receive(piece(0, 9, 12), piece(2, 2, 5))
    newest.put(version(5), 2, values_of(5, 2), stripe.element_count(ELEMENTS))
    assert [chunk.intact for chunk in old] == [True, False], "the second was overwritten"


def test_has_version_compares_all_fields() -> None:
    newest = NewestWeights()
    put(newest, 3, 1)
    header = version(3)
    header.index = 1
    assert newest.has_version(header)
    for field, other in (("index", 0), ("step", 4), ("generation", 2), ("epoch", 2), ("job", "k")):
        changed = ChunkHeader()
        changed.CopyFrom(header)
        setattr(changed, field, other)
        assert not newest.has_version(changed)
    newest.clear("j")
    assert not newest.has_version(header)


@pytest.mark.parametrize("on_host", [True, False])
def test_the_weights_of_two_jobs_are_apart_and_end_apart(on_host: bool) -> None:
    newest = NewestWeights()
    peer = Peer(newest, on_host=on_host)
    put(newest, 3, 0, 1)
    other = version(3)
    other.job = "k"
    newest.put(other, 0, np.arange(5, dtype=np.float32), 5)
    wanted = ChunkHeader(job="k", index=0, offset=0, elements=5)
    mine, theirs, last = peer.receive(whole(0), wanted, whole(1))
    check_content([mine, last], 3, 0, 1)
    assert (theirs.header.job, theirs.values().tolist()) == ("k", [0, 1, 2, 3, 4])
    newest.drop_message(wanted)
    check_content(peer.receive(0, 1), 3, 0, 1)
    newest.clear("k")
    assert peer.receive(wanted) == []
    check_content(peer.receive(0, 1), 3, 0, 1)


def test_a_dropped_message_is_not_sent() -> None:
    newest = NewestWeights()
    remote = Peer(newest, on_host=False)
    put(newest, 3, 0)
    newest.drop_message(whole(0))
    assert remote.receive(0) == []


def test_weights_beyond_float16_fail_the_job() -> None:
    newest = NewestWeights()
    with pytest.raises(Failed, match=r"chunk 0: 1 of 5 .*float16"):
        newest.put(version(1, FLOAT16), 0, np.array([1, 2, 70000, 4, 5], np.float32), 5)
