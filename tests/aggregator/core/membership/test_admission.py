"""Dialogues about which workers may run a job. Each line is one effect of the core; sessions are 1, 2, 3."""

from __future__ import annotations

from aggregator.core import events as ev
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import FAILED, RUNNING
from services.timeouts import STANDARD_TIMEOUTS
from tests.support.dialogues.aggregator import Dialogue, layout_of, training


def test_a_fingerprint_that_differs_is_named() -> None:
    talk = training(1)
    talk.hello(2)
    talk.give(ev.DataStreamOpened(2))
    assert talk.ready(2, blas="Haswell") == [
        "2 <- leave: fingerprint differs: blas is 'Haswell', the job's is 'SkylakeX' "
        "(`exact: false` in the job would accept it)"
    ]
    assert talk.job().state == RUNNING
    assert talk.core.status(talk.now).workers[1].state == "refused"


def test_a_fingerprint_that_differs_is_welcome_if_the_job_is_not_exact() -> None:
    talk = training(1, exact=False)
    talk.hello(2)
    assert talk.ready(2, blas="Haswell") == []
    assert talk.notes[-1] == (
        "worker w2 is ready, with what the job accepts (`exact: false`): blas is 'Haswell', the job's is 'SkylakeX'"
    )


def test_different_chips_are_refused() -> None:
    talk = Dialogue()
    talk.submit()
    talk.optimizer()
    talk.hello(1)
    talk.hello(2)
    talk.ready(1, arch="wormhole_b0", board="t3k", mesh_shape="1x8")
    (line,) = talk.ready(2, arch="blackhole", board="p150_x4", mesh_shape="1x4")
    assert line.startswith(
        "2 <- leave: fingerprint differs: arch is 'blackhole', the job's is 'wormhole_b0'; "
        "board is 'p150_x4', the job's is 't3k'; mesh_shape is '1x4', the job's is '1x8'"
    )


def test_a_worker_whose_mesh_cannot_be_opened_is_shown_and_waited_for() -> None:
    talk = training(1)
    talk.hello(2)
    talk.give(ev.DataStreamOpened(2))
    assert talk.says(2, pb.Failure(job="a", reason="chips busy", retries=True)) == []
    member = talk.core.status(talk.now).workers[1]
    assert (member.state, member.detail) == ("unfit", "chips busy")
    assert talk.notes[-1] == "worker w2 is unfit and tries again: chips busy"
    told = len(talk.notes)
    talk.says(2, pb.Failure(job="a", reason="chips busy", retries=True))
    assert len(talk.notes) == told, "published once"
    talk.ready(2)
    member = talk.core.status(talk.now).workers[1]
    assert (member.state, member.detail) == ("ready", "")


def test_a_job_with_unfit_workers_alone_fails_after_the_unfit_timeout() -> None:
    talk = Dialogue()
    talk.submit()
    talk.optimizer()
    talk.stands(0, 0)
    talk.hello(1)
    talk.says(1, pb.Failure(job="a", reason="chips busy", retries=True))
    assert talk.core.describe_wait(talk.now) == "workers to build the job: w1 (chips busy)"
    talk.later(STANDARD_TIMEOUTS.unfit - 1, 1)
    assert talk.job().state == RUNNING
    talk.later(2, 1)
    assert talk.job().state == FAILED
    assert talk.job().detail == "no worker can run it; w1: chips busy"


def test_an_unfit_worker_among_refused_ones_keeps_the_job_alive() -> None:
    talk = Dialogue()
    talk.submit()
    talk.optimizer()
    talk.hello(1)
    talk.hello(2)
    talk.says(1, pb.Failure(job="a", reason="no such corpus"))
    talk.says(2, pb.Failure(job="a", reason="chips busy", retries=True))
    assert talk.job().state == RUNNING
    talk.says(2, pb.Failure(job="a", reason="no such corpus"))
    assert talk.job().state == FAILED


def test_another_layout_is_refused() -> None:
    talk = training(1)
    talk.hello(2)
    (line,) = talk.ready(2, layout=layout_of(3))
    assert "model's layout hash" in line and "give all hosts the same version of Tiermesh" in line


def test_a_job_no_worker_can_run_fails_with_every_reason() -> None:
    talk = Dialogue()
    talk.submit()
    talk.optimizer()
    talk.hello(1)
    talk.hello(2)
    talk.says(1, pb.Failure(job="a", reason="no such corpus: x.txt"))
    assert talk.job().state == RUNNING, "the other may be able to"
    lines = talk.says(2, pb.Failure(job="a", reason="mesh of 8 chips, has 1"))
    assert "save a failed" in lines
    assert talk.job().detail == (
        "no worker can run it; w1: no such corpus: x.txt; w2: mesh of 8 chips, has 1"
    )


def test_a_refused_worker_does_not_fail_a_job_that_others_run() -> None:
    talk = training(1)
    talk.hello(2)
    talk.ready(2, blas="Haswell")
    talk.give(ev.WorkerLost(1, "gone"))
    talk.later(1000.0, 2)
    assert talk.job().state == RUNNING, "worker 1 may come back"
    assert "w2 (fingerprint differs" in talk.core.describe_wait(talk.now)
    talk.hello(3, "w1")
    assert talk.says(3, pb.Failure(job="a", reason="broken"))[-1] == "drop all"
    assert talk.job().state == FAILED, "no worker is left that could"


def test_after_a_restart_a_refused_worker_may_come_first() -> None:
    before = training(1)
    talk = Dialogue(epoch=4, records=before.saved.values())
    talk.give(ev.Ticked())
    talk.hello(2)
    talk.ready(2, blas="Haswell")
    assert talk.job().state == RUNNING
    talk.goes_by(STANDARD_TIMEOUTS.comeback + 1, 2)
    assert talk.job().state == FAILED
