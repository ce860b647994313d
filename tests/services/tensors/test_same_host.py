"""Whether two ends may share memory: only if the server sees the caller's, proven by tokens on both sides."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protos.tensors_pb2 import FLOAT32, Chunk, ChunkHeader, SharedSlot
from services.errors import Refused
from services.streams import LinkClosed
from services.tensors import same_host
from services.tensors.same_host import SHARED_MEMORY_KEY, AcceptedLink, OfferedLink, TensorLink
from services.tensors.wire import ChunkRefused, TensorChunk, check, deserialize, pack

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


def confirm(link: OfferedLink, answer: Metadata) -> None:
    """Take the server's answer; `confirm` itself waits for the stream's end."""

    async def run() -> None:
        try:
            await asyncio.wait_for(link.confirm(Call(answer)), 0.05)
        except asyncio.TimeoutError:
            return

    asyncio.run(run())


@pytest.fixture
def links() -> Iterator[list[TensorLink]]:
    """Links made by a test, closed after it."""
    made: list[TensorLink] = []
    yield made
    for link in made:
        link.close()


def offered(links: list[TensorLink], count: Any = lambda _: None, *, enabled: bool = True) -> OfferedLink:
    links.append(OfferedLink("peer", enabled=enabled, count=count))
    return links[-1]  # type: ignore[return-value]


def accepted(
    links: list[TensorLink], metadata: Metadata, count: Any = lambda _: None, *, enabled: bool = True
) -> AcceptedLink:
    links.append(AcceptedLink("peer", metadata, enabled=enabled, count=count))
    return links[-1]  # type: ignore[return-value]


def passes(sender: TensorLink, receiver: TensorLink, *, shared: bool) -> None:
    """Send chunks, more than there are slots."""
    for index in range(40):
        slot = asyncio.run(asyncio.wait_for(sender.free_slot(), 5))
        assert (slot is not None) == shared
        payload = bytes((index, 1, 2, 3)) * 1000
        message = sender.serialize(TensorChunk(ChunkHeader(index=index), payload), slot)
        assert (len(message) < 100) == shared
        chunk = receiver.deserialize(message)
        assert (chunk.header.index, bytes(chunk.payload)) == (index, payload)


def test_two_ends_that_see_each_other_share(links: list[TensorLink]) -> None:
    count = Counted()
    caller = offered(links, count)
    server = accepted(links, caller.metadata, count)
    passes(server, caller, shared=True)  # the server may begin at once
    passes(caller, server, shared=False)  # the caller once it knows
    confirm(caller, server.metadata)
    passes(caller, server, shared=True)
    passes(server, caller, shared=True)
    assert count.links == 2
    caller.close()
    server.close()
    assert count.links == 0


def test_a_message_to_be_kept_has_its_payload(links: list[TensorLink]) -> None:
    caller = offered(links)
    server = accepted(links, caller.metadata)
    chunk = pack(ChunkHeader(dtype=FLOAT32, generation=3), 0, np.ones(5, np.float32))
    inline = server.serialize(chunk, None)
    assert caller.unshared(inline) is inline
    slot = asyncio.run(server.free_slot())
    without = pack(chunk.header, 0, np.ones(5, np.float32), checksum=False)
    assert caller.unshared(server.serialize(without, slot)) == inline, "with a checksum, for the wire"


def test_what_came_through_memory_is_held_against_the_layout_all_the_same(links: list[TensorLink]) -> None:
    caller = offered(links)
    server = accepted(links, caller.metadata)
    chunk = pack(ChunkHeader(dtype=FLOAT32), 0, np.ones(5, np.float32), checksum=False)
    received = caller.deserialize(server.serialize(chunk, asyncio.run(server.free_slot())))
    check(received, 5, FLOAT32)
    with pytest.raises(ChunkRefused, match="5 elements, expected 6"):
        check(received, 6, FLOAT32)
    received.header.elements = 6
    with pytest.raises(ChunkRefused, match="payload of 20 bytes, expected 24"):
        check(received, 6, FLOAT32)
    with pytest.raises(ChunkRefused, match="crc32c"):
        check(deserialize(server.serialize(chunk, None)), 5, FLOAT32)


@pytest.mark.parametrize("switched_off", ["caller", "server"])
def test_it_can_be_switched_off(links: list[TensorLink], switched_off: str) -> None:
    caller = offered(links, enabled=switched_off != "caller")
    server = accepted(links, caller.metadata, enabled=switched_off != "server")
    confirm(caller, server.metadata)
    passes(caller, server, shared=False)
    passes(server, caller, shared=False)


@pytest.mark.parametrize("answer", [(), ((SHARED_MEMORY_KEY, "no"),), (("another-key", "x"),)])
def test_a_server_that_does_not_see_the_memory_gets_payloads(
    links: list[TensorLink], answer: Metadata
) -> None:
    caller = offered(links)
    confirm(caller, answer)
    assert asyncio.run(caller.free_slot()) is None


def test_a_server_in_another_view_of_the_host_gets_payloads(
    links: list[TensorLink], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(same_host, "PROC", tmp_path)
    caller = offered(links)
    server = accepted(links, caller.metadata)
    assert server.metadata == ((SHARED_MEMORY_KEY, "no"),)
    confirm(caller, server.metadata)
    passes(caller, server, shared=False)
    passes(server, caller, shared=False)


def test_a_server_that_claims_to_see_memory_is_refused(links: list[TensorLink]) -> None:
    caller = offered(links)
    with pytest.raises(LinkClosed, match="sees memory which it does not"):
        confirm(caller, ((SHARED_MEMORY_KEY, "00" * 32),))


def altered(offer: str, **parts: str) -> Metadata:
    names = ("process", "memory", "to_caller", "from_caller", "token")
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
            altered(offer, memory=offer.split(" ")[2]),  # a pipe
            altered(offer, memory=str(short)),  # could be shortened while it is read
            altered(offer, to_caller=offer.split(" ")[1]),  # a memory file
            altered(offer, from_caller=str(file.fileno())),
        ):
            server = accepted(links, metadata)
            assert server.metadata == ((SHARED_MEMORY_KEY, "no"),)
            assert asyncio.run(server.free_slot()) is None
        fcntl.fcntl(short, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        assert accepted(links, altered(offer, memory=str(short))).metadata == ((SHARED_MEMORY_KEY, "no"),)
        os.close(short)


@pytest.mark.parametrize(
    "offer", ["", "x", "1 2 3 4", "1 2 3 4 zz", "1 2 3 -4 " + "00" * 32, "1 2 3 4 5 " + "00" * 32]
)
def test_an_offer_that_is_none_is_refused(offer: str) -> None:
    with pytest.raises(Refused, match=r"metadata tiermesh-shared-memory: .*, expected a process id"):
        AcceptedLink("peer", ((SHARED_MEMORY_KEY, offer),), enabled=True)


def test_a_reference_on_a_link_that_shares_nothing_is_refused(links: list[TensorLink]) -> None:
    server = accepted(links, ())
    message = Chunk(header=ChunkHeader(index=5), shared=SharedSlot(sequence=1)).SerializeToString()
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
    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("/memfd:tiermesh")

    def everything() -> tuple[int, int]:
        return len(list(Path("/proc/self/fd").iterdir())), mapped()

    gc.collect()
    before = everything()
    caller = OfferedLink("peer", enabled=True, count=lambda _: None)
    server = AcceptedLink("peer", caller.metadata, enabled=True)
    confirm(caller, server.metadata)
    passes(caller, server, shared=True)
    assert mapped() > before[1]
    caller.close()
    server.close()
    del caller, server
    assert everything() == before


def test_a_caller_that_is_killed_leaves_nothing_but_what_the_server_views(links: list[TensorLink]) -> None:
    code = (
        "from services.tensors.same_host import OfferedLink\n"
        "link = OfferedLink('peer', enabled=True, count=print)\n"
        "print(link.metadata[0][1], flush=True)\n"
        "input()\n"
    )
    gc.collect()
    before = Path("/proc/self/maps").read_text().count("/memfd:tiermesh")
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as caller:
        assert caller.stdout is not None
        server = accepted(links, ((SHARED_MEMORY_KEY, caller.stdout.readline().strip()),))
        assert server.metadata != ((SHARED_MEMORY_KEY, "no"),)
        caller.kill()
    # The server notices by its stream; until then it may write, and waits once the ring is full.

    async def fill() -> None:
        while True:
            slot = await asyncio.wait_for(server.free_slot(), 0.1)
            server.serialize(TensorChunk(ChunkHeader(), b"content"), slot)

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(fill())
    server.close()
    assert Path("/proc/self/maps").read_text().count("/memfd:tiermesh") == before
