"""Dialogues about which workers may run a job. Each line is one effect of the core; sessions are 1, 2, 3."""

from __future__ import annotations

from typing import Any

import pytest

from aggregator.core import events as ev
from aggregator.core.membership.claims import bind_own
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import FAILED, RUNNING
from services.timeouts import STANDARD_TIMEOUTS
from tests.support.dialogues.aggregator import Dialogue, layout_of, training
from tests.support.facts import has_facts


def test_a_fingerprint_that_differs_is_named() -> None:
    dialogue = training(1)
    dialogue.hello(2)
    dialogue.give(ev.DataStreamOpened(2))
    assert dialogue.ready(2, blas="Haswell") == [
        "save a running",
        "2 <- leave: fingerprint differs: blas is 'Haswell', the job's is 'SkylakeX' "
        "(`exact: false` in the job would accept it, `tiermesh trust` overrules the job's)",
    ]
    assert dialogue.job().state == RUNNING
    assert dialogue.status().workers[1].state == "refused"


def test_an_own_model_that_differs_is_named_by_file_and_never_waits() -> None:
    """Whatever else follows from it, such as another layout."""
    facts: dict[str, Any] = {"own code mixer.py": "0123456789abcdef"}
    for exact in (True, False):
        dialogue = training(1, exact=exact)
        dialogue.hello(2)
        dialogue.give(ev.DataStreamOpened(2))
        told = dialogue.ready(2, layout=layout_of(7), **facts)
        assert has_facts(
            told[-1],
            "2 <- leave: its own model differs ... own code mixer.py is '0123456789abcdef', the job's is 'absent' ... "
            "--code FOLDER",
        )
        assert dialogue.status().workers[1].state == "refused"


def test_workers_that_are_refused_for_one_reason_are_named_in_one_line() -> None:
    dialogue = training(1)
    for number in (2, 3, 4, 5):
        dialogue.hello(number)
        dialogue.ready(number, blas="Haswell")
    dialogue.hello(6)
    dialogue.ready(6, blas="Zen")
    published = len(dialogue.notes)
    dialogue.give(ev.Ticked())
    equal, other = dialogue.notes[published:]
    assert has_facts(equal, "workers w2, w3 and 2 others ... 'Haswell'")
    assert has_facts(other, "worker w6 ... 'Zen'")
    dialogue.give(ev.Ticked())
    assert len(dialogue.notes) == published + 2, "published once"


def test_the_end_of_a_job_is_published_after_the_refusals_that_caused_it() -> None:
    dialogue = training(1)
    dialogue.says(1, pb.Failure(job="a", reason="no such corpus"))
    assert dialogue.job().state == FAILED
    refusal, end = dialogue.notes[-2:]
    assert has_facts(refusal, "worker w1 ... no such corpus") and end.startswith("failed")


def test_a_fingerprint_that_differs_is_welcome_if_the_job_is_not_exact() -> None:
    dialogue = training(1, exact=False)
    dialogue.hello(2)
    assert dialogue.ready(2, blas="Haswell") == []
    assert has_facts(dialogue.notes[-1], "w2 ... exact: false ... blas ... 'Haswell' ... 'SkylakeX'")


def test_different_chips_are_refused() -> None:
    dialogue = Dialogue()
    dialogue.submit()
    dialogue.optimizer()
    dialogue.hello(1)
    dialogue.hello(2)
    dialogue.ready(1, arch="wormhole_b0", board="t3k", mesh_shape="1x8")
    _, line = dialogue.ready(2, arch="blackhole", board="p150_x4", mesh_shape="1x4")
    assert line.startswith("2 <- leave: ")
    assert has_facts(line, "arch ... 'blackhole' ... 'wormhole_b0' ... board ... 'p150_x4' ... 't3k'")
    assert has_facts(line, "mesh_shape ... '1x4' ... '1x8'")


def test_a_worker_whose_mesh_cannot_be_opened_is_shown_and_waited_for() -> None:
    dialogue = training(1)
    dialogue.hello(2)
    dialogue.give(ev.DataStreamOpened(2))
    assert dialogue.says(2, pb.Failure(job="a", reason="chips busy", retries=True)) == []
    member = dialogue.status().workers[1]
    assert (member.state, member.detail) == ("unfit", "chips busy")
    assert has_facts(dialogue.notes[-1], "w2 ... unfit ... chips busy")
    published = len(dialogue.notes)
    dialogue.says(2, pb.Failure(job="a", reason="chips busy", retries=True))
    assert len(dialogue.notes) == published, "published once"
    dialogue.ready(2)
    member = dialogue.status().workers[1]
    assert (member.state, member.detail) == ("ready", "")


def test_a_worker_that_loses_an_input_gives_its_leases_back_and_gets_the_weights_again() -> None:
    dialogue = training(1, 2)
    dialogue.says(2, pb.Failure(job="a", reason="ids.bin: differs", retries=True))
    assert "1 <- train 2-3 of 1.0" in dialogue.computed(1), "its part of the step goes to another worker"
    assert dialogue.status().workers[1].detail == "ids.bin: differs"
    dialogue.sent_weights(2)
    dialogue.commits(1, 0)
    dialogue.weights(1, 1, 0)
    dialogue.ready(2)
    assert not dialogue.sent_weights(2), "the worker that computes the step comes first"
    dialogue.weights_loaded(1, 1, 1)
    assert dialogue.sent_weights(2) == "1.1"


def test_a_job_with_unfit_workers_alone_fails_after_the_unfit_timeout() -> None:
    dialogue = Dialogue()
    dialogue.submit()
    dialogue.optimizer()
    dialogue.stands(0, 0)
    dialogue.hello(1)
    dialogue.says(1, pb.Failure(job="a", reason="chips busy", retries=True))
    assert has_facts(dialogue.describe_wait(), "w1: chips busy")
    dialogue.later(STANDARD_TIMEOUTS.unfit - 1, 1)
    assert dialogue.job().state == RUNNING
    dialogue.later(2, 1)
    assert dialogue.job().state == FAILED
    assert has_facts(dialogue.job().detail, "w1: chips busy")


def test_an_unfit_worker_among_refused_ones_keeps_the_job_alive() -> None:
    dialogue = Dialogue()
    dialogue.submit()
    dialogue.optimizer()
    dialogue.hello(1)
    dialogue.hello(2)
    dialogue.says(1, pb.Failure(job="a", reason="no such corpus"))
    dialogue.says(2, pb.Failure(job="a", reason="chips busy", retries=True))
    assert dialogue.job().state == RUNNING
    dialogue.says(2, pb.Failure(job="a", reason="no such corpus"))
    assert dialogue.job().state == FAILED


def test_another_layout_is_refused() -> None:
    dialogue = training(1)
    dialogue.hello(2)
    _, line = dialogue.ready(2, layout=layout_of(3))
    assert "the layout's hash is" in line and "give all hosts the same version of Tiermesh" in line


def test_a_job_no_worker_can_run_fails_with_every_reason() -> None:
    dialogue = Dialogue()
    dialogue.submit()
    dialogue.optimizer()
    dialogue.hello(1)
    dialogue.hello(2)
    dialogue.says(1, pb.Failure(job="a", reason="no such corpus: x.txt"))
    assert dialogue.job().state == RUNNING, "the other may be able to"
    lines = dialogue.says(2, pb.Failure(job="a", reason="mesh of 8 chips, has 1"))
    assert "save a failed" in lines
    assert has_facts(dialogue.job().detail, "w1: no such corpus: x.txt ... w2: mesh of 8 chips, has 1")


def test_a_refused_worker_does_not_fail_a_job_that_others_run() -> None:
    dialogue = training(1)
    dialogue.hello(2)
    dialogue.ready(2, blas="Haswell")
    dialogue.give(ev.WorkerLost(1, "gone"))
    dialogue.later(1000.0, 2)
    assert dialogue.job().state == RUNNING, "worker 1 may come back"
    assert "w2 (fingerprint differs" in dialogue.describe_wait()
    dialogue.hello(3, "w1")
    assert dialogue.says(3, pb.Failure(job="a", reason="broken"))[-1] == "drop all"
    assert dialogue.job().state == FAILED, "no worker is left that could"


def test_after_a_restart_a_refused_worker_may_come_first() -> None:
    before = training(1)
    bind_own(before.saved["a"].job)
    dialogue = Dialogue(epoch=4, records=before.saved.values())
    dialogue.give(ev.Ticked())
    dialogue.hello(2)
    dialogue.ready(2, blas="Haswell")
    assert dialogue.job().state == RUNNING
    dialogue.goes_by(STANDARD_TIMEOUTS.comeback + 1, 2)
    assert dialogue.job().state == FAILED


@pytest.mark.parametrize(
    "refused",
    [
        pb.Failure(job="a", reason="no such corpus"),
        pb.Failure(job="a", reason="too large", too_large=True, stages=7),
        pb.Ready(job="a", build=1, elements=1, evaluation_batches=(1 << 32) - 1),
    ],
    ids=["can't", "too large", "too many batches"],
)
def test_one_voice_ends_no_job_before_others_had_time_to_come(refused: pb.Failure | pb.Ready) -> None:
    dialogue = Dialogue()
    dialogue.submit()
    dialogue.optimizer()
    dialogue.stands(0, 0, state=pb.OptimizerStatus.EMPTY)
    dialogue.hello(1, voice="w1")
    dialogue.says(1, refused)
    reason = dialogue.core.members[1].refusal
    waiting = dialogue.describe_wait()
    assert has_facts(waiting, f"waits for another worker: it ends in 120 s ... w1: {reason}")
    assert f"the job {waiting}" in dialogue.notes
    dialogue.goes_by(STANDARD_TIMEOUTS.comeback - 5, 1)
    assert dialogue.job().state == RUNNING
    assert dialogue.joins(2)[-1] == "2 <- initialise"


def test_one_voice_ends_a_job_when_no_other_worker_comes() -> None:
    dialogue = Dialogue()
    dialogue.submit()
    dialogue.hello(1, voice="w1")
    dialogue.says(1, pb.Failure(job="a", reason="no such corpus"))
    dialogue.goes_by(STANDARD_TIMEOUTS.comeback + 5, 1)
    assert dialogue.job().state == FAILED and has_facts(dialogue.job().detail, "w1: no such corpus")


@pytest.mark.parametrize("voices", [["w1", "w2"], [""]], ids=["two voices", "no certificate is bound"])
def test_two_voices_or_any_without_bound_certificates_end_a_job_at_once(voices: list[str]) -> None:
    dialogue = Dialogue()
    dialogue.submit()
    for session, voice in enumerate(voices, 1):
        dialogue.hello(session, voice=voice)
    for session in range(1, len(voices) + 1):
        dialogue.says(session, pb.Failure(job="a", reason="no such corpus"))
    assert dialogue.job().state == FAILED
