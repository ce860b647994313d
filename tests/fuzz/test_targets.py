"""The targets of `make fuzz` accept their seeds and any other bytes; this runs without atheris."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.transport.http2.frames import PREFACE, FrameType
from tests.fuzz.targets import ENVELOPES, REQUEST_METHODS, SERVICES, TARGETS, Target
from tests.support.raw_http2 import frames_in


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_bytes(name: str, data: st.DataObject) -> None:
    target = TARGETS[name]
    seed = data.draw(st.sampled_from(target.seeds))
    cut = data.draw(st.integers(0, len(seed)))
    target.run(seed[:cut] + data.draw(st.binary(max_size=20)) + seed[cut:])
    target.run(data.draw(st.binary(max_size=200)))


def test_a_refusal_of_several_lines_is_found() -> None:
    def parse(content: bytes) -> None:
        raise ValueError("one\ntwo")

    with pytest.raises(AssertionError):
        Target(parse, ()).run(b"")


def test_every_rpc_and_frame_type_is_a_target() -> None:
    streams = {method.name for service in SERVICES for method in service.methods} - {
        method.name for method in REQUEST_METHODS
    }
    assert streams == {"Attend", "Exchange"}
    bodies = {kind.DESCRIPTOR.full_name for kind in ENVELOPES} | {"tiermesh.Chunk"}
    for service in SERVICES:
        for method in service.methods:
            if method.name in streams:
                assert method.input_type.full_name in bodies, method.full_name
    sent = {
        kind for seed in TARGETS["http2_server"].seeds for kind, *_ in frames_in(seed[1 + len(PREFACE) :])
    }
    assert set(FrameType) <= sent
