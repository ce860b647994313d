"""The optimizer's core: aggregators, opening a job, steps, weights. Each string is one effect, in order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from optimizer.core import events as ev
from optimizer.core.optimizer import OptimizerCore
from protos import cluster_pb2 as pb
from protos.files_pb2 import FileRef
from protos.tensors_pb2 import GRADIENT, ChunkHeader, Findings, NonFinite
from services.protocol.hello import PROTOCOL_RANGE
from services.protocol.versions import LAST_EPOCH, PROTOCOL_VERSION
from tests.support.dialogues.optimizer import PLAN, Dialogue, training

NEXT_PROTOCOL = PROTOCOL_VERSION + 1

# ---- aggregators ----


def test_an_older_aggregator_is_refused_by_name() -> None:
    dialogue = Dialogue(epoch=3)
    (text,) = dialogue.connect(2)
    assert text.startswith("refuse: ") and all(part in text for part in ("agg", "epoch 2", "obeys epoch 3"))
    assert dialogue.connect(3) == [], "the same aggregator, after its link broke"
    assert dialogue.connect(4) == ["save epoch 4"]
    assert dialogue.order(pb.Open(job="a"), epoch=3) == [], "an order of the former aggregator"


def test_a_restarted_optimizer_refuses_older_epochs() -> None:
    core = OptimizerCore(name="opt", epoch=3)
    older, same = (
        pb.Hello(protocol=PROTOCOL_VERSION, role="aggregator", name="agg", epoch_seen=epoch)
        for epoch in (2, 3)
    )
    assert "obeys epoch 3" in str(core.check_hello(older))
    (refusal,) = core.handle(ev.Connected(older))
    assert isinstance(refusal, ev.Refuse)
    assert core.handle(ev.Connected(same)) == [], "it is on disk already"


@pytest.mark.parametrize("epoch", [LAST_EPOCH + 1, (1 << 64) - 1])
def test_an_epoch_beyond_the_last_is_refused(epoch: int) -> None:
    (text,) = Dialogue().connect(epoch)
    assert text.startswith("refuse: aggregator agg ") and f"epoch {epoch}" in text and str(LAST_EPOCH) in text


@pytest.mark.parametrize(
    ("fields", "facts"),
    [
        (
            {"protocol": NEXT_PROTOCOL, "protocol_min": NEXT_PROTOCOL},
            ("agg", f"protocol {NEXT_PROTOCOL}", f"optimizer {PROTOCOL_RANGE}"),
        ),
        ({"role": "worker"}, ("agg", "'worker'")),
    ],
)
def test_other_protocols_and_roles_are_refused(fields: dict[str, Any], facts: tuple[str, ...]) -> None:
    (text,) = Dialogue().connect(1, **fields)
    assert text.startswith("refuse: ") and all(fact in text for fact in facts)


# ---- opening a job ----


def test_a_job_from_nothing_to_training() -> None:
    dialogue = Dialogue()
    assert dialogue.open() == ["load a"]
    assert dialogue.open() == [], "ordered again while it loads"
    assert dialogue.loaded() == ["save generation 1", "send empty 1.0, missing nothing"]
    order = pb.Initialise(job="a", layout=FileRef(sha256="layout"), files={"config.json": FileRef()})
    assert dialogue.order(order) == ["allocate a"]
    assert dialogue.order(order) == [], "ordered again while arrays are allocated"
    assert dialogue.initial(0) == [], "no arrays yet"
    assert dialogue.give(ev.Allocated("a", "layout", dialogue.elements)) == [
        "send receiving 1.0, missing #0 #1"
    ]
    assert dialogue.initial(0) == ["store #0"]
    assert dialogue.initial(0) == [], "repeated"
    assert dialogue.order(order) == ["send receiving 1.0, missing #1"], "another worker sends the rest"
    assert dialogue.initial(1) == ["store #1", "snapshot 1.0"]
    assert dialogue.order(order) == ["send receiving 1.0, missing nothing"]
    assert dialogue.initial(1) == []
    assert dialogue.give(ev.Saved(dialogue.written(1, 0))) == [
        "send training 1.0, missing #0 #1",
        "send checkpoint 1.0",
    ]
    assert dialogue.order(order) == [], "there are weights already"


def test_another_layout_replaces_one_whose_weights_never_became_complete() -> None:
    dialogue = Dialogue()
    dialogue.open()
    dialogue.loaded()
    dialogue.order(pb.Initialise(job="a", layout=FileRef(sha256="one")))
    dialogue.give(ev.Allocated("a", "one", dialogue.elements))
    dialogue.initial(0)
    assert dialogue.order(pb.Initialise(job="a", layout=FileRef(sha256="two"))) == ["allocate a"]
    assert dialogue.initial(1) == [], "a chunk of the layout that was replaced"
    assert dialogue.give(ev.Allocated("a", "one", dialogue.elements)) == []
    assert dialogue.give(ev.Allocated("a", "two", 1)) == ["send receiving 1.0, missing #0"]


def test_a_job_on_disk_continues_under_a_new_generation() -> None:
    dialogue = Dialogue()
    dialogue.open(generation=6)
    assert dialogue.loaded(generation=4, step=2) == [
        "save generation 7",
        "send training 7.2, missing #0 #1",
        "send checkpoint 4.2",
    ], "higher than the generations on disk and at the aggregator"


def test_opening_an_open_job_sends_its_status() -> None:
    dialogue = training(step=2)
    dialogue.chunk(1, 1, 2)
    status = ["send training 1.2, missing #0", "send checkpoint 0.2"]
    assert dialogue.connect(2) == ["save epoch 2", *status]
    assert dialogue.open() == status


def test_a_job_that_is_closed_while_it_loads_is_not_opened() -> None:
    dialogue = Dialogue()
    assert dialogue.open("b") == ["load b"]
    assert dialogue.order(pb.Close(job="b")) == []
    assert dialogue.loaded("b") == [], "closed before it was loaded"
    assert dialogue.open("b") == ["load b"]


def test_a_job_that_cannot_be_loaded_fails() -> None:
    dialogue = Dialogue()
    dialogue.open()
    assert dialogue.give(ev.OperationFailed("a", "checkpoint: flipped byte")) == [
        "send failure: checkpoint: flipped byte"
    ]
    assert dialogue.open() == ["load a"], "it can be tried again"


# ---- a step ----


def test_one_step_from_gradients_to_new_weights() -> None:
    dialogue = training()
    assert dialogue.chunk(1) == ["stage #1"]
    assert dialogue.chunk(0) == ["stage #0"]
    assert dialogue.staged() == ["send commit 1.0", "update step 0", "weights 1.1"]
    assert dialogue.updated(0) == []


def test_stale_and_repeated_chunks_change_nothing() -> None:
    dialogue = training(step=2)
    assert dialogue.chunk(0, 1, 2) == ["stage #0"]
    for effects in (
        dialogue.chunk(0, 1, 2),  # repeated
        dialogue.chunk(1, 1, 1),  # a step before
        dialogue.chunk(1, 1, 3),  # a step to come
        dialogue.chunk(1, 0, 2),  # another generation
        dialogue.chunk(1, 1, 2, epoch=9),  # another aggregator
        dialogue.chunk(1, 1, 2, job="b"),
        dialogue.chunk(7, 1, 2),  # no such chunk
        dialogue.initial(1),
    ):
        assert effects == []
    assert dialogue.chunk(1, 1, 2) == ["stage #1"]
    assert dialogue.chunk(1, 1, 2) == [], "the step is being decided"


def test_a_step_happens_once() -> None:
    dialogue = training()
    dialogue.chunk(0)
    dialogue.chunk(1)
    assert dialogue.staged() == ["send commit 1.0", "update step 0", "weights 1.1"]
    assert dialogue.staged() == []
    dialogue.updated(0)
    assert dialogue.chunk(0) == [] and dialogue.chunk(1) == []


def test_a_step_with_a_gradient_that_is_not_finite_is_skipped() -> None:
    dialogue = training()
    dialogue.chunk(0)
    dialogue.chunk(1)
    assert dialogue.staged(finite=False) == [
        "send commit 1.0 skipped",
        "update step 0 skipped",
        "weights 1.1",
    ]


FOUND = NonFinite(micro_batch=1, parameter="w", worker="a")


def test_a_commit_names_the_gradients_that_were_not_finite_to_a_new_aggregator_too() -> None:
    dialogue = training()
    dialogue.chunk(1)
    dialogue.chunk(0, findings=Findings(non_finite=[FOUND], count=1))
    dialogue.give(ev.Disconnected())
    dialogue.connect(2)
    assert dialogue.staged(finite=False) == ["send commit 1.0 skipped, a 1", "update step 0 skipped"]
    dialogue.updated(0)
    dialogue.chunk(1, 1, 1)
    dialogue.chunk(0, 1, 1)
    assert dialogue.staged(finite=False) == ["send commit 1.1 skipped", "update step 1 skipped"]


def test_with_on_non_finite_stop_the_step_is_not_committed() -> None:
    dialogue = Dialogue()
    dialogue.open()
    plan = replace(PLAN, on_non_finite="stop")
    dialogue.give(ev.Loaded("a", plan, 0, "layout", dialogue.elements, dialogue.written(1, 0)))
    dialogue.chunk(1)
    dialogue.chunk(0, findings=Findings(non_finite=[FOUND], count=1))
    (failure,) = dialogue.staged(finite=False)
    assert failure.startswith("send failure: step 1: ")
    assert all(
        fact in failure for fact in ("worker a", "micro-batch 1", "parameter w", "on_non_finite: stop")
    )
    dialogue.give(ev.Disconnected())
    dialogue.connect(2)
    assert failure in dialogue.open(), "the next aggregator learns of it too"


# ---- weights ----


def test_weights_are_streamed_only_after_a_request_on_the_same_link() -> None:
    dialogue = training()
    dialogue.chunk(0)
    dialogue.chunk(1)
    dialogue.connect(2)
    assert dialogue.staged() == ["send commit 1.0", "update step 0"], "it may not know the job's version yet"
    dialogue.updated(0)
    assert dialogue.send_weights(1, 0) == ["make 1.1", "weights 1.1"], (
        "the version that has replaced the requested one"
    )


def test_weights_that_are_being_updated_are_not_made_again() -> None:
    dialogue = training()
    dialogue.chunk(0)
    dialogue.chunk(1)
    dialogue.connect(2)
    dialogue.staged()
    dialogue.updated(0, [0])
    assert dialogue.send_weights(1, 1) == ["weights 1.1"]


def test_the_next_version_can_be_requested_before_it_exists() -> None:
    dialogue = training()
    dialogue.connect(1)
    assert dialogue.send_weights(1, 1) == []
    dialogue.chunk(0)
    dialogue.chunk(1)
    assert dialogue.staged()[-1] == "weights 1.1"


def test_weights_are_not_made_before_there_are_any() -> None:
    dialogue = Dialogue()
    dialogue.open()
    dialogue.loaded()
    assert dialogue.send_weights(1, 0) == []


def test_weights_of_another_generation_are_not_sent() -> None:
    dialogue = training()
    dialogue.connect(1)
    assert dialogue.send_weights(7, 0) == []


def test_weights_are_sent_again_on_a_second_request() -> None:
    dialogue = training()
    assert dialogue.send_weights(1, 0) == ["make 1.0", "weights 1.0"]


def test_nothing_is_streamed_while_the_link_is_down() -> None:
    dialogue = training()
    dialogue.send_weights(1, 0)
    dialogue.give(ev.Disconnected())
    dialogue.chunk(0)
    assert dialogue.chunk(1) == ["stage #1"], "the chunk from before counts"
    assert dialogue.staged() == ["update step 0"], "no aggregator to send the commit to"


# ---- tensors in shards ----


def test_lost_tensors_are_loaded_again_under_a_new_generation() -> None:
    dialogue = training()
    dialogue.chunk(0)
    assert dialogue.give(ev.TensorsLost()) == ["drop job"]
    assert dialogue.chunk(1) == [], "a chunk of the lost sum"
    assert dialogue.open(generation=1) == ["load a"]
    assert dialogue.loaded(generation=1, step=0) == [
        "save generation 2",
        "send training 2.0, missing #0 #1",
        "send checkpoint 1.0",
    ]


def test_tensors_lost_while_a_job_is_loaded() -> None:
    dialogue = Dialogue()
    dialogue.open()
    assert dialogue.core.is_loading("a")
    assert dialogue.give(ev.TensorsLost()) == []
    assert not dialogue.core.is_loading("a")
    assert dialogue.loaded() == [], "the answer to the cancelled load"
    assert dialogue.open() == ["load a"]


def test_a_sum_in_which_nothing_counts_is_refused() -> None:
    dialogue = training()
    header = ChunkHeader(job="a", epoch=dialogue.core.epoch, generation=1, kind=GRADIENT)
    refusal = dialogue.core.check_chunk(header)
    assert refusal is not None and "findings.count is 0, expected 1 to" in str(refusal)
    header.findings.count = 7
    assert dialogue.core.check_chunk(header) is None
