"""A plane's bookkeeping: which chunks of workers it takes, and which weights each worker gets when."""

from __future__ import annotations

from plane.bookkeeping import AGGREGATOR_SESSION, PlaneCore
from protos.tensors_pb2 import BFLOAT16, FLOAT32, GRADIENT, INITIAL_WEIGHTS, WEIGHTS, ChunkHeader
from services.protocol.plan import WireTypes
from services.protocol.versions import Version
from services.tensors.layout import CHUNK_ELEMENTS
from services.tensors.layout_parts import LayoutParts, Piece
from services.tensors.stripes import Stripe

V1, V2 = Version(1, 1), Version(1, 2)


def core_with_job(chunks: int = 6) -> PlaneCore:
    """Return the bookkeeping of plane 1 of 2, with a job of so many chunks and one worker."""
    core = PlaneCore(7, Stripe(1, 2))
    core.open_job("j", chunks * CHUNK_ELEMENTS, WireTypes(BFLOAT16, FLOAT32))
    core.worker_attends(1)
    return core


def sent(core: PlaneCore, session: int = 1) -> list[tuple[int, int]]:
    """Take all weights that may be sent now; return their steps and indices."""
    headers = []
    while (header := core.next_weights(session)) is not None:
        assert (header.kind, header.epoch, header.job, header.generation) == (WEIGHTS, 7, "j", 1)
        assert (header.offset, header.elements) == (header.index * CHUNK_ELEMENTS, CHUNK_ELEMENTS)
        headers.append((header.step, header.index))
    return headers


def test_chunks_of_another_epoch_or_job_are_refused() -> None:
    core = core_with_job()
    assert core.check_chunk(1, ChunkHeader(job="j", epoch=7)) is None
    older = str(core.check_chunk(1, ChunkHeader(job="j", epoch=6)))
    assert "6" in older and "is 7" in older
    other = str(core.check_chunk(1, ChunkHeader(job="k", epoch=7)))
    assert "'k'" in other and "here: j" in other
    core.drop_job("j")
    assert "here: none" in str(core.check_chunk(1, ChunkHeader(job="j", epoch=7)))


def test_the_expected_elements_are_those_of_the_whole_layout() -> None:
    core = core_with_job(6)
    assert core.expected_elements("j") == 6 * CHUNK_ELEMENTS
    assert core.expected_elements("k") is None
    assert [core.wire_type("j", kind) for kind in (GRADIENT, WEIGHTS, INITIAL_WEIGHTS)] == [
        BFLOAT16,
        FLOAT32,
        FLOAT32,
    ]


def test_a_worker_gets_each_chunk_of_a_version_once_as_soon_as_it_is_ready() -> None:
    core = core_with_job(6)
    core.send_version(1, "j", V1)
    assert sent(core) == [], "no weights are ready yet"
    core.weights_ready("j", V1, 1)
    assert sent(core) == [(1, 1)]
    core.weights_ready("j", V1, 3)
    assert sent(core) == [(1, 3), (1, 5)]
    assert sent(core) == [], "each once"


def test_a_worker_gets_no_weights_without_an_order() -> None:
    core = core_with_job(6)
    core.weights_ready("j", V1, 3)
    assert sent(core) == []
    core.send_version(1, "j", V1)
    assert len(sent(core)) == 3


def test_an_order_for_the_same_version_sends_all_of_it_again() -> None:
    core = core_with_job(6)
    core.weights_ready("j", V1, 3)
    core.send_version(1, "j", V1)
    core.next_weights(1)
    core.send_version(1, "j", V1)
    assert sent(core) == [(1, 1), (1, 3), (1, 5)]


def test_a_newer_version_is_sent_from_its_first_chunk() -> None:
    core = core_with_job(6)
    core.weights_ready("j", V1, 3)
    core.send_version(1, "j", V1)
    assert core.next_weights(1) is not None
    core.weights_ready("j", V2, 1)
    assert sent(core) == [], "the rest of the older version was overwritten"
    core.send_version(1, "j", V2)
    assert sent(core) == [(2, 1)]


def test_unknown_workers_get_no_weights() -> None:
    core = core_with_job()
    core.weights_ready("j", V1, 3)
    core.send_version(1, "j", V1)
    core.worker_left(1)
    core.send_version(9, "j", V1)
    assert (sent(core, 1), sent(core, 9)) == ([], [])


def test_weights_of_a_former_job_are_not_sent() -> None:
    core = core_with_job()
    core.weights_ready("j", V1, 3)
    core.send_version(1, "j", V1)
    core.drop_job("j")
    assert not core.weights_ready("j", V1, 1)
    assert sent(core) == []


def core_with_two_jobs() -> PlaneCore:
    """Return the bookkeeping of plane 1 of 2, with a second job, and a second worker that it sends weights to."""
    core = core_with_job(6)
    core.open_job("k", 4 * CHUNK_ELEMENTS, WireTypes(FLOAT32, BFLOAT16), sends_pieces=True)
    core.worker_attends(2)
    core.send_version(1, "j", V1)
    core.send_version(2, "k", V1)
    return core


def places_sent(core: PlaneCore, session: int) -> list[tuple[str, int, int]]:
    """Take all weights that may be sent now; return their jobs, steps and indices."""
    found = []
    while (header := core.next_weights(session)) is not None:
        found.append((header.job, header.step, header.index))
    return found


def test_questions_about_a_job_are_answered_with_its_own_settings() -> None:
    core = core_with_two_jobs()
    assert core.jobs == ["j", "k"]
    assert [core.expected_elements(each) for each in core.jobs] == [6 * CHUNK_ELEMENTS, 4 * CHUNK_ELEMENTS]
    assert [core.wire_type(each, GRADIENT) for each in core.jobs] == [BFLOAT16, FLOAT32]
    assert [core.sends_pieces(each) for each in core.jobs] == [False, True]
    assert all(core.check_chunk(1, ChunkHeader(job=each, epoch=7)) is None for each in core.jobs)


def test_weights_of_one_job_are_not_ready_with_those_of_another() -> None:
    core = core_with_two_jobs()
    core.weights_ready("j", V1, 3)
    assert places_sent(core, 2) == [], "the same version of another job is ready"
    assert places_sent(core, 1) == [("j", 1, 1), ("j", 1, 3), ("j", 1, 5)]
    core.weights_ready("k", V1, 2)
    assert places_sent(core, 2) == [("k", 1, 1), ("k", 1, 3)]


def test_a_job_that_is_dropped_made_again_or_opened_again_leaves_the_others_weights() -> None:
    for change in (PlaneCore.drop_job, PlaneCore.remake_weights):
        core = core_with_two_jobs()
        core.weights_ready("j", V1, 3)
        core.weights_ready("k", V1, 2)
        change(core, "k")
        assert len(places_sent(core, 1)) == 3
        assert places_sent(core, 2) == []
    core = core_with_two_jobs()
    core.weights_ready("j", V1, 3)
    core.open_job("k", CHUNK_ELEMENTS, WireTypes())
    assert len(places_sent(core, 1)) == 3


def test_a_worker_that_moves_to_another_job_gets_nothing_more_of_its_former_one() -> None:
    core = core_with_two_jobs()
    core.weights_ready("j", V1, 3)
    core.weights_ready("k", V1, 2)
    assert core.next_weights(1) is not None
    core.send_version(1, "k", V1)
    assert places_sent(core, 1) == [("k", 1, 1), ("k", 1, 3)]


def test_a_job_that_begins_at_the_version_of_the_last_one_needs_an_order_of_its_own() -> None:
    core = core_with_job(6)
    core.weights_ready("j", V1, 3)
    core.send_version(1, "j", V1)
    core.open_job("j", 6 * CHUNK_ELEMENTS, WireTypes())
    core.weights_ready("j", V1, 3)
    assert sent(core) == [], "nothing is ordered yet"
    core.send_version(1, "j", V1)
    assert sent(core) == [(1, 1), (1, 3), (1, 5)]


def pieces_sent(core: PlaneCore, session: int = 1) -> list[Piece]:
    """Take all pieces of weights that may be sent now."""
    found = []
    while (header := core.next_weights(session)) is not None:
        found.append(Piece(header.index, header.offset, header.elements))
    return found


PARTS = LayoutParts(
    [(CHUNK_ELEMENTS - 7, 2 * CHUNK_ELEMENTS - 5), (3 * CHUNK_ELEMENTS + 2, 5 * CHUNK_ELEMENTS + 9)]
)
OWN = [piece for place in range(len(PARTS)) if (piece := PARTS[place]).chunk % 2]
"""Pieces of the parts that are in the plane's chunks: two of four in chunks 0, 1, 3, 4 and 5."""


def test_a_worker_with_parts_gets_their_pieces_of_the_planes_chunks() -> None:
    core = core_with_job(6)
    core.weights_ready("j", V1, 1)
    core.send_version(1, "j", V1, PARTS)
    assert pieces_sent(core) == OWN[:1], "the next chunk is not ready"
    core.weights_ready("j", V1, 3)
    assert pieces_sent(core) == OWN[1:]
    assert [piece.chunk for piece in OWN] == [1, 3, 5]
    assert pieces_sent(core) == [], "each once"


def test_a_worker_with_other_parts_gets_them_from_the_first() -> None:
    core = core_with_job(6)
    core.weights_ready("j", V1, 3)
    core.send_version(1, "j", V1, PARTS)
    assert pieces_sent(core) == OWN
    core.send_version(1, "j", V1, LayoutParts([(CHUNK_ELEMENTS, CHUNK_ELEMENTS + 4)]))
    assert pieces_sent(core) == [Piece(1, CHUNK_ELEMENTS, 4)]


def test_a_chunk_with_two_pieces_of_a_worker_sends_both() -> None:
    core = core_with_job(6)
    core.weights_ready("j", V1, 3)
    first, second = (CHUNK_ELEMENTS + 1, CHUNK_ELEMENTS + 3), (CHUNK_ELEMENTS + 8, CHUNK_ELEMENTS + 9)
    core.send_version(1, "j", V1, LayoutParts([first, second]))
    assert pieces_sent(core) == [Piece(1, first[0], 2), Piece(1, second[0], 1)]


def test_an_aggregator_gets_the_weights_of_its_jobs_in_turn() -> None:
    core = PlaneCore(3, Stripe())
    core.worker_attends(AGGREGATOR_SESSION)
    for job in ("a", "b"):
        core.open_job(job, 2 * CHUNK_ELEMENTS, WireTypes())
        core.send_version(AGGREGATOR_SESSION, job, Version(1, 1))
    assert core.next_weights(AGGREGATOR_SESSION) is None
    core.weights_ready("b", Version(1, 1), 1)
    sent = []
    for job, chunks in (("a", 2), ("b", 2)):
        core.weights_ready(job, Version(1, 1), chunks)
    while (header := core.next_weights(AGGREGATOR_SESSION)) is not None:
        sent.append((header.job, header.index))
    assert sent == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    core.send_version(AGGREGATOR_SESSION, "a", Version(1, 2))
    core.weights_ready("a", Version(1, 2), 1)
    header = core.next_weights(AGGREGATOR_SESSION)
    assert header is not None and header.step == 2
