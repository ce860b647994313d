"""Tests that a recorded run of a core replays to the same effects, and that changed recordings are detected."""

from __future__ import annotations

import collections.abc
import dataclasses
import json
import typing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.core import events as aggregator_events
from aggregator.core.aggregator import AggregatorCore, Clock
from aggregator.core.job_report import Record
from aggregator.core.sums.plane_orders import merge_sums
from optimizer.core import events as optimizer_events
from optimizer.core.optimizer import OptimizerCore
from protos import cluster_pb2 as pb
from protos import plane_pb2 as plane
from protos.jobs_pb2 import Job
from protos.tensors_pb2 import GRADIENT, ChunkHeader, Findings
from services.errors import Refused
from services.protocol.plan import JobPlan, WireTypes
from services.protocol.versions import PROTOCOL_VERSION
from services.runtime.recording import (
    FORMAT_VERSION,
    CallRecorder,
    ReplayDiffers,
    decode,
    encode,
    make_core,
    replay,
)
from services.tensors.layout_parts import Piece
from services.tensors.reduction_tree import Node
from services.tensors.stripes import Stripe
from tests.simulation.simulated_cluster import SimulatedCluster
from worker.core import events as worker_events

KINDS = {"AggregatorCore": AggregatorCore, "OptimizerCore": OptimizerCore}

headers = st.builds(
    ChunkHeader,
    job=st.text(max_size=5),
    step=st.integers(0, 2**64 - 1),
    kind=st.just(GRADIENT),
    findings=st.builds(Findings, losses=st.lists(st.floats(allow_nan=False), max_size=3)),
)
nodes = st.builds(Node, st.integers(0, 99), st.integers(1, 99))
pieces = st.builds(Piece, st.integers(0, 9), st.integers(0), st.integers(1))
wires = st.builds(WireTypes, st.integers(1, 3), st.integers(1, 3))
reports = st.builds(plane.StagedChunk, block_sums=st.lists(st.floats(allow_nan=False), max_size=3))
plans = st.builds(JobPlan, st.integers(1, 999), st.integers(1, 99), wire=wires)
values = st.one_of(
    st.builds(aggregator_events.PiecesArrived, st.integers(0), headers, st.lists(pieces, max_size=3)),
    st.builds(merge_sums, st.text(max_size=5), st.lists(st.integers(0, 9), max_size=3), nodes, nodes, nodes),
    st.builds(
        aggregator_events.SaveJob,
        st.builds(Job, id=st.text(max_size=5), loss=st.floats(allow_nan=False)),
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
    st.builds(
        optimizer_events.FromPlane, st.builds(Stripe, st.integers(0, 3), st.just(4)), reports, st.floats()
    ),
    st.builds(Clock, st.floats(allow_nan=False), st.floats(allow_nan=False)),
    st.builds(Record, st.builds(Job, id=st.text(max_size=5)), st.text(), plans),
)


def find_types(hint: Any, found: set[Any]) -> None:
    """Collect the types that a type hint contains, those of its fields included."""
    if hint in found:
        return
    found.add(hint)
    for each in typing.get_args(hint):
        find_types(each, found)
    if dataclasses.is_dataclass(hint) or hasattr(hint, "_fields"):
        for each in typing.get_type_hints(hint).values():
            find_types(each, found)


@pytest.mark.parametrize("events", [aggregator_events, optimizer_events, worker_events])
def test_every_input_and_effect_has_only_fields_that_can_be_recorded(events: ModuleType) -> None:
    found: set[Any] = set()
    for each in vars(events).values():
        if dataclasses.is_dataclass(each) and each.__module__ == events.__name__:
            find_types(each, found)
    assert len(found) > 20
    kinds = {typing.get_origin(each) or each for each in found}
    assert not kinds & {set, frozenset, collections.abc.Set, collections.abc.Callable}


@given(values)
def test_inputs_and_effects_survive_the_round_trip(value: Any) -> None:
    text = json.dumps(encode(value))
    decoded = decode(json.loads(text))
    assert type(decoded) is type(value)
    assert json.dumps(encode(decoded)) == text
    if "NaN" not in text and "nan" not in text:
        assert decoded == value


def test_only_plain_data_can_be_recorded() -> None:
    with pytest.raises(TypeError, match="object can't be recorded"):
        encode((1, object()))
    with pytest.raises(ValueError, match="pathlib:Path"):
        decode({"$type": "pathlib:Path", "a": 1})


LONG_LIFE = 1000
"""Number of calls that a core gets in a run in which it sees every kind of input."""


def record_world(folder: Path, seed: int) -> list[Path]:
    """Simulate a seed; return the recordings of every aggregator and optimizer that ran in it."""
    paths: list[Path] = []

    def make(kind: Any, **arguments: Any) -> Any:
        paths.append(folder / f"{len(paths)}-{kind.__name__}.jsonl")
        return make_core(kind, paths[-1], **arguments)

    SimulatedCluster(seed, make_core=make).run()
    return paths


@pytest.mark.long
def test_every_core_of_a_simulated_cluster_replays(tmp_path: Path) -> None:
    for seed in range(100):
        folder = tmp_path / str(seed)
        folder.mkdir()
        paths = record_world(folder, seed)
        longest = max(path.read_text().count("\n") for path in paths)
        if len(paths) > 4 and longest > LONG_LIFE:
            break
    else:
        pytest.fail("no seed restarts aggregator and optimizer and gives one of them a long run")
    calls = [replay(path, KINDS[path.stem.split("-")[1]]) for path in paths]
    assert max(calls) >= LONG_LIFE


def write_small_recording(path: Path) -> list[dict[str, Any]]:
    """Record a hello and the opening of a job; return the lines."""
    core = make_core(OptimizerCore, path, name="optimizer")
    core.handle(
        optimizer_events.Connected(
            pb.Hello(protocol=PROTOCOL_VERSION, role="aggregator", name="aggregator", epoch_seen=1)
        )
    )
    core.handle(optimizer_events.Ordered(1, pb.Open(job="a")))
    core.handle(optimizer_events.Loaded("a", JobPlan(3, 2), 4))
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_first_line_that_differs_is_named(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    lines = write_small_recording(path)
    assert replay(path, OptimizerCore) == 3
    lines[3]["arguments"][0]["generation"] = 7
    write_lines(path, lines)
    with pytest.raises(ReplayDiffers, match="line 4: handle"):
        replay(path, OptimizerCore)


def test_incomplete_last_line_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    write_small_recording(path)
    path.write_text(path.read_text()[:-20])
    assert replay(path, OptimizerCore) == 2


class RaisingCore:
    """A core that fails."""

    def handle(self, number: int) -> list[int]:
        """Return a number below 2."""
        if number > 1:
            raise ValueError(f"{number} is too much")
        return [number]


def test_exceptions_are_recorded_and_replayed(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    core = make_core(RaisingCore, path)
    core.handle(1)
    with pytest.raises(ValueError, match="2 is too much"):
        core.handle(2)
    assert replay(path, RaisingCore) == 2


def test_an_exception_in_an_effect_is_recorded_and_replayed(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    core = make_core(OptimizerCore, path, name="optimizer")
    nothing: Any = None
    (effect,) = core.handle(optimizer_events.Connected(nothing))
    assert isinstance(effect, optimizer_events.JobBroke) and isinstance(effect.error, AttributeError)
    assert replay(path, OptimizerCore) == 1


def test_anything_but_a_recording_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    lines = write_small_recording(path)
    with pytest.raises(Refused, match=r"aggregator\.core\.aggregator:AggregatorCore"):
        replay(path, AggregatorCore)
    lines[1]["call"] = "__init__"
    write_lines(path, lines)
    with pytest.raises(Refused, match="line 2: call '__init__'"):
        replay(path, OptimizerCore)
    path.write_text("")
    with pytest.raises(Refused, match="line 1: expected a recording"):
        replay(path, OptimizerCore)
    with pytest.raises(Refused, match=r"--record .*no-such-folder"):
        CallRecorder(tmp_path / "no-such-folder" / "recording")


@pytest.mark.parametrize(("version", "shown"), [(None, "version 1"), (1, "version 1"), (99, "version 99")])
def test_recording_of_another_format_version_is_refused(
    tmp_path: Path, version: int | None, shown: str
) -> None:
    path = tmp_path / "recording"
    lines = write_small_recording(path)
    assert lines[0]["recording"] == FORMAT_VERSION
    if version is None:
        del lines[0]["recording"]
    else:
        lines[0]["recording"] = version
    write_lines(path, lines)
    with pytest.raises(Refused, match=f"{path.name}.*{shown}.*version {FORMAT_VERSION}.*record") as refused:
        replay(path, OptimizerCore)
    assert "\n" not in str(refused.value)
