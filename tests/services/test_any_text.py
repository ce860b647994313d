"""Tests that any address, steps or certificate is accepted or refused in one line."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.errors import Refused
from services.instrumentation.timeline import TimelineOptions
from services.transport.addresses import split_address
from services.transport.security import Security
from tests.support.anything import is_one_line

TEXTS = st.text(max_size=12) | st.text(alphabet="0123456789-:[].١²", max_size=12)


@settings(max_examples=200, deadline=None)
@given(TEXTS)
@example("h:" + "9" * 5000)
@example("h" * 10_000)
def test_any_address_is_split_or_refused(text: str) -> None:
    try:
        host, port = split_address("--listen", text)
    except Refused as error:
        assert is_one_line(error)
    else:
        assert host
        assert 0 <= port <= 65535


@settings(max_examples=200, deadline=None)
@given(steps=TEXTS)
@example(steps="1-" + "9" * 5000)
@example(steps="-" * 10_000)
def test_any_steps_are_parsed_or_refused(tmp_path_factory: pytest.TempPathFactory, steps: str) -> None:
    try:
        options = TimelineOptions.parse(tmp_path_factory.getbasetemp(), steps)
    except Refused as error:
        assert is_one_line(error)
    else:
        assert 0 <= options.first_step <= options.last_step


PEM = b"-----BEGIN CERTIFICATE-----\n"


@settings(max_examples=100, deadline=None)
@given(
    content=st.binary(max_size=60)
    | st.binary(max_size=60).map(lambda rest: PEM + rest + PEM.replace(b"BEGIN", b"END"))
)
def test_any_certificate_is_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.pem"
    path.write_bytes(content)
    for files in ((path, path, None), (None, None, path)):
        with pytest.raises(Refused) as refused:
            Security(*files)
        assert is_one_line(refused.value)
