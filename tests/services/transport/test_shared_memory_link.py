"""Whether two ends may share memory: only if the server sees the caller's, proven by tokens on both sides."""

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

from protos.tensors_pb2 import FLOAT32, Chunk, ChunkHeader, NonFinite, SharedPlaces
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
from services.transport.shared_memory_link import (
    MAX_MAPPED_ARRAYS,
    MAX_PLACES,
    SHARED_MEMORY_KEY,
    ClientTensorLink,
    ServerTensorLink,
    TensorLink,
)

Metadata = tuple[tuple[str, str], ...]


class Call:
    """A call that has been answered with this initial metadata."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    async def initial_metadata(self) -> Metadata:
        return self._metadata


class Counted:
    """How many links are shared."""

    def __init__(self) -> None:
        self.links = 0

    def __call__(self, change: int) -> None:
        self.links += change


def confirm(link: ClientTensorLink, answer: Metadata) -> None:
    """Take the server's answer."""
    asyncio.run(link.confirm(Call(answer)))


@pytest.fixture
def links() -> Iterator[list[TensorLink]]:
    """Links made by a test, closed after it."""
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


def both(links: list[TensorLink]) -> tuple[ClientTensorLink, ServerTensorLink]:
    """Two ends that see each other."""
    caller = offered(links)
    server = accepted(links, caller.metadata)
    confirm(caller, server.metadata)
    return caller, server


FOUND = NonFinite(micro_batch=3, parameter="w")


def array_of(chunks: int) -> SharedArray:
    """An array of float32 chunks, each full of its index."""
    array = SharedArray(4 * CHUNK_ELEMENTS * chunks, 4 * CHUNK_ELEMENTS)
    for index in range(chunks):
        array.place(index).view(np.float32)[:] = index
        array.mark(index, 9)
    return array


def passes(sender: TensorLink, receiver: TensorLink) -> list[TensorChunk]:
    """Refer to some chunks of an array; what comes of it."""
    array = array_of(3)
    message = sender.refer(
        ChunkHeader(dtype=FLOAT32, losses=[1.5], index=2, non_finite=[FOUND]), array, 9, (2, 0)
    )
    assert len(message) < 150
    return receiver.deserialize(message)


def test_two_ends_that_see_each_other_share(links: list[TensorLink]) -> None:
    count = Counted()
    caller = offered(links, count)
    server = accepted(links, caller.metadata, count)
    assert not caller.shares, "it can't know yet"
    assert not server.shares, "the caller hasn't said yet that it sees the server's memory"
    confirm(caller, server.metadata)
    assert caller.shares
    assert server.shares
    for chunks in (passes(caller, server), passes(server, caller)):
        assert [chunk.header.index for chunk in chunks] == [2, 0]
        assert [chunk.header.losses for chunk in chunks] == [[], [1.5]], "losses are those of chunk 0"
        assert [list(chunk.header.non_finite) for chunk in chunks] == [[], [FOUND]], (
            "and so is what was found"
        )
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


def test_what_lies_in_memory_is_held_against_the_layout_and_its_mark(links: list[TensorLink]) -> None:
    caller, server = both(links)
    array = array_of(2)
    (chunk,) = server.deserialize(caller.refer(ChunkHeader(dtype=FLOAT32, index=1), array, 9, (1,)))
    check_chunk(chunk, 2 * CHUNK_ELEMENTS, FLOAT32)
    with pytest.raises(ChunkRefused, match="elements, expected 1"):
        check_chunk(chunk, CHUNK_ELEMENTS + 1, FLOAT32)
    (beyond,) = server.deserialize(caller.refer(ChunkHeader(dtype=FLOAT32), array, 9, (2,)))
    with pytest.raises(ChunkRefused, match="chunk 2: no such index, the layout has 2 chunks"):
        check_chunk(beyond, 2 * CHUNK_ELEMENTS, FLOAT32)
    with pytest.raises(ChunkRefused, match="chunk 2: 0 elements, expected"):
        check_chunk(beyond, 3 * CHUNK_ELEMENTS, FLOAT32)
    array.mark(1, 10)
    with pytest.raises(ChunkOverwritten, match="chunk 1: its place in shared memory was overwritten"):
        check_chunk(chunk, 2 * CHUNK_ELEMENTS, FLOAT32)
    with pytest.raises(ChunkOverwritten, match="chunk 1: its place in shared memory was overwritten"):
        copy_with_checksum(chunk)


def test_a_copy_for_the_network_has_a_checksum(links: list[TensorLink]) -> None:
    caller, server = both(links)
    array = SharedArray(20, 4 * CHUNK_ELEMENTS)
    version = ChunkHeader(dtype=FLOAT32, generation=3)
    header = pack_chunk(version, 0, np.ones(5, np.float32), array.place(0)).header
    array.mark(0, 4)
    (chunk,) = server.deserialize(caller.refer(header, array, 4, (0,)))
    inline = serialize_chunk(pack_chunk(version, 0, np.ones(5, np.float32)))
    assert serialize_chunk(copy_with_checksum(chunk)) == inline


def test_an_array_that_cannot_be_seen_is_told_of_and_its_chunks_refused(
    links: list[TensorLink], caplog: pytest.LogCaptureFixture
) -> None:
    caller, server = both(links)
    array = array_of(1)
    array.close()
    for _ in range(3):
        (chunk,) = server.deserialize(caller.refer(ChunkHeader(dtype=FLOAT32), array, 9, (0,)))
        with pytest.raises(ChunkRefused, match=f"chunk 0: 0 elements, expected {CHUNK_ELEMENTS}"):
            check_chunk(chunk, CHUNK_ELEMENTS, FLOAT32)
    assert caplog.text.count("tensors of peer: an array of its memory can't be seen here") == 1


def test_checksums_are_in_all_messages_of_a_stream_or_in_none(links: list[TensorLink]) -> None:
    """What hides one may make something else of the bytes around it."""
    checked = serialize_chunk(pack_chunk(ChunkHeader(dtype=FLOAT32, index=5), 5, np.ones(3, np.float32)))
    bare = Chunk.FromString(checked)
    bare.header.ClearField("own_crc32c")
    _, server = both(links)
    for message in (bare.SerializeToString(), checked):
        assert [chunk.header.index for chunk in server.deserialize(message)] == [5]
    with pytest.raises(
        Refused, match=r"^chunk 5: expected a crc32c of its header, as those before it had one"
    ):
        server.deserialize(bare.SerializeToString())


@pytest.mark.parametrize("indices", [(), range(MAX_PLACES + 1)])
def test_no_message_refers_to_nothing_or_to_everything(links: list[TensorLink], indices: Any) -> None:
    caller, server = both(links)
    message = caller.refer(ChunkHeader(dtype=FLOAT32, index=5), array_of(1), 9, indices)
    with pytest.raises(Refused, match=f"chunk 5: shared memory: {len(indices)} places, expected 1 to 64"):
        server.deserialize(message)


def test_only_the_newest_arrays_of_a_peer_stay_mapped(links: list[TensorLink]) -> None:
    caller, server = both(links)
    arrays = [array_of(1) for _ in range(MAX_MAPPED_ARRAYS + 5)]
    before = Path("/proc/self/maps").read_text().count("/memfd:tiermesh")
    for array in arrays:
        server.deserialize(caller.refer(ChunkHeader(dtype=FLOAT32), array, 9, (0,)))
    gc.collect()
    assert Path("/proc/self/maps").read_text().count("/memfd:tiermesh") == before + MAX_MAPPED_ARRAYS


@pytest.mark.parametrize("switched_off", ["caller", "server"])
def test_it_can_be_switched_off(links: list[TensorLink], switched_off: str) -> None:
    caller = offered(links, enabled=switched_off != "caller")
    server = accepted(links, caller.metadata, enabled=switched_off != "server")
    confirm(caller, server.metadata)
    assert not caller.shares
    assert not server.shares


@pytest.mark.parametrize("answer", [(), ((SHARED_MEMORY_KEY, "no"),), (("another-key", "x"),)])
def test_a_server_that_does_not_see_the_memory_gets_payloads(
    links: list[TensorLink], answer: Metadata
) -> None:
    caller = offered(links)
    confirm(caller, answer)
    assert not caller.shares


def test_a_server_in_another_view_of_the_host_gets_payloads(
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


def test_a_caller_that_does_not_see_the_server_is_seen_all_the_same(
    links: list[TensorLink], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = offered(links)
    server = accepted(links, caller.metadata)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(shared_memory, "PROC", tmp_path)
        confirm(caller, server.metadata)
    assert caller.shares
    assert not server.shares
    assert len(passes(caller, server)) == 2
    with pytest.raises(Refused, match="none was agreed on"):
        passes(server, caller)


def test_a_server_that_claims_to_see_memory_is_refused(links: list[TensorLink]) -> None:
    caller = offered(links)
    with pytest.raises(LinkClosed, match="sees memory which it does not"):
        confirm(caller, ((SHARED_MEMORY_KEY, "00" * 32),))


def altered(offer: str, **parts: str) -> Metadata:
    names = ("process", "memory", "token")
    values = dict(zip(names, offer.split(" "), strict=True))
    return ((SHARED_MEMORY_KEY, " ".join({**values, **parts}.values())),)


def test_an_offer_that_does_not_hold_is_declined(links: list[TensorLink], tmp_path: Path) -> None:
    caller = offered(links)
    other = offered(links)
    ((_, offer),) = caller.metadata
    with (tmp_path / "file").open("w+b") as file:
        short = os.memfd_create("tiermesh", os.MFD_ALLOW_SEALING)
        os.ftruncate(short, 4096)
        for metadata in (
            altered(offer, token="00" * 32),  # does not know the memory
            ((SHARED_MEMORY_KEY, other.metadata[0][1].rpartition(" ")[0] + " " + offer[-64:]),),  # another's
            altered(offer, process="4194304999"),
            altered(offer, memory="99999"),
            altered(offer, memory=str(file.fileno())),
            altered(offer, memory=str(short)),  # could be shortened while it is read
        ):
            assert accepted(links, metadata).metadata == ((SHARED_MEMORY_KEY, "no"),)
        fcntl.fcntl(short, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        assert accepted(links, altered(offer, memory=str(short))).metadata == ((SHARED_MEMORY_KEY, "no"),)
        os.close(short)


@pytest.mark.parametrize("offer", ["", "x", "1 2", "1 2 zz", "1 -2 " + "00" * 32, "1 2 3 " + "00" * 32])
def test_an_offer_that_is_none_is_refused(offer: str) -> None:
    with pytest.raises(Refused, match=r"metadata tiermesh-shared-memory: .*, expected a process id"):
        ServerTensorLink("peer", ((SHARED_MEMORY_KEY, offer),), enabled=True)


def test_a_reference_on_a_link_that_shares_nothing_is_refused(links: list[TensorLink]) -> None:
    server = accepted(links, ())
    message = Chunk(header=ChunkHeader(index=5), shared=SharedPlaces(sequence=1)).SerializeToString()
    with pytest.raises(Refused, match="chunk 5: shared memory: none was agreed on; send the payload"):
        server.deserialize(message)


def test_a_host_that_cannot_make_memory_sends_payloads(
    links: list[TensorLink], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    before = len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr(os, "posix_fallocate", full)
    caller = offered(links)
    assert caller.metadata == ()
    assert "no shared memory can be made here" in caplog.text
    assert "No space left on device" in caplog.text
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_neither_memory_nor_descriptors_are_left(links: list[TensorLink]) -> None:
    def everything() -> tuple[int, int]:
        maps = Path("/proc/self/maps").read_text().count("/memfd:tiermesh")
        return len(list(Path("/proc/self/fd").iterdir())), maps

    gc.collect()
    before = everything()
    caller, server = both(links)
    passes(caller, server)
    assert everything() > before
    links.clear()
    caller.close()
    server.close()
    del caller, server
    gc.collect()
    assert everything() == before
