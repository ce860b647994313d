"""Two ends of a data stream share memory only after tokens have proved that they can read it."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plane.streams.shared_memory_link import (
    MAX_MAPPED_ARRAYS,
    MAX_PLACES,
    SHARED_MEMORY_KEY,
    ClientTensorLink,
    ServerTensorLink,
    TensorLink,
)
from protos.tensors_pb2 import FLOAT32, Chunk, ChunkHeader, Findings, NonFinite, SharedPlaces
from services.errors import Refused
from services.tensors import shared_memory
from services.tensors.chunk_messages import (
    ChunkOverwritten,
    ChunkRefused,
    TensorChunk,
    check_chunk,
    copy_with_checksum,
    pack_chunk,
    serialize_chunk,
)
from services.tensors.layout import CHUNK_ELEMENTS
from services.tensors.shared_memory import SharedArray
from services.transport.links import LinkClosed
from tests.support.shared_memory import count_descriptors, count_mappings, count_shared_memory

Metadata = tuple[tuple[str, str], ...]


class Call:
    """A call with this initial metadata of the server."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    async def initial_metadata(self) -> Metadata:
        return self._metadata


class LinkCounter:
    """Counts the links that share memory."""

    def __init__(self) -> None:
        self.links = 0

    def __call__(self, change: int) -> None:
        self.links += change


def confirm(link: ClientTensorLink, answer: Metadata) -> None:
    """Pass the server's answer to a client's end."""
    asyncio.run(link.confirm(Call(answer)))


@pytest.fixture
def links() -> Iterator[list[TensorLink]]:
    """Collect the links of a test, and close them after it. Nothing of earlier tests is mapped or open any more."""
    gc.collect()
    made: list[TensorLink] = []
    yield made
    for link in made:
        link.close()


def offered(
    links: list[TensorLink], count: Any = lambda _: None, *, enabled: bool = True
) -> ClientTensorLink:
    links.append(ClientTensorLink("peer", enabled=enabled, count=count))
    return links[-1]  # type: ignore[return-value]


def accepted(
    links: list[TensorLink], metadata: Metadata, count: Any = lambda _: None, *, enabled: bool = True
) -> ServerTensorLink:
    links.append(ServerTensorLink("peer", metadata, enabled=enabled, count=count))
    return links[-1]  # type: ignore[return-value]


def connected_pair(links: list[TensorLink]) -> tuple[ClientTensorLink, ServerTensorLink]:
    """Return two ends that share memory in both directions."""
    caller = offered(links)
    server = accepted(links, caller.metadata)
    confirm(caller, server.metadata)
    return caller, server


FINDINGS = Findings(losses=[1.5], non_finite=[NonFinite(micro_batch=3, parameter="w")], count=8)


def array_of(chunks: int) -> SharedArray:
    """Return a shared array of float32 chunks whose elements are the chunk's index."""
    array = SharedArray(4 * CHUNK_ELEMENTS * chunks, 4 * CHUNK_ELEMENTS)
    for index in range(chunks):
        array.place(index).view(np.float32)[:] = index
        array.mark(index, 9)
    return array


def send_references(sender: TensorLink, receiver: TensorLink) -> list[TensorChunk]:
    """Send references to chunks 2 and 0 of an array; return the chunks received."""
    array = array_of(3)
    message = sender.refer(ChunkHeader(dtype=FLOAT32, findings=FINDINGS, index=2), array, 9, (2, 0))
    assert len(message) < 150
    return receiver.deserialize(message)


def test_two_ends_on_one_host_share_memory(links: list[TensorLink]) -> None:
    count = LinkCounter()
    caller = offered(links, count)
    server = accepted(links, caller.metadata, count)
    assert not caller.shares, "the answer has not come yet"
    assert not server.shares, "the client has not proved yet that it reads the server's memory"
    confirm(caller, server.metadata)
    assert caller.shares
    assert server.shares
    for chunks in (send_references(caller, server), send_references(server, caller)):
        assert [chunk.header.index for chunk in chunks] == [2, 0]
        found = [chunk.header.findings for chunk in chunks if chunk.header.HasField("findings")]
        assert found == [FINDINGS] and chunks[1].header.HasField("findings"), "findings belong to chunk 0"
        for chunk in chunks:
            check_chunk(chunk, 3 * CHUNK_ELEMENTS, FLOAT32)
            assert chunk.memory is not None
            assert np.shares_memory(chunk.values(), chunk.memory.payload)
            assert set(chunk.values().tolist()) == {chunk.header.index}
    assert count.links == 2
    caller.close()
    server.close()
    assert not caller.shares
    assert not server.shares
    assert count.links == 0


def test_shared_chunks_are_checked_against_layout_and_mark(links: list[TensorLink]) -> None:
    caller, server = connected_pair(links)
    array = array_of(2)
    (chunk,) = server.deserialize(caller.refer(ChunkHeader(dtype=FLOAT32, index=1), array, 9, (1,)))
    check_chunk(chunk, 2 * CHUNK_ELEMENTS, FLOAT32)
    with pytest.raises(ChunkRefused, match="elements, expected 1"):
        check_chunk(chunk, CHUNK_ELEMENTS + 1, FLOAT32)
    (beyond,) = server.deserialize(caller.refer(ChunkHeader(dtype=FLOAT32), array, 9, (2,)))
    with pytest.raises(ChunkRefused, match=r"chunk 2: .* 2 chunks"):
        check_chunk(beyond, 2 * CHUNK_ELEMENTS, FLOAT32)
    with pytest.raises(ChunkRefused, match="chunk 2: 0 elements"):
        check_chunk(beyond, 3 * CHUNK_ELEMENTS, FLOAT32)
    array.mark(1, 10)
    with pytest.raises(ChunkOverwritten, match=r"chunk 1: .*overwritten"):
        check_chunk(chunk, 2 * CHUNK_ELEMENTS, FLOAT32)
    with pytest.raises(ChunkOverwritten, match=r"chunk 1: .*overwritten"):
        copy_with_checksum(chunk)


def test_pieces_are_read_at_their_positions(links: list[TensorLink]) -> None:
    caller, server = connected_pair(links)
    array = SharedArray(4 * (CHUNK_ELEMENTS + 30), 4 * CHUNK_ELEMENTS)
    array.payload.view(np.float32)[:] = np.arange(CHUNK_ELEMENTS + 30)
    array.mark(0, 9)
    header = ChunkHeader(
        dtype=FLOAT32, index=5, offset=6 * CHUNK_ELEMENTS - 20, elements=20, findings=FINDINGS
    )
    pieces = server.deserialize(caller.refer(header, array, 9, (5, 4), (10, 30)))
    layout = 7 * CHUNK_ELEMENTS
    for piece in pieces:
        check_chunk(piece, layout, FLOAT32, pieces=True)
    first, second = pieces
    assert first.values().tolist() == list(range(10, 30))
    assert first.header == ChunkHeader(dtype=FLOAT32, index=5, offset=6 * CHUNK_ELEMENTS - 20, elements=20)
    assert (second.header.index, second.header.offset) == (4, 4 * CHUNK_ELEMENTS)
    np.testing.assert_array_equal(second.values(), np.arange(30, CHUNK_ELEMENTS + 30))
    array.mark(0, 10)
    with pytest.raises(ChunkOverwritten, match=r"chunk 5: .*overwritten"):
        check_chunk(first, layout, FLOAT32, pieces=True)


@pytest.mark.parametrize(
    ("position", "found"), [(1, 80), (CHUNK_ELEMENTS - 5, 20), (CHUNK_ELEMENTS, 0), (2**64 - 1, 0)]
)
def test_a_position_at_which_the_array_ends_is_refused(
    links: list[TensorLink], position: int, found: int
) -> None:
    caller, server = connected_pair(links)
    header = ChunkHeader(dtype=FLOAT32, index=0, offset=5, elements=20)
    array = array_of(1)
    (piece,) = server.deserialize(caller.refer(header, array, 9, (0,), (position,)))
    assert len(piece.payload) == found
    if found < 80:
        with pytest.raises(ChunkRefused, match=f"chunk 0: payload of {found} bytes, expected 80"):
            check_chunk(piece, CHUNK_ELEMENTS, FLOAT32, pieces=True)


def test_a_message_without_a_position_for_each_chunk_is_refused(links: list[TensorLink]) -> None:
    caller, server = connected_pair(links)
    message = caller.refer(ChunkHeader(dtype=FLOAT32), array_of(2), 9, (0, 1), (0,))
    with pytest.raises(
        Refused, match="chunk 0: shared memory: 1 positions, expected none or one for each of 2 places"
    ):
        server.deserialize(message)


def test_a_copy_for_the_network_has_a_checksum(links: list[TensorLink]) -> None:
    caller, server = connected_pair(links)
    array = SharedArray(20, 4 * CHUNK_ELEMENTS)
    version = ChunkHeader(dtype=FLOAT32, generation=3)
    header = pack_chunk(version, 0, np.ones(5, np.float32), array.place(0)).header
    array.mark(0, 4)
    (chunk,) = server.deserialize(caller.refer(header, array, 4, (0,)))
    inline = serialize_chunk(pack_chunk(version, 0, np.ones(5, np.float32)))
    assert serialize_chunk(copy_with_checksum(chunk)) == inline


def test_an_array_that_cannot_be_mapped_is_logged_once_and_its_chunks_refused(
    links: list[TensorLink], caplog: pytest.LogCaptureFixture
) -> None:
    caller, server = connected_pair(links)
    array = array_of(1)
    array.close()
    for _ in range(3):
        (chunk,) = server.deserialize(caller.refer(ChunkHeader(dtype=FLOAT32), array, 9, (0,)))
        with pytest.raises(ChunkRefused, match=rf"chunk 0: 0 elements.* {CHUNK_ELEMENTS}"):
            check_chunk(chunk, CHUNK_ELEMENTS, FLOAT32)
    assert len(caplog.records) == 1 and "peer" in caplog.text


def test_checksums_are_in_all_messages_of_a_stream_or_in_none(links: list[TensorLink]) -> None:
    """Check that a missing checksum is damage, once a message of the stream had one."""
    checked = serialize_chunk(pack_chunk(ChunkHeader(dtype=FLOAT32, index=5), 5, np.ones(3, np.float32)))
    bare = Chunk.FromString(checked)
    bare.header.ClearField("own_crc32c")
    _, server = connected_pair(links)
    for message in (bare.SerializeToString(), checked):
        assert [chunk.header.index for chunk in server.deserialize(message)] == [5]
    with pytest.raises(Refused, match=r"^chunk 5: .*crc32c"):
        server.deserialize(bare.SerializeToString())


@pytest.mark.parametrize("indices", [(), range(MAX_PLACES + 1)])
def test_the_number_of_places_in_a_message_is_limited(links: list[TensorLink], indices: Any) -> None:
    caller, server = connected_pair(links)
    message = caller.refer(ChunkHeader(dtype=FLOAT32, index=5), array_of(1), 9, indices)
    with pytest.raises(Refused, match=f"chunk 5: .* {len(indices)} places.* 1 to {MAX_PLACES}"):
        server.deserialize(message)


def test_only_the_newest_arrays_of_a_peer_stay_mapped(links: list[TensorLink]) -> None:
    caller, server = connected_pair(links)
    arrays = [array_of(1) for _ in range(MAX_MAPPED_ARRAYS + 5)]
    before = count_mappings()
    for array in arrays:
        server.deserialize(caller.refer(ChunkHeader(dtype=FLOAT32), array, 9, (0,)))
    gc.collect()
    assert count_mappings() == before + MAX_MAPPED_ARRAYS


def test_an_array_in_use_stays_mapped_while_others_come(links: list[TensorLink]) -> None:
    caller, server = connected_pair(links)
    used, others = array_of(1), [array_of(1) for _ in range(2 * MAX_MAPPED_ARRAYS)]
    message = caller.refer(ChunkHeader(dtype=FLOAT32), used, 9, (0,))
    first = server.deserialize(message)[0].memory
    for other in others:
        server.deserialize(caller.refer(ChunkHeader(dtype=FLOAT32), other, 9, (0,)))
        assert server.deserialize(message)[0].memory is first


def test_arrays_of_jobs_that_are_over_are_unmapped(links: list[TensorLink]) -> None:
    caller, server = connected_pair(links)
    before = count_mappings()
    for _ in range(5):  # a worker moves from job to job, each of which ends behind it
        array = array_of(1)
        server.deserialize(caller.refer(ChunkHeader(dtype=FLOAT32), array, 9, (0,)))
        del array
        gc.collect()
        assert count_mappings() == before + 1, "the reader's, of the newest array"


@pytest.mark.parametrize("switched_off", ["caller", "server"])
def test_sharing_can_be_switched_off(links: list[TensorLink], switched_off: str) -> None:
    caller = offered(links, enabled=switched_off != "caller")
    server = accepted(links, caller.metadata, enabled=switched_off != "server")
    confirm(caller, server.metadata)
    assert not caller.shares
    assert not server.shares


@pytest.mark.parametrize("answer", [(), ((SHARED_MEMORY_KEY, "no"),), (("another-key", "x"),)])
def test_nothing_is_shared_without_consent_of_the_server(links: list[TensorLink], answer: Metadata) -> None:
    caller = offered(links)
    confirm(caller, answer)
    assert not caller.shares


def test_a_server_with_another_proc_declines(
    links: list[TensorLink], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = offered(links)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(shared_memory, "PROC", tmp_path)
        server = accepted(links, caller.metadata)
    assert server.metadata == ((SHARED_MEMORY_KEY, "no"),)
    confirm(caller, server.metadata)
    assert not caller.shares
    assert not server.shares


def test_memory_may_be_shared_in_one_direction_only(
    links: list[TensorLink], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = offered(links)
    server = accepted(links, caller.metadata)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(shared_memory, "PROC", tmp_path)
        confirm(caller, server.metadata)
    assert caller.shares
    assert not server.shares
    assert len(send_references(caller, server)) == 2
    with pytest.raises(Refused, match="shared memory"):
        send_references(server, caller)


def test_a_server_with_a_wrong_token_is_refused(links: list[TensorLink]) -> None:
    caller = offered(links)
    with pytest.raises(LinkClosed, match="token"):
        confirm(caller, ((SHARED_MEMORY_KEY, "00" * 32),))


def altered(offer: str, **parts: str) -> Metadata:
    names = ("process", "memory", "token")
    values = dict(zip(names, offer.split(" "), strict=True))
    return ((SHARED_MEMORY_KEY, " ".join({**values, **parts}.values())),)


def test_a_false_offer_is_declined(links: list[TensorLink], tmp_path: Path) -> None:
    caller = offered(links)
    other = offered(links)
    ((_, offer),) = caller.metadata
    with (tmp_path / "file").open("w+b") as file:
        short = os.memfd_create("tiermesh", os.MFD_ALLOW_SEALING)
        os.ftruncate(short, 4096)
        for metadata in (
            altered(offer, token="00" * 32),  # another token
            (
                (SHARED_MEMORY_KEY, other.metadata[0][1].rpartition(" ")[0] + " " + offer[-64:]),
            ),  # the token of another page
            altered(offer, process="4194304999"),
            altered(offer, memory="99999"),
            altered(offer, memory=str(file.fileno())),
            altered(offer, memory=str(short)),  # not sealed: it could be truncated while it is read
        ):
            assert accepted(links, metadata).metadata == ((SHARED_MEMORY_KEY, "no"),)
        fcntl.fcntl(short, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        assert accepted(links, altered(offer, memory=str(short))).metadata == ((SHARED_MEMORY_KEY, "no"),)
        os.close(short)


@pytest.mark.parametrize("offer", ["", "x", "1 2", "1 2 zz", "1 -2 " + "00" * 32, "1 2 3 " + "00" * 32])
def test_a_malformed_offer_is_refused(offer: str) -> None:
    with pytest.raises(Refused, match=r"metadata tiermesh-shared-memory: .*"):
        ServerTensorLink("peer", ((SHARED_MEMORY_KEY, offer),), enabled=True)


def test_a_reference_without_agreement_is_refused(links: list[TensorLink]) -> None:
    server = accepted(links, ())
    message = Chunk(header=ChunkHeader(index=5), shared=SharedPlaces(sequence=1)).SerializeToString()
    with pytest.raises(Refused, match="chunk 5: shared memory"):
        server.deserialize(message)


def test_without_free_memory_nothing_is_offered(
    links: list[TensorLink], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    before = count_descriptors()
    monkeypatch.setattr(os, "posix_fallocate", full)
    caller = offered(links)
    assert caller.metadata == ()
    assert "over gRPC: shared memory" in caplog.text
    assert "No space left on device" in caplog.text
    assert count_descriptors() == before


def test_closing_frees_memory_and_descriptors(links: list[TensorLink]) -> None:
    gc.collect()
    before = count_shared_memory()
    caller, server = connected_pair(links)
    send_references(caller, server)
    assert count_shared_memory() > before
    links.clear()
    caller.close()
    server.close()
    del caller, server
    gc.collect()
    assert count_shared_memory() == before
