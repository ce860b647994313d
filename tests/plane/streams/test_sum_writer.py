"""What a worker sends of a lease's sum is what the aggregator reads, in messages or in the worker's memory."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plane.lease_sums import LeaseSum, LeaseSums
from plane.streams.shared_memory_link import ClientTensorLink, ServerTensorLink
from plane.streams.sum_writer import SumWriter
from protos.tensors_pb2 import BFLOAT16, FLOAT32, GRADIENT, ChunkHeader, DType
from services.tensors.chunk_messages import bytes_per_element, check_chunk
from services.tensors.layout import CHUNK_ELEMENTS, chunk_count
from services.tensors.layout_parts import LayoutParts

ELEMENTS = 3 * CHUNK_ELEMENTS + 50
BORDERS = st.one_of(
    st.integers(0, ELEMENTS),
    st.sampled_from([index * CHUNK_ELEMENTS for index in range(chunk_count(ELEMENTS))]),
)


class Answered:
    """A call that a server's link has answered."""

    def __init__(self, link: ServerTensorLink) -> None:
        self._link = link

    async def initial_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._link.metadata


def connected(*, on_host: bool) -> tuple[ClientTensorLink, ServerTensorLink]:
    caller = ClientTensorLink("a", enabled=on_host, count=lambda _: None)
    server = ServerTensorLink("b", caller.metadata, enabled=on_host)
    asyncio.run(caller.confirm(Answered(server)))
    return caller, server


def make_messages(link: ClientTensorLink, headers: list[ChunkHeader], lease_sum: LeaseSum) -> list[bytes]:
    return [b"".join(parts) for parts in SumWriter(link).write(headers, lease_sum)]


@settings(max_examples=12, deadline=None)
@given(st.sets(BORDERS, min_size=2, max_size=8), st.booleans(), st.sampled_from([FLOAT32, BFLOAT16]))
def test_pieces_of_any_parts_arrive_as_they_are(borders: set[int], on_host: bool, dtype: DType) -> None:
    bounds = sorted(borders)
    parts = LayoutParts(list(zip(bounds[::2], bounds[1::2], strict=False)))
    caller, server = connected(on_host=on_host)
    sums = LeaseSums()
    sums.sharing = on_host
    taken = sums.borrow(7, parts, bytes_per_element(dtype), in_row=True)
    layout = (np.arange(ELEMENTS) % 251).astype(np.float32)
    taken.values[:] = np.concatenate([layout[start:stop] for start, stop in parts.runs])
    headers = [
        ChunkHeader(
            lease=7, kind=GRADIENT, index=each.chunk, offset=each.offset, elements=each.elements, dtype=dtype
        )
        for each in reversed(list(parts))
    ]
    messages = make_messages(caller, headers, taken)
    arrived = [chunk for message in messages for chunk in server.deserialize(message)]
    assert [chunk.header.offset for chunk in arrived] == [header.offset for header in headers]
    for chunk in arrived:
        check_chunk(chunk, ELEMENTS, dtype, pieces=True)
        start = chunk.header.offset
        np.testing.assert_array_equal(chunk.values(), layout[start : start + chunk.header.elements])
        assert (chunk.memory is not None) == on_host
    caller.close()
    server.close()


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
def test_whole_chunks_in_shared_memory_are_at_their_places_in_one_message(dtype: DType) -> None:
    caller, server = connected(on_host=True)
    sums = LeaseSums()
    sums.sharing = True
    taken = sums.borrow(7, LayoutParts([(0, ELEMENTS)]), bytes_per_element(dtype))
    taken.values[:] = np.arange(ELEMENTS) % 251
    headers = [
        ChunkHeader(
            lease=7, kind=GRADIENT, index=each.chunk, offset=each.offset, elements=each.elements, dtype=dtype
        )
        for each in reversed(list(taken.parts))
    ]
    (message,) = make_messages(caller, headers, taken)
    chunks = server.deserialize(message)
    assert [chunk.header.index for chunk in chunks] == [3, 2, 1, 0]
    for chunk in chunks:
        check_chunk(chunk, ELEMENTS, dtype)
    caller.close()
    server.close()
