"""The conversation of a joined loop with its daemon, message by message: how it ends, and what both ends refuse."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tiermesh
from protos import compute_pb2 as pb
from services.runtime.compute_channel import Channel, ChannelEnded
from tests.support.joined_program import LIMIT_SECONDS, Program, connect_to_descriptor

PARAMETERS = {"layer.weight": np.ones((2, 3), np.float32), "layer.bias": np.ones(2, np.float32)}


@pytest.fixture(autouse=True)
def by_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiermesh.own_loop.connect", connect_to_descriptor)


def play(body: Callable[[Any], None], loop: Callable[[str], None]) -> BaseException | None:
    """Play a daemon that says what a test wants it to say, and return what the loop has raised."""
    own, other = socket.socketpair()
    program = Program(loop)
    with other:
        program.spawn(other, lambda lines: None)
    channel: Any = Channel(own, pb.FromProcess)
    with own:
        hello = channel.receive()[0].hello
        assert hello.job == "job-1" and str(os.getpid()) in hello.name
        body(channel)
    assert program.wait(LIMIT_SECONDS)
    return program.error


def simple(path: str) -> None:
    with tiermesh.join(path, job="job-1", parameters=PARAMETERS) as run:
        for work in run:
            work.done(0.5, gradients=work.weights)


def test_a_refusal_is_raised_with_its_parts() -> None:
    refused = pb.Refused(
        reason="it can't", field="job", value="job-1", expected="one that runs", fix="submit it"
    )
    error = play(lambda channel: channel.send(pb.ToProcess(refused=refused)), simple)
    assert isinstance(error, tiermesh.Refused) and str(error) == "it can't"
    assert (error.field, error.value, error.expected, error.fix) == (
        "job",
        "job-1",
        "one that runs",
        "submit it",
    )


def test_a_refusal_is_read_when_nothing_can_be_sent_any_more() -> None:
    """The daemon refuses and closes while the loop computes."""
    closed = threading.Event()

    def loop(path: str) -> None:
        with tiermesh.join(path, job="job-1", parameters=PARAMETERS):
            assert closed.wait(LIMIT_SECONDS)
            raise ValueError("no data")

    def body(channel: Any) -> None:
        open_job(channel)
        channel.send(pb.ToProcess(refused=pb.Refused(reason="cancelled")))
        channel.close()
        closed.set()

    assert isinstance(play(body, loop), ValueError), "the loop's own error is raised, not that of its report"


def open_job(channel: Any) -> None:
    spec = json.dumps(
        {
            "seed": 1,
            "exact": False,
            "batch_size": 1,
            "validation_batches": 0,
            "model": {"max_sequence_length": 1},
        }
    )
    channel.send(pb.ToProcess(call=1, open_job=pb.OpenJob(job="job-1", spec_json=spec)))
    for kind in ("mesh_opened", "job_built"):
        assert channel.receive()[0].WhichOneof("body") == kind


def test_the_loop_ends_with_the_job() -> None:
    def body(channel: Any) -> None:
        open_job(channel)
        channel.send(pb.ToProcess(call=2, close_job=pb.CloseJob()))
        assert channel.receive()[0].HasField("done")
        channel.send(pb.ToProcess(finished=pb.Finished()))
        with pytest.raises(ChannelEnded):
            channel.receive()

    assert play(body, simple) is None


def test_a_job_that_has_ended_can_not_be_joined() -> None:
    error = play(lambda channel: channel.send(pb.ToProcess(finished=pb.Finished())), simple)
    assert isinstance(error, tiermesh.Refused) and error.field == "job"


def test_the_daemons_end_is_named() -> None:
    error = play(open_job, simple)
    assert isinstance(error, tiermesh.Unreachable) and "the worker's daemon has ended; join again" in str(
        error
    )


def test_a_request_that_it_does_not_know_is_answered() -> None:
    def body(channel: Any) -> None:
        channel.send(pb.ToProcess(call=1, check_mesh=pb.CheckMesh()))
        assert "upgrade the package" in channel.receive()[0].failed.reason

    assert isinstance(play(body, simple), tiermesh.Failed)


def test_an_error_between_requests_is_told() -> None:
    def loop(path: str) -> None:
        with tiermesh.join(path, job="job-1", parameters=PARAMETERS):
            raise ValueError("no data")

    def body(channel: Any) -> None:
        open_job(channel)
        message = channel.receive()[0]
        assert message.call == 0 and message.failed.reason.startswith("ValueError: no data")

    assert isinstance(play(body, loop), ValueError)
