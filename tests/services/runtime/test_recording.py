"""A recorded run of a core replays to the same effects, and a record that was tampered with is told apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.core import events as aggregator_events
from aggregator.core.aggregator import AggregatorCore, Clock
from aggregator.core.job_report import Record
from optimizer.core import events as optimizer_events
from optimizer.core.optimizer import OptimizerCore
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import Job
from protos.tensors_pb2 import GRADIENT, ChunkHeader
from services.errors import Refused
from services.protocol.plan import JobPlan, WireTypes
from services.protocol.versions import PROTOCOL_VERSION
from services.runtime.recording import CallRecorder, ReplayDiffers, decode, encode, make_core, replay
from services.tensors.reduction_tree import Node
from tests.simulation.simulated_cluster import SimulatedCluster

KINDS = {"AggregatorCore": AggregatorCore, "OptimizerCore": OptimizerCore}

headers = st.builds(
    ChunkHeader,
    job=st.text(max_size=5),
    step=st.integers(0, 2**64 - 1),
    kind=st.just(GRADIENT),
    losses=st.lists(st.floats(allow_nan=False), max_size=3),
)
nodes = st.builds(Node, st.integers(0, 99), st.integers(1, 99))
wires = st.builds(WireTypes, st.integers(1, 3), st.integers(1, 3))
plans = st.builds(JobPlan, st.integers(1, 999), st.integers(1, 99), wire=wires)
values = st.one_of(
    st.builds(aggregator_events.ChunkArrived, st.integers(0), headers),
    st.builds(aggregator_events.Merge, st.integers(0), nodes, nodes, nodes),
    st.builds(
        aggregator_events.SaveJob,
        st.builds(Job, id=st.text(max_size=5), loss=st.floats(allow_nan=False)),
        st.text(),
        st.dictionaries(st.text(), st.text()),
    ),
    st.builds(aggregator_events.Submitted, st.builds(Job, id=st.text(max_size=5)), st.text(), plans),
    st.builds(optimizer_events.Allocate, st.text(), st.text(), st.dictionaries(st.text(), st.binary())),
    st.builds(
        optimizer_events.Loaded,
        st.text(),
        plans,
        st.integers(0),
        checkpoint=st.none() | st.builds(pb.CheckpointWritten, step=st.integers(0, 9)),
        notices=st.lists(st.text()).map(tuple),
    ),
    st.builds(optimizer_events.Measured, st.text(), st.integers(0), st.floats(), st.booleans(), st.floats()),
    st.builds(Clock, st.floats(allow_nan=False), st.floats(allow_nan=False)),
    st.builds(Record, st.builds(Job, id=st.text(max_size=5)), st.text(), plans, st.just({"a": "b"})),
)


@given(values)
def test_inputs_and_effects_come_back_as_they_were(value: Any) -> None:
    text = json.dumps(encode(value))
    back = decode(json.loads(text))
    assert type(back) is type(value)
    assert json.dumps(encode(back)) == text
    if "NaN" not in text and "nan" not in text:
        assert back == value


def test_only_plain_data_is_recorded() -> None:
    with pytest.raises(TypeError, match="object can't be recorded"):
        encode((1, object()))
    with pytest.raises(ValueError, match="names no input"):
        decode({"$type": "pathlib:Path", "a": 1})


LONG_LIFE = 1000
"""Calls of a core's life that has seen everything."""


def record_world(folder: Path, seed: int) -> list[Path]:
    """Run a seed; the records of all lives of its aggregator and its optimizer."""
    paths: list[Path] = []

    def make(kind: Any, **arguments: Any) -> Any:
        paths.append(folder / f"{len(paths)}-{kind.__name__}.jsonl")
        return make_core(kind, paths[-1], **arguments)

    SimulatedCluster(seed, make_core=make).run()
    return paths


def test_every_life_of_a_simulated_cluster_replays(tmp_path: Path) -> None:
    for seed in range(100):
        folder = tmp_path / str(seed)
        folder.mkdir()
        paths = record_world(folder, seed)
        longest = max(path.read_text().count("\n") for path in paths)
        if len(paths) > 4 and longest > LONG_LIFE:
            break
    else:
        pytest.fail("no seed kills aggregator and optimizer, and lets one of them live long")
    calls = [replay(path, KINDS[path.stem.split("-")[1]]) for path in paths]
    assert max(calls) >= LONG_LIFE


def small_record(path: Path) -> list[dict[str, Any]]:
    """A record of a hello and a job's opening."""
    core = make_core(OptimizerCore, path, name="optimizer")
    core.handle(
        optimizer_events.Connected(pb.Hello(protocol=PROTOCOL_VERSION, role="aggregator", epoch_seen=1))
    )
    core.handle(optimizer_events.Ordered(1, pb.Open(job="a", spec_json="{}")))
    assert core.next_weights() is None
    core.handle(optimizer_events.Loaded("a", JobPlan(3, 2), 4))
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_first_line_that_differs_is_named(tmp_path: Path) -> None:
    path = tmp_path / "record"
    lines = small_record(path)
    assert replay(path, OptimizerCore) == 3
    lines[3]["arguments"][0]["generation"] = 7
    write(path, lines)
    with pytest.raises(ReplayDiffers, match="line 4: handle gave"):
        replay(path, OptimizerCore)


def test_a_cut_off_last_line_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "record"
    small_record(path)
    path.write_text(path.read_text()[:-20])
    assert replay(path, OptimizerCore) == 2


def test_what_a_core_raised_is_part_of_its_record(tmp_path: Path) -> None:
    path = tmp_path / "record"
    core = make_core(OptimizerCore, path, name="optimizer")
    core.handle(
        optimizer_events.Connected(pb.Hello(protocol=PROTOCOL_VERSION, role="aggregator", epoch_seen=1))
    )
    with pytest.raises(AttributeError):
        core.handle(optimizer_events.Connected(None))  # type: ignore[arg-type]
    assert replay(path, OptimizerCore) == 2


def test_what_is_no_record_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "record"
    lines = small_record(path)
    with pytest.raises(Refused, match=r"expected a record of aggregator.core.aggregator:AggregatorCore"):
        replay(path, AggregatorCore)
    lines[1]["call"] = "__init__"
    write(path, lines)
    with pytest.raises(Refused, match="line 2: call '__init__'"):
        replay(path, OptimizerCore)
    path.write_text("")
    with pytest.raises(Refused, match="line 1: core None"):
        replay(path, OptimizerCore)
    with pytest.raises(Refused, match=r"--record .*no-such-folder"):
        CallRecorder(tmp_path / "no-such-folder" / "record")
