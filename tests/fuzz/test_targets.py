"""The targets of `make fuzz` accept their seeds and any other bytes; this runs without atheris."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from services.files.service import FilesServicer
from services.transport.http2.frames import FrameType
from tests.fuzz.connections import frames_of
from tests.fuzz.draws import Draws, draw_message
from tests.fuzz.messages import ENVELOPES
from tests.fuzz.rpcs import RPC_TARGETS
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS
from tests.support.raw_http2 import frames_in
from tests.support.services import own_services

QUICK = [name for name in TARGETS if name not in RPC_TARGETS]
"""Targets that start no role."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", QUICK)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_any_bytes(name: str, data: st.DataObject) -> None:
    target = TARGETS[name]
    seed = data.draw(st.sampled_from(target.seeds))
    cut = data.draw(st.integers(0, len(seed)))
    target.run(seed[:cut] + data.draw(st.binary(max_size=20)) + seed[cut:])
    target.run(data.draw(st.binary(max_size=200)))


@pytest.mark.parametrize("name", RPC_TARGETS)
def test_seeds_of_a_method_and_some_changes(name: str) -> None:
    draw = random.Random(name)
    target = RPC_TARGETS[name]
    for seed in (*target.seeds[:4], target.seeds[-1]):
        target.run(seed)
    for _ in range(3):
        target.run(bytes([*draw.randbytes(3), *(each | 3 for each in draw.randbytes(60))]))


def test_a_caller_may_leave_a_download_that_waits_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait(*given: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(FilesServicer, "_send", wait)
    target = RPC_TARGETS["Files.Read"]
    target.run(target.seeds[0])


def test_a_refusal_of_several_lines_is_found() -> None:
    def parse(content: bytes) -> None:
        raise ValueError("one\ntwo")

    with pytest.raises(AssertionError):
        Target(parse, ()).run(b"")


def test_every_rpc_and_frame_type_is_a_target() -> None:
    methods = {f"{service.name}.{method.name}" for service in own_services() for method in service.methods}
    assert methods == set(RPC_TARGETS)
    streamed = {
        kind.full_name
        for service in own_services()
        for method in service.methods
        if method.name == "Attend"
        for kind in (method.input_type, method.output_type)
    }
    assert streamed == {kind.DESCRIPTOR.full_name for kind in ENVELOPES}
    frames = {kind.name.lower().replace("_", "-") for kind in FrameType}
    for end in ("server", "client"):
        assert {name.partition(".")[2] for name in TARGETS if name.startswith(f"{end}.")} == frames


@pytest.mark.parametrize("kind", FrameType)
def test_frames_of_a_type_are_drawn(kind: FrameType) -> None:
    (seed, _) = TARGETS[f"client.{kind.name.lower().replace('_', '-')}"].seeds
    assert kind in {each for each, *_ in frames_in(frames_of(kind, Draws(seed)))}


def test_every_field_of_every_request_can_be_drawn() -> None:
    draw = random.Random(1)
    for service in own_services():
        for method in service.methods:
            wanted = set(method.input_type.fields_by_name) - {"own_crc32c"}
            found: set[str] = set()
            for _ in range(2000):
                message = draw_message(Draws(draw.randbytes(100)), GetMessageClass(method.input_type), {})
                found |= {field.name for field, _ in message.ListFields()}
                if wanted <= found:
                    break
            assert wanted == found, method.full_name
