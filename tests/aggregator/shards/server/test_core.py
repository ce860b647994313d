"""A shard's bookkeeping: what of workers it takes, and what each is sent, when."""

from __future__ import annotations

from aggregator.shards.server.core import ShardCore
from protos.tensors_pb2 import BFLOAT16, FLOAT32, GRADIENT, INITIAL_WEIGHTS, WEIGHTS, ChunkHeader
from services.protocol.plan import WireTypes
from services.protocol.versions import Version
from services.tensors.layout import CHUNK_ELEMENTS
from services.tensors.stripes import Stripe

V1, V2 = Version(1, 1), Version(1, 2)


def weights_loaded(chunks: int = 6) -> ShardCore:
    """Shard 1 of 2, of a job of that many chunks, with one worker attending."""
    core = ShardCore(7, Stripe(1, 2))
    core.opened("j", chunks * CHUNK_ELEMENTS, WireTypes(BFLOAT16, FLOAT32))
    core.attends(1)
    return core


def sent(core: ShardCore, session: int = 1) -> list[tuple[int, int]]:
    """Step and index of what may be sent now."""
    headers = []
    while (header := core.next_weights(session)) is not None:
        assert (header.kind, header.epoch, header.job, header.generation) == (WEIGHTS, 7, "j", 1)
        assert (header.offset, header.elements) == (header.index * CHUNK_ELEMENTS, CHUNK_ELEMENTS)
        headers.append((header.step, header.index))
    return headers


def test_what_no_aggregator_would_take_is_stale_here_already() -> None:
    core = weights_loaded()
    assert core.check_chunk(1, ChunkHeader(job="j", epoch=7)) is None
    older = str(core.check_chunk(1, ChunkHeader(job="j", epoch=6)))
    assert "6" in older and "epoch 7" in older
    other = str(core.check_chunk(1, ChunkHeader(job="k", epoch=7)))
    assert "'k'" in other and "holds j" in other
    core.dropped()
    assert "holds none" in str(core.check_chunk(1, ChunkHeader(job="j", epoch=7)))


def test_chunks_are_held_against_the_whole_layout() -> None:
    core = weights_loaded(6)
    assert core.expected_elements("j") == 6 * CHUNK_ELEMENTS
    assert core.expected_elements("k") is None
    assert [core.wire_type(kind) for kind in (GRADIENT, WEIGHTS, INITIAL_WEIGHTS)] == [
        BFLOAT16,
        FLOAT32,
        FLOAT32,
    ]


def test_a_worker_is_sent_what_it_is_to_have_and_is_there() -> None:
    core = weights_loaded(6)
    core.send(1, V1, 2)
    assert sent(core) == [], "nothing is made yet"
    core.made("j", V1, 1)
    assert sent(core) == [(1, 1)]
    core.made("j", V1, 3)
    assert sent(core) == [(1, 3)], "the limit holds back the third"
    core.send(1, V1, 3)
    assert sent(core) == [(1, 5)]
    core.send(1, V1, 3)
    assert sent(core) == [], "each once"


def test_a_newer_version_begins_anew() -> None:
    core = weights_loaded(6)
    core.made("j", V1, 3)
    core.send(1, V1, 3)
    assert core.next_weights(1) is not None
    core.made("j", V2, 1)
    assert sent(core) == [], "the rest of the older one has been overwritten"
    core.send(1, V2, 3)
    assert sent(core) == [(2, 1)]


def test_a_worker_that_left_and_one_that_was_never_told_of_are_sent_nothing() -> None:
    core = weights_loaded()
    core.made("j", V1, 3)
    core.send(1, V1, 3)
    core.left(1)
    core.send(9, V1, 3)
    assert (sent(core, 1), sent(core, 9)) == ([], [])


def test_weights_of_a_job_that_is_held_no_more_are_not_told_of() -> None:
    core = weights_loaded()
    core.opened("k", CHUNK_ELEMENTS, WireTypes())
    assert not core.made("j", V1, 1)
    core.send(1, V1, 1)
    assert sent(core) == []
