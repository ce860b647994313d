"""Dialogues with the worker's core. Each line is one effect, in order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from protos import cluster_pb2 as pb
from protos.tensors_pb2 import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    GRADIENT,
    INITIAL_WEIGHTS,
    WEIGHTS,
    ChunkHeader,
    NonFinite,
)
from services.plan import WINDOW_CHUNKS, WireTypes
from services.tensors.layout import CHUNK_ELEMENTS
from services.tensors.ranges import to_ranges
from worker import events as ev
from worker.core import WorkerCore


def line(effect: ev.Effect) -> str:
    """An effect on one line."""
    match effect:
        case ev.Say(pb.Ready() as body):
            return f"say ready{f', holds {body.generation}.{body.step}' if body.holds else ''}"
        case ev.Say(pb.Holding() as body):
            return f"say holding {body.generation}.{body.step}"
        case ev.Say(pb.Unable() as body):
            return f"say {'unfit' if body.retries else 'unable'}: {body.reason}"
        case ev.Say():
            return f"say {type(effect.body).__name__.lower()}"
        case ev.Load():
            return f"load #{effect.header.index}"
        case ev.Perform():
            return f"perform {effect.lease.lease}"
        case ev.DropLease():
            return f"drop lease {effect.lease}"
        case ev.Build():
            return f"build {effect.job}"
        case ev.BuildLater():
            return f"build after {effect.seconds:g} s ({effect.attempt})"
    return "drop job"


class Dialogue:
    """A worker's core, and what was said to it."""

    def __init__(self, chunks: int = 3) -> None:
        self.core = WorkerCore(name="w")
        self.chunks = chunks

    def give(self, event: ev.Input) -> list[str]:
        """Any input."""
        return [line(effect) for effect in self.core.handle(event)]

    def connect(self, epoch: int = 1) -> list[str]:
        """The streams to an aggregator come up."""
        self.give(ev.Connected())
        return self.order(pb.Welcome(name="agg"), epoch)

    def order(self, body: Any, epoch: int | None = None) -> list[str]:
        """An order of the aggregator."""
        return self.give(ev.Ordered(self.core.epoch if epoch is None else epoch, body))

    def join(self, job: str = "a") -> list[str]:
        """The aggregator has a job built."""
        return self.order(pb.Join(job=job, spec_json="{}"))

    def built(self, job: str = "a") -> list[str]:
        """The job is built."""
        return self.give(ev.Built(job, "hash", self.chunks * CHUNK_ELEMENTS, 2, 10))

    def weights(self, generation: int, step: int, *indices: int, **fields: Any) -> list[str]:
        """Chunks of weights; all of them unless some are named."""
        lines = []
        for index in indices or range(self.chunks):
            values = {"job": "a", "epoch": self.core.epoch, "kind": WEIGHTS, **fields}
            header = ChunkHeader(generation=generation, step=step, index=index, **values)
            lines += self.give(ev.WeightsArrived(header))
        return lines

    def loaded(self, generation: int, step: int) -> list[str]:
        """The weights are on the mesh."""
        return self.give(ev.Loaded("a", generation, step))

    def lease(
        self,
        lease: int,
        generation: int = 1,
        step: int = 0,
        *,
        phase: Any = pb.TRAIN,
        chunks: Iterable[int] = (),
    ) -> list[str]:
        """A lease is granted."""
        return self.order(
            pb.Lease(
                job="a",
                generation=generation,
                step=step,
                lease=lease,
                phase=phase,
                count=2,
                chunks=to_ranges(chunks),
            )
        )

    def sent(self) -> list[str]:
        """The chunks that may be sent now."""
        lines = []
        while (header := self.core.next_chunk()) is not None:
            losses = f" losses {list(header.losses)}" if header.losses else ""
            found = "".join(f" not finite {each.micro_batch}" for each in header.non_finite)
            lines.append(f"{header.lease} #{header.index}{losses}{found}")
        return lines


def holding(chunks: int = 3) -> Dialogue:
    """A worker that holds the weights of 1.0."""
    talk = Dialogue(chunks)
    talk.connect()
    talk.join()
    talk.built()
    talk.weights(1, 0)
    talk.loaded(1, 0)
    return talk


def test_each_lane_takes_its_chunks_in_the_agreed_order() -> None:
    talk = holding(7)
    talk.lease(5)
    talk.give(ev.NodeReady(5, 1))

    def sent(lane: int) -> list[int]:
        taken = []
        while (header := talk.core.next_chunk(lane, 3)) is not None:
            taken.append(header.index)
        return taken

    assert sent(1) == [4, 1]
    assert sent(0) == [6, 3], "chunk 0 is not in place yet"
    assert sent(2) == [5, 2]


# ---- the aggregator ----


def test_hello_says_what_this_worker_has_seen() -> None:
    talk = holding()
    hello = talk.core.hello("one")
    assert (hello.epoch_seen, hello.layout_hash, hello.incarnation) == (1, "hash", "one")
    assert (hello.shard_index, hello.shard_count) == (0, 1)


def test_orders_of_a_former_aggregator_are_not_obeyed() -> None:
    talk = Dialogue()
    talk.connect(epoch=5)
    assert talk.order(pb.Join(job="a"), epoch=4) == []
    assert talk.order(pb.Join(job="a"), epoch=5) == ["build a"]


def test_nothing_is_said_before_welcome() -> None:
    talk = holding()
    talk.give(ev.Disconnected())
    talk.give(ev.Connected())
    talk.weights(1, 1)
    assert talk.loaded(1, 1) == []
    talk.order(pb.Welcome(), epoch=2)
    assert talk.join() == ["say ready, holds 1.1"], "the job is still built"


def test_a_broken_link_voids_the_leases_but_not_the_weights() -> None:
    talk = holding()
    talk.lease(7)
    assert talk.give(ev.Disconnected()) == ["drop lease 7"]
    assert talk.sent() == []
    talk.connect(epoch=2)
    assert talk.join() == ["say ready, holds 1.0"]
    assert talk.lease(8) == ["perform 8"]


# ---- the job ----


def test_a_job_is_built_once() -> None:
    talk = Dialogue()
    talk.connect()
    assert talk.join() == ["build a"]
    assert talk.join() == [], "being built"
    assert talk.built() == ["say ready"]
    assert talk.join() == ["say ready"]
    assert talk.join("b") == ["drop job", "build b"]
    assert talk.built("a") == [], "not wanted any more"


def test_a_job_that_cannot_be_built() -> None:
    talk = Dialogue()
    talk.connect()
    talk.join()
    assert talk.give(ev.BuildFailed("a", "no such corpus")) == ["say unable: no such corpus"]
    assert talk.join() == ["build a"], "it can be tried again"


def test_a_mesh_that_cannot_be_opened_is_tried_again_less_and_less_often() -> None:
    talk = Dialogue()
    talk.connect()
    talk.join()
    waits = []
    for attempt in range(1, 9):
        said, later = talk.give(ev.BuildFailed("a", "chips busy", unfit=True))
        assert said == "say unfit: chips busy"
        waits.append(float(later.split()[2]))
        assert talk.give(ev.BuildDue(attempt)) == ["build a"]
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300]
    assert talk.built() == ["say ready"]
    assert talk.join("b") == ["drop job", "build b"]
    assert talk.give(ev.BuildFailed("b", "busy", unfit=True))[1] == "build after 5 s (9)", "counted anew"


def test_an_unfit_worker_says_so_to_the_next_aggregator() -> None:
    talk = Dialogue()
    talk.connect()
    talk.join()
    talk.give(ev.BuildFailed("a", "chips busy", unfit=True))
    talk.give(ev.Disconnected())
    talk.connect(epoch=2)
    assert talk.join() == ["say unfit: chips busy"]


def test_a_try_that_is_not_wanted_any_more() -> None:
    talk = Dialogue()
    talk.connect()
    talk.join()
    talk.give(ev.BuildFailed("a", "chips busy", unfit=True))
    assert talk.order(pb.Leave(job="a")) == ["drop job"]
    assert talk.give(ev.BuildDue(1)) == []
    assert talk.join() == ["build a"]
    assert talk.give(ev.BuildDue(1)) == [], "of the time before"
    talk.give(ev.BuildFailed("a", "chips busy", unfit=True))
    assert talk.built() == ["say ready"]
    assert talk.give(ev.BuildDue(2)) == [], "it is built"


def test_leaving_a_job_drops_all_of_it() -> None:
    talk = holding()
    talk.lease(7)
    assert talk.order(pb.Leave(job="b")) == []
    assert talk.order(pb.Leave(job="a")) == ["drop lease 7", "drop job"]
    assert talk.lease(8) == []


# ---- weights ----


def test_weights_of_a_version() -> None:
    talk = Dialogue()
    talk.connect()
    talk.join()
    assert talk.weights(1, 0) == [], "not built yet"
    talk.built()
    assert talk.weights(1, 0, 0, 1) == ["load #0", "load #1"]
    assert talk.weights(1, 0, 1) == [], "repeated"
    assert talk.weights(1, 0, 2) == ["load #2"]
    assert talk.loaded(1, 0) == ["say holding 1.0"]
    assert talk.loaded(1, 7) == [], "not what came last"


def test_stale_weights_change_nothing() -> None:
    talk = holding()
    talk.weights(2, 1)
    talk.loaded(2, 1)
    assert talk.weights(2, 0) == [] and talk.weights(1, 9) == [], "older versions"
    assert talk.weights(2, 2, epoch=9) == [] and talk.weights(2, 2, job="b") == []
    assert talk.weights(2, 2, 7) == [], "no such chunk"
    assert talk.weights(2, 2, kind=GRADIENT) == []
    assert talk.lease(7, 2, 1) == ["perform 7"], "it still holds what it held"


def test_new_weights_tell_of_the_commit() -> None:
    talk = holding()
    talk.lease(7)
    talk.give(ev.NodeReady(7, 0, (1.0, 2.0)))
    assert talk.weights(1, 1, 0) == ["drop lease 7", "load #0"]
    assert talk.sent() == []
    assert talk.lease(8) == [], "of weights that are overwritten"
    assert talk.give(ev.LeaseComputed(7, 1.0, 10)) == []


def test_a_newer_version_overtakes_one_that_is_being_loaded() -> None:
    talk = holding()
    talk.weights(1, 1)
    talk.weights(1, 2, 0)
    assert talk.loaded(1, 1) == []
    talk.weights(1, 2, 1, 2)
    assert talk.loaded(1, 2) == ["say holding 1.2"]


# ---- leases that are granted before their weights are on the mesh ----


def test_a_lease_is_begun_with_the_first_chunk_of_its_weights() -> None:
    talk = holding()
    assert talk.lease(8, 1, 1) == [], "its weights are still to come"
    assert talk.sent() == []
    assert talk.weights(1, 1, 0) == ["load #0", "perform 8"]
    assert talk.weights(1, 1, 1) == ["load #1"]
    assert talk.lease(9, 1, 1) == ["perform 9"], "its weights are coming in"
    assert talk.weights(1, 1, 2) == ["load #2"]
    assert talk.loaded(1, 1) == ["say holding 1.1"]
    assert talk.lease(10, 1, 1) == ["perform 10"]


def test_the_former_lease_is_dropped_before_the_next_begins() -> None:
    talk = holding()
    talk.lease(7)
    talk.give(ev.NodeReady(7, 0, (1.0, 2.0)))
    assert talk.lease(8, 1, 1) == []
    assert talk.sent() == ["7 #2", "7 #1", "7 #0 losses [1.0, 2.0]"], "its sum may still be wanted"
    assert talk.weights(1, 1, 0) == ["drop lease 7", "load #0", "perform 8"]


def test_a_lease_whose_weights_never_come() -> None:
    talk = holding()
    talk.lease(8, 1, 1)
    talk.lease(9, 2, 0)
    assert talk.weights(2, 0, 0) == ["load #0", "perform 9"], "the generation is another: nobody wants 8"
    assert talk.order(pb.Revoke(job="a", lease=8)) == []
    assert talk.lease(10, 1, 1) == [], "late"


def test_a_lease_outlasts_weights_older_than_its_own() -> None:
    talk = holding()
    talk.lease(8, 1, 2)
    assert talk.weights(1, 1, 0) == ["load #0"], "of the step before, which others computed"
    assert talk.weights(1, 2, 0) == ["load #0", "perform 8"]


def test_a_lease_is_revoked_or_lost_before_its_weights_come() -> None:
    talk = holding()
    talk.lease(8, 1, 1)
    talk.lease(9, 1, 1)
    assert talk.order(pb.Revoke(job="a", lease=8)) == [], "it was not begun"
    assert talk.weights(1, 1, 0) == ["load #0", "perform 9"]
    assert talk.give(ev.Disconnected()) == ["drop lease 9"]
    talk.connect(epoch=2)
    assert talk.weights(1, 1, 0, 1, 2) == ["load #1", "load #2"]


def test_an_evaluation_is_begun_as_any_lease() -> None:
    talk = holding()
    assert talk.lease(8, 1, 1, phase=pb.EVALUATE) == []
    assert talk.weights(1, 1, 0) == ["load #0", "perform 8"]


# ---- leases ----


def test_a_node_is_sent_last_chunk_first_as_it_becomes_ready() -> None:
    talk = holding()
    talk.lease(7)
    assert talk.lease(7) == [], "repeated"
    assert talk.sent() == []
    talk.give(ev.NodeReady(7, 1))
    assert talk.sent() == ["7 #2", "7 #1"]
    talk.give(ev.NodeReady(7, 0, (1.0, 2.0)))
    assert talk.sent() == ["7 #0 losses [1.0, 2.0]"]
    assert talk.give(ev.LeaseComputed(7, 1.0, 10)) == ["say computed"]


def test_gradients_that_are_not_finite_are_named_with_the_last_chunk_however_often_it_goes() -> None:
    talk = holding()
    talk.lease(7)
    talk.give(ev.NodeReady(7, 0, (1.0, 2.0), (NonFinite(micro_batch=1, parameter="w"),)))
    assert talk.sent() == ["7 #2", "7 #1", "7 #0 losses [1.0, 2.0] not finite 1"]
    talk.order(pb.Resend(job="a", lease=7, chunks=to_ranges([0])))
    assert talk.sent() == ["7 #0 losses [1.0, 2.0] not finite 1"]


def test_only_what_is_wanted_of_a_node_is_sent() -> None:
    talk = holding()
    talk.lease(7, chunks=[0, 2])
    talk.give(ev.NodeReady(7, 0, (1.0, 2.0)))
    assert talk.sent() == ["7 #2", "7 #0 losses [1.0, 2.0]"]


def test_chunks_are_sent_again_when_asked() -> None:
    talk = holding()
    talk.lease(7)
    talk.give(ev.NodeReady(7, 0, (1.0, 2.0)))
    talk.sent()
    talk.order(pb.Resend(job="a", lease=7, chunks=to_ranges([0, 2])))
    assert talk.sent() == ["7 #2", "7 #0 losses [1.0, 2.0]"]
    talk.order(pb.Resend(job="a", lease=99, chunks=to_ranges([0])))
    assert talk.sent() == []


def test_a_revoked_lease_is_dropped() -> None:
    talk = holding()
    talk.lease(7)
    assert talk.order(pb.Revoke(job="a", lease=7)) == ["drop lease 7"]
    assert talk.order(pb.Revoke(job="a", lease=7)) == []
    talk.give(ev.NodeReady(7, 0, (1.0, 2.0)))
    assert talk.sent() == []


def test_a_lease_that_fails_is_said_so() -> None:
    talk = holding()
    talk.lease(7)
    assert talk.give(ev.LeaseFailed(7, "out of memory")) == ["drop lease 7", "say unable: out of memory"]


def test_nothing_is_sent_beyond_the_window() -> None:
    talk = holding(chunks=40)
    talk.lease(7)
    talk.lease(8)
    for lease in (7, 8):
        talk.give(ev.NodeReady(lease, 0, (1.0, 2.0)))
    assert len(talk.sent()) == 2 * WINDOW_CHUNKS, "what is before the window's end, of each lease"
    talk.order(pb.Window(job="a", generation=1, step=0, limit=WINDOW_CHUNKS + 8))
    talk.order(pb.Window(job="a", generation=1, step=0, limit=WINDOW_CHUNKS + 4))
    last = 39 - WINDOW_CHUNKS
    assert talk.sent() == [f"{lease} #{chunk}" for lease in (7, 8) for chunk in range(last, last - 4, -1)], (
        "the newest window counts, be it narrower: it begins anew after sums were lost"
    )


def test_a_window_belongs_to_one_aggregator() -> None:
    talk = holding(chunks=40)
    talk.order(pb.Window(job="a", generation=1, step=0, limit=40))
    talk.give(ev.Disconnected())
    talk.connect(epoch=2)
    talk.join()
    talk.lease(9)
    talk.give(ev.NodeReady(9, 0, (1.0, 2.0)))
    assert len(talk.sent()) == WINDOW_CHUNKS


def test_initial_weights_are_sent_first_chunk_first_when_asked() -> None:
    talk = Dialogue()
    talk.connect()
    talk.join()
    talk.built()
    assert talk.lease(7, 0, 0, phase=pb.INITIALISE) == ["perform 7"]
    assert talk.give(ev.Described(7, "layout", {})) == ["say description"]
    assert talk.sent() == [], "the optimizer says what it lacks"
    talk.order(pb.Resend(job="a", lease=7, chunks=to_ranges([0, 2])))
    header = talk.core.next_chunk()
    assert header is not None and (header.index, header.kind) == (0, INITIAL_WEIGHTS)
    assert talk.sent() == ["7 #2"]


def test_an_evaluation_is_over_when_it_is_told() -> None:
    talk = holding()
    assert talk.lease(7, phase=pb.EVALUATE) == ["perform 7"]
    assert talk.give(ev.LeaseEvaluated(7, (pb.BatchLoss(index=0, sum=1.0, tokens=2),))) == ["say evaluated"]
    assert talk.order(pb.Revoke(job="a", lease=7)) == []


def test_gradients_are_sent_in_the_job_s_type_and_initial_weights_in_float32() -> None:
    talk = Dialogue(chunks=1)
    talk.connect()
    talk.join()
    wire = WireTypes(gradients=BFLOAT16, weights=FLOAT16)
    talk.give(ev.Built("a", "hash", CHUNK_ELEMENTS, 2, 10, wire=wire))
    talk.lease(7, 0, phase=pb.INITIALISE)
    talk.give(ev.Described(7, "layout", {}))
    talk.order(pb.Resend(job="a", lease=7, chunks=to_ranges([0])))
    initial = talk.core.next_chunk()
    talk.weights(1, 0)
    talk.loaded(1, 0)
    talk.lease(8)
    talk.give(ev.NodeReady(8, 0, (1.0, 2.0)))
    gradient = talk.core.next_chunk()
    assert initial is not None and (initial.kind, initial.dtype) == (INITIAL_WEIGHTS, FLOAT32)
    assert gradient is not None and (gradient.kind, gradient.dtype) == (GRADIENT, BFLOAT16)


# ---- checks ----


def test_a_check_tells_its_checksum_sends_nothing_and_is_forgotten() -> None:
    talk = holding()
    assert talk.lease(5, phase=pb.VERIFY) == ["perform 5"]
    assert talk.sent() == []
    checksum = pb.Checksum(micro_batch=3, crc32c=9)
    effects = talk.core.handle(ev.LeaseComputed(5, 0.0, 0, (checksum,)))
    assert [line(effect) for effect in effects] == ["drop lease 5", "say computed"]
    (said,) = [effect.body for effect in effects if isinstance(effect, ev.Say)]
    assert isinstance(said, pb.Computed)
    assert (said.lease, list(said.checksums)) == (5, [checksum])
    assert 5 not in talk.core.leases


def test_a_check_of_weights_that_are_gone_is_dropped() -> None:
    talk = holding()
    talk.lease(5, phase=pb.VERIFY)
    assert talk.weights(1, 1, 0) == ["drop lease 5", "load #0"]
    assert talk.give(ev.LeaseComputed(5, 0.0, 0)) == []
