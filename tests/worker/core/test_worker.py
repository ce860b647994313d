"""The worker's core obeys one aggregator, builds one job and receives its weights."""

from __future__ import annotations

from dataclasses import replace

from protos import cluster_pb2 as pb
from protos.tensors_pb2 import GRADIENT
from tests.support.dialogues.worker import Dialogue, start_with_weights
from worker.core import events as ev
from worker.core.job import MOST_REPAIRS

# ---- the aggregator ----


def test_hello_names_the_epoch_seen_and_the_layout() -> None:
    talk = start_with_weights()
    hello = talk.core.hello("one")
    assert (hello.epoch_seen, hello.layout_hash, hello.incarnation) == (1, "hash", "one")
    assert (hello.shard_index, hello.shard_count) == (0, 1)


def test_orders_of_an_older_epoch_are_ignored() -> None:
    talk = Dialogue()
    talk.connect(epoch=5)
    assert talk.order(pb.Join(job="a"), epoch=4) == []
    assert talk.order(pb.Join(job="a"), epoch=5) == ["build a"]


def test_nothing_is_sent_before_the_welcome() -> None:
    talk = start_with_weights()
    talk.give(ev.Disconnected())
    talk.give(ev.Connected())
    talk.weights(1, 1)
    assert talk.loaded(1, 1) == []
    talk.order(pb.Welcome(), epoch=2)
    assert talk.join() == ["send Ready with 1.1"], "the job is still built"


def test_a_broken_link_drops_the_leases_and_keeps_the_weights() -> None:
    talk = start_with_weights()
    talk.lease(7)
    assert talk.give(ev.Disconnected()) == ["drop lease 7"]
    assert talk.sent() == []
    talk.connect(epoch=2)
    assert talk.join() == ["send Ready with 1.0"]
    assert talk.lease(8) == ["perform 8"]


# ---- the job ----


def test_a_job_is_built_once() -> None:
    talk = Dialogue()
    talk.connect()
    assert talk.join() == ["build a"]
    assert talk.join() == [], "being built"
    assert talk.built() == ["send Ready"]
    assert talk.join() == ["send Ready"]
    assert talk.join("b") == ["drop job", "build b"]
    assert talk.give(ev.Built("a", "hash", 10, 2, 5, number=1)) == [], "the worker has left it"


def test_a_job_that_cannot_be_built_is_reported_and_can_be_joined_again() -> None:
    talk = Dialogue()
    talk.connect()
    talk.join()
    assert talk.give(ev.BuildFailed("a", "no such corpus")) == ["send Failure: no such corpus"]
    assert talk.join() == ["build a"], "it can be tried again"


def test_a_death_of_the_compute_process_is_reported_as_such() -> None:
    talk = start_with_weights(1)
    talk.lease(7)
    talk.lease(8)
    assert talk.give(ev.LeaseFailed(7, "killed by SIGSEGV", died=True)) == [
        "drop lease 7",
        "send Failure, died: killed by SIGSEGV",
    ]
    assert 8 in talk.core.leases, "the next process computes it"
    assert talk.give(ev.LoadFailed("a", "exit code 1", died=True))[-1] == "drop job"
    talk.join()
    assert talk.give(ev.BuildFailed("a", "exit code 1", died=True)) == ["send Failure, died: exit code 1"]
    assert talk.join() == ["build a"], "the aggregator may order it again"


def test_how_far_inputs_are_is_reported_while_the_job_is_built() -> None:
    talk = Dialogue()
    talk.connect()
    talk.join()
    fetching = ev.Fetching("a", "training_config.data_path", 3, 5)
    assert talk.give(fetching) == ["send Fetching"]
    assert talk.give(ev.Fetching("b", "training_config.data_path", 3, 5)) == [], "a job that was left"
    talk.built()
    assert talk.give(fetching) == [], "a late report"


def test_what_the_job_s_code_prints_is_reported_from_its_first_line_on() -> None:
    talk = Dialogue()
    assert talk.give(ev.Printed("a", ["lost"])) == [], "no aggregator is connected"
    talk.connect()
    assert talk.give(ev.Printed("a", ["nobody's"])) == []
    talk.join()
    assert talk.give(ev.Printed("a", ["builds"])) == ["send Printed"]
    assert talk.give(ev.Printed("b", ["late"])) == [], "a job that was left"


def test_a_job_whose_weights_do_not_fit_is_reported_and_left() -> None:
    talk = start_with_weights(1)
    talk.lease(1)
    assert talk.give(ev.LoadFailed("b", "memory is full")) == [], "a job that was left"
    found = talk.give(ev.LoadFailed("a", "memory is full"))
    assert found == ["send Failure: memory is full", "drop lease 1", "drop job"]
    assert talk.join() == ["build a"], "it can be tried again"


def test_a_job_with_a_damaged_file_is_built_again_a_few_times_and_then_left() -> None:
    talk = start_with_weights()
    damaged = ev.InputDamaged("a", ev.DamagedInput("ids.bin", 7), "ids.bin: differs")
    assert talk.give(replace(damaged, job="b")) == [], "a job that was left"
    talk.lease(9, 1, 0)
    found = talk.give(damaged)
    assert found == [
        "drop lease 9", "drop job", "send Failure, retries: ids.bin: differs", "build a without ids.bin",
    ]  # fmt: skip
    for _ in range(MOST_REPAIRS - 1):
        talk.built()
        assert talk.give(damaged)[-1] == "build a without ids.bin"
    talk.built()
    assert talk.give(damaged) == ["drop job", "send Failure: ids.bin: differs"]
    assert talk.join() == ["build a"], "the next order to join is obeyed"


def test_a_job_with_a_damaged_file_that_has_no_other_copy_is_left_at_once() -> None:
    talk = start_with_weights()
    damaged = ev.InputDamaged("a", None, "ids.bin: differs")
    assert talk.give(damaged) == ["drop job", "send Failure: ids.bin: differs"]


def test_pauses_between_tries_to_open_a_mesh_grow() -> None:
    talk = Dialogue()
    talk.connect()
    talk.join()
    waits = []
    for attempt in range(1, 9):
        failure, later = talk.give(ev.BuildFailed("a", "chips busy", unfit=True))
        assert failure == "send Failure, retries: chips busy"
        waits.append(float(later.split()[2]))
        assert talk.give(ev.BuildDue(attempt)) == ["build a"]
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300]
    assert talk.built() == ["send Ready"]
    assert talk.join("b") == ["drop job", "build b"]
    assert talk.give(ev.BuildFailed("b", "busy", unfit=True))[1] == "build after 5 s (9)", (
        "the pauses start over with the next job"
    )


def test_an_unfit_worker_reports_it_to_the_next_aggregator() -> None:
    talk = Dialogue()
    talk.connect()
    talk.join()
    talk.give(ev.BuildFailed("a", "chips busy", unfit=True))
    talk.give(ev.Disconnected())
    talk.connect(epoch=2)
    assert talk.join() == ["send Failure, retries: chips busy"]


def test_a_stale_try_to_build_is_ignored() -> None:
    talk = Dialogue()
    talk.connect()
    talk.join()
    talk.give(ev.BuildFailed("a", "chips busy", unfit=True))
    assert talk.order(pb.Leave(job="a")) == ["drop job"]
    assert talk.give(ev.BuildDue(1)) == []
    assert talk.join() == ["build a"]
    assert talk.give(ev.BuildDue(1)) == [], "its job was left and joined again"
    talk.give(ev.BuildFailed("a", "chips busy", unfit=True))
    assert talk.built() == ["send Ready"]
    assert talk.give(ev.BuildDue(2)) == [], "it is built"


def test_leaving_a_job_drops_its_leases_and_its_mesh() -> None:
    talk = start_with_weights()
    talk.lease(7)
    assert talk.order(pb.Leave(job="b")) == []
    assert talk.order(pb.Leave(job="a")) == ["drop lease 7", "drop job"]
    assert talk.lease(8) == []


# ---- weights ----


def test_each_chunk_of_a_version_is_loaded_once() -> None:
    talk = Dialogue()
    talk.connect()
    talk.join()
    assert talk.weights(1, 0) == [], "not built yet"
    talk.built()
    assert talk.weights(1, 0, 0, 1) == ["load #0", "load #1"]
    assert talk.weights(1, 0, 1) == [], "repeated"
    assert talk.weights(1, 0, 2) == ["load #2"]
    assert talk.loaded(1, 0) == ["send WeightsLoaded 1.0"]
    assert talk.loaded(1, 7) == [], "another version arrived last"


def test_stale_weights_are_ignored() -> None:
    talk = start_with_weights()
    talk.weights(2, 1)
    talk.loaded(2, 1)
    assert talk.weights(2, 0) == [] and talk.weights(1, 9) == [], "older versions"
    assert talk.weights(2, 2, epoch=9) == [] and talk.weights(2, 2, job="b") == []
    assert talk.weights(2, 2, 7) == [], "no such chunk"
    assert talk.weights(2, 2, kind=GRADIENT) == []
    assert talk.lease(7, 2, 1) == ["perform 7"], "its weights are still those of 2.1"


def test_new_weights_mean_that_the_step_is_committed() -> None:
    talk = start_with_weights()
    talk.lease(7)
    talk.give(ev.NodeReady(7, 0, (1.0, 2.0)))
    assert talk.weights(1, 1, 0) == ["drop lease 7", "load #0"]
    assert talk.sent() == []
    assert talk.lease(8) == [], "its weights are being overwritten"
    assert talk.give(ev.LeaseComputed(7, 1.0, 10)) == []


def test_a_newer_version_overtakes_one_that_is_being_loaded() -> None:
    talk = start_with_weights()
    talk.weights(1, 1)
    talk.weights(1, 2, 0)
    assert talk.loaded(1, 1) == []
    talk.weights(1, 2, 1, 2)
    assert talk.loaded(1, 2) == ["send WeightsLoaded 1.2"]


def test_a_build_of_a_job_that_was_left_and_joined_again_is_none_of_the_job() -> None:
    talk = Dialogue()
    talk.connect()
    for job in ("a", "b", "a"):
        talk.order(pb.Join(job=job, spec_json="{}"))
    stale = ev.Built("a", "hash", 10, 2, 5, number=1)
    assert talk.give(stale) == [], "the mesh is built again behind it"
    assert talk.core.job is not None and talk.core.job.built is None
    assert talk.give(ev.Built("a", "hash", 10, 2, 5, number=3)) != []
