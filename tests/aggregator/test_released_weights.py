"""Whatever the core releases in whatever turns, the shards together send a worker just that, in order."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.released_weights import ReleasedWeights
from plane.bookkeeping import PlaneCore
from protos import plane_pb2 as pb
from protos.tensors_pb2 import ChunkHeader
from services.protocol.plan import WireTypes
from services.protocol.versions import Version
from services.tensors.layout import CHUNK_ELEMENTS, chunk_count, chunk_range
from services.tensors.layout_parts import LayoutParts, Piece, parse_parts
from services.tensors.stripes import Stripe

SESSION = 1
ELEMENTS = 9 * CHUNK_ELEMENTS + 5
WHOLE = [
    Piece(index, chunk_range(ELEMENTS, index)[0], chunk_range(ELEMENTS, index)[1] - index * CHUNK_ELEMENTS)
    for index in range(chunk_count(ELEMENTS))
]


class Shards:
    """The cores of some shards, and all that they have sent."""

    def __init__(self, count: int) -> None:
        self.cores = [PlaneCore(7, Stripe(index, count)) for index in range(count)]
        for core in self.cores:
            core.open_job("j", ELEMENTS, WireTypes())
            core.worker_attends(SESSION)

    def make_ready(self, step: int) -> None:
        for core in self.cores:
            core.weights_ready("j", Version(1, step), len(WHOLE))

    def obey(self, orders: list[tuple[int, pb.SendUpTo]]) -> list[Piece]:
        """Carry out orders; return what is sent, in the order of the layout."""
        found = []
        for shard, order in orders:
            parts = parse_parts(order.parts, ELEMENTS) if order.parts else None
            assert parts is None or isinstance(parts, LayoutParts)
            version = Version(order.generation, order.step)
            self.cores[shard].send_up_to(SESSION, version, order.limit, parts=parts, restart=order.restart)
            while (header := self.cores[shard].next_weights(SESSION)) is not None:
                found.append(Piece(header.index, header.offset, header.elements))
        return sorted(found)


@st.composite
def loads(draw: st.DrawFn) -> LayoutParts | None:
    """Return parts of the layout, some of which begin or end at a chunk's border; None for all of it."""
    places = st.one_of(
        st.integers(0, ELEMENTS), st.sampled_from([index * CHUNK_ELEMENTS for index in range(10)])
    )
    bounds = sorted(draw(st.sets(places, min_size=2, max_size=8)))
    if draw(st.booleans()):
        return None
    return LayoutParts(list(zip(bounds[::2], bounds[1::2], strict=False)))


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 4),
    st.lists(st.tuples(loads(), st.integers(0, 1), st.integers(0, 12)), max_size=5),
    st.data(),
)
def test_shards_send_what_the_core_releases(
    count: int, builds: list[tuple[LayoutParts | None, int, int]], data: st.DataObject
) -> None:
    shards, weights, step = Shards(count), ReleasedWeights(SESSION, count), 0
    for parts, steps, most in builds:  # the worker builds a job again, of this version or the next
        step += steps
        shards.make_ready(step)
        pieces = (WHOLE if parts is None else list(parts))[:most]
        while pieces:
            turn = data.draw(st.integers(1, len(pieces)))
            for piece in pieces[:turn]:
                header = ChunkHeader(generation=1, step=step, index=piece.chunk, offset=piece.offset)
                weights.release(header, parts)
            assert shards.obey(weights.take_orders()) == pieces[:turn]
            pieces = pieces[turn:]
    assert weights.take_orders() == []
