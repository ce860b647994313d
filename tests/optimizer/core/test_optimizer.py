"""What the optimizer's core does of a job and its steps. Each line is one effect, in order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from optimizer.core import events as ev
from optimizer.core.optimizer import OptimizerCore
from protos import cluster_pb2 as pb
from protos.tensors_pb2 import NonFinite
from services.protocol.versions import LAST_EPOCH, PROTOCOL_VERSION
from tests.support.dialogues.optimizer import PLAN, Dialogue, training

# ---- who is obeyed ----


def test_an_older_aggregator_is_refused_by_name() -> None:
    talk = Dialogue(epoch=3)
    (text,) = talk.connect(2)
    assert text == (
        "refuse: aggregator agg is of epoch 2, this optimizer obeys epoch 3: "
        "a newer aggregator has taken over; stop this one"
    )
    assert talk.connect(3) == [], "the same one, after its link broke"
    assert talk.connect(4) == ["save epoch 4"]
    assert talk.order(pb.Open(job="a"), epoch=3) == [], "a word of the former one"


def test_an_epoch_is_obeyed_over_restarts() -> None:
    core = OptimizerCore(name="opt", epoch=3)
    older, same = (
        pb.Hello(protocol=PROTOCOL_VERSION, role="aggregator", name="agg", epoch_seen=epoch)
        for epoch in (2, 3)
    )
    assert "this optimizer obeys epoch 3" in core.why_not(older)
    (refusal,) = core.handle(ev.Connected(older))
    assert isinstance(refusal, ev.Refuse)
    assert core.handle(ev.Connected(same)) == [], "it is on disk already"


@pytest.mark.parametrize("epoch", [LAST_EPOCH + 1, (1 << 64) - 1])
def test_an_epoch_that_can_not_be_is_not_obeyed(epoch: int) -> None:
    (text,) = Dialogue().connect(epoch)
    assert text.startswith(
        f"refuse: aggregator agg is of epoch {epoch}, the last that there is is {LAST_EPOCH}"
    )


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"protocol": 7}, "aggregator agg speaks protocol 7, this optimizer 2; install the same version"),
        ({"role": "worker"}, "agg says that it is a 'worker'; only aggregators attend an optimizer"),
    ],
)
def test_others_are_refused_by_name(words: dict[str, Any], reason: str) -> None:
    (text,) = Dialogue().connect(1, **words)
    assert text.startswith(f"refuse: {reason}")


# ---- opening a job ----


def test_a_job_from_nothing_to_training() -> None:
    talk = Dialogue()
    assert talk.open() == ["load a"]
    assert talk.open() == [], "asked again while it loads"
    assert talk.loaded() == ["save generation 1", "say empty 1.0, missing nothing"]
    order = pb.Initialise(job="a", layout_json="layout", files={"config.json": b"{}"})
    assert talk.order(order) == ["allocate a"]
    assert talk.order(order) == [], "asked again while room is made"
    assert talk.initial(0) == [], "no room yet"
    assert talk.give(ev.Allocated("a", "layout", talk.elements)) == ["say receiving 1.0, missing #0 #1"]
    assert talk.initial(0) == ["store #0"]
    assert talk.initial(0) == [], "repeated"
    assert talk.order(order) == ["say receiving 1.0, missing #1"], "another worker goes on"
    assert talk.initial(1) == ["store #1", "snapshot 1.0"]
    assert talk.order(order) == ["say receiving 1.0, missing nothing"]
    assert talk.initial(1) == []
    assert talk.give(ev.Saved(talk.written(1, 0))) == [
        "say training 1.0, missing #0 #1",
        "say checkpoint 1.0",
    ]
    assert talk.order(order) == [], "there are weights by now"


def test_another_layout_takes_the_place_of_one_that_was_never_complete() -> None:
    talk = Dialogue()
    talk.open()
    talk.loaded()
    talk.order(pb.Initialise(job="a", layout_json="one"))
    talk.give(ev.Allocated("a", "one", talk.elements))
    talk.initial(0)
    assert talk.order(pb.Initialise(job="a", layout_json="two")) == ["allocate a"]
    assert talk.initial(1) == [], "for the layout that is given up"
    assert talk.give(ev.Allocated("a", "one", talk.elements)) == []
    assert talk.give(ev.Allocated("a", "two", 1)) == ["say receiving 1.0, missing #0"]


def test_a_job_on_disk_continues_under_a_new_generation() -> None:
    talk = Dialogue()
    talk.open(generation=6)
    assert talk.loaded(generation=4, step=2) == [
        "save generation 7",
        "say training 7.2, missing #0 #1",
        "say checkpoint 4.2",
    ], "above what is on disk, and above what the aggregator has seen"


def test_opening_a_job_that_is_open_tells_where_it_stands() -> None:
    talk = training(step=2)
    talk.chunk(1, 1, 2)
    talk.connect(2)
    assert talk.open() == ["say training 1.2, missing #0", "say checkpoint 0.2"]


def test_another_job_takes_the_place_of_the_open_one() -> None:
    talk = training()
    assert talk.open("b") == ["say checkpoint 0.0", "drop job", "load b"]
    assert talk.chunk(0) == []
    assert talk.order(pb.Close(job="b")) == []
    assert talk.loaded("b") == [], "closed before it was loaded"
    assert talk.open("b") == ["load b"]


def test_a_job_that_cannot_be_loaded() -> None:
    talk = Dialogue()
    talk.open()
    assert talk.give(ev.OperationFailed("a", "checkpoint: flipped byte")) == [
        "say unable: checkpoint: flipped byte"
    ]
    assert talk.open() == ["load a"], "it can be tried again"


# ---- a step ----


def test_a_step() -> None:
    talk = training()
    assert talk.chunk(1) == ["stage #1"]
    assert talk.chunk(0) == ["stage #0", "measure step 0"]
    assert talk.measured(0) == ["say commit 1.0", "update step 0"]
    assert talk.stream() == []
    assert talk.updated(0, [0]) == []
    assert talk.stream() == ["1.1 #0"], "each chunk as soon as it is updated"
    assert talk.updated(0, [1]) == []
    assert talk.stream() == ["1.1 #1"]


def test_stale_and_repeated_chunks_change_nothing() -> None:
    talk = training(step=2)
    assert talk.chunk(0, 1, 2) == ["stage #0"]
    for what in (
        talk.chunk(0, 1, 2),  # repeated
        talk.chunk(1, 1, 1),  # a step before
        talk.chunk(1, 1, 3),  # a step to come
        talk.chunk(1, 0, 2),  # another generation
        talk.chunk(1, 1, 2, epoch=9),  # another aggregator
        talk.chunk(1, 1, 2, job="b"),
        talk.chunk(7, 1, 2),  # no such chunk
        talk.initial(1),
    ):
        assert what == []
    assert talk.chunk(1, 1, 2) == ["stage #1", "measure step 2"]
    assert talk.chunk(1, 1, 2) == [], "being decided"


def test_a_step_happens_once() -> None:
    talk = training()
    talk.chunk(0)
    talk.chunk(1)
    assert talk.measured(0) == ["say commit 1.0", "update step 0"]
    assert talk.measured(0) == []
    talk.updated(0)
    assert talk.chunk(0) == [] and talk.chunk(1) == []


def test_a_gradient_that_is_not_finite_is_a_step_that_changes_nothing() -> None:
    talk = training()
    talk.chunk(0)
    talk.chunk(1)
    assert talk.measured(0, finite=False) == ["say commit 1.0 skipped", "update step 0 skipped"]


FOUND = NonFinite(micro_batch=1, parameter="w", worker="a")


def test_a_commit_says_whose_gradients_were_not_finite_though_the_aggregator_is_another() -> None:
    talk = training()
    talk.chunk(1)
    talk.chunk(0, non_finite=[FOUND])
    talk.give(ev.Disconnected())
    talk.connect(2)
    assert talk.measured(0, finite=False) == ["say commit 1.0 skipped, a 1", "update step 0 skipped"]
    talk.updated(0)
    talk.chunk(1, 1, 1)
    talk.chunk(0, 1, 1)
    assert talk.measured(1, finite=False) == ["say commit 1.1 skipped", "update step 1 skipped"]


def test_a_job_that_is_to_stop_is_not_committed() -> None:
    talk = Dialogue()
    talk.open()
    plan = replace(PLAN, on_non_finite="stop")
    talk.give(ev.Loaded("a", plan, 0, "layout", talk.elements, talk.written(1, 0)))
    talk.chunk(1)
    talk.chunk(0, non_finite=[FOUND])
    said = (
        "say unable: step 1: the gradient is not finite: worker a, micro-batch 1, parameter w "
        "(on_non_finite: stop)"
    )
    assert talk.measured(0, finite=False) == [said]
    talk.give(ev.Disconnected())
    talk.connect(2)
    assert said in talk.open(), "to whoever comes"


# ---- weights ----


def test_weights_are_streamed_to_those_who_asked_on_this_link() -> None:
    talk = training()
    talk.chunk(0)
    talk.chunk(1)
    talk.connect(2)
    assert talk.measured(0) == ["say commit 1.0", "update step 0"]
    talk.updated(0)
    assert talk.stream() == [], "this aggregator may not know where the job stands"
    assert talk.send_weights(1, 0) == []
    assert talk.stream() == ["1.1 #0", "1.1 #1"], "what has come of the version that it asked for"


def test_who_has_a_version_asks_for_the_next() -> None:
    talk = training()
    talk.connect(1)
    talk.send_weights(1, 1)
    assert talk.stream() == []
    talk.chunk(0)
    talk.chunk(1)
    talk.measured(0)
    talk.updated(0)
    assert talk.stream() == ["1.1 #0", "1.1 #1"]


def test_weights_of_another_generation_are_not_sent() -> None:
    talk = training()
    talk.connect(1)
    talk.send_weights(7, 0)
    assert talk.stream() == []


def test_weights_are_sent_again_when_asked_again() -> None:
    talk = training()
    talk.send_weights(1, 0)
    assert talk.stream() == ["1.0 #0", "1.0 #1"]


def test_nothing_is_streamed_while_the_link_is_down() -> None:
    talk = training()
    talk.send_weights(1, 0)
    talk.give(ev.Disconnected())
    assert talk.stream() == []
    talk.chunk(0)
    assert talk.chunk(1) == ["stage #1", "measure step 0"], "what came before counts"
    assert talk.measured(0) == ["update step 0"], "nobody to tell"


# ---- tensors that live elsewhere ----


def test_lost_tensors_are_loaded_again_under_a_new_generation() -> None:
    talk = training()
    talk.chunk(0)
    assert talk.give(ev.TensorsLost()) == ["drop job"]
    assert talk.chunk(1) == [], "what comes for the lost sum is of no use"
    assert talk.open(generation=1) == ["load a"]
    assert talk.loaded(generation=1, step=0) == [
        "save generation 2",
        "say training 2.0, missing #0 #1",
        "say checkpoint 1.0",
    ]


def test_tensors_lost_while_a_job_is_loaded() -> None:
    talk = Dialogue()
    talk.open()
    assert talk.core.is_loading("a")
    assert talk.give(ev.TensorsLost()) == []
    assert not talk.core.is_loading("a")
    assert talk.loaded() == [], "of the load that was given up"
    assert talk.open() == ["load a"]
