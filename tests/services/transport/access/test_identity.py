"""What certificates say, whatever is wrong with them."""

from __future__ import annotations

from contextlib import suppress

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from cli.certs.authority import issue, make_authority, renew
from services.errors import Refused
from services.names import NAME_PATTERN
from services.transport.access.identity import MAX_BOUND_NAMES, identify
from services.transport.access.permissions import CallerKind

AUTHORITY = make_authority("authority", 10)
GOOD = issue(AUTHORITY, CallerKind.WORKER, "w", ["h.example", "::1"], 5).certificate.public_bytes(
    Encoding.DER
)


@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_any_changed_certificate_is_read_or_refused(changes: list[tuple[int, int]]) -> None:
    content = bytearray(GOOD)
    for place, value in changes:
        content[place] = value
    with suppress(Refused):
        found = identify(bytes(content))
        assert found.kind is None or NAME_PATTERN.fullmatch(found.name)


@given(st.binary(max_size=2000) | st.binary(max_size=200).map(lambda tail: GOOD[: len(GOOD) // 2] + tail))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    with suppress(Refused):
        identify(content)


@given(st.sampled_from(CallerKind), st.from_regex(NAME_PATTERN, fullmatch=True))
def test_role_and_name_are_read_back(kind: CallerKind, name: str) -> None:
    pair = issue(AUTHORITY, kind, name, [], 5)
    found = identify(pair.certificate_pem())
    assert (found.kind, found.name, found.serial) == (kind, name, pair.certificate.serial_number)
    assert found.bound_names == ()
    assert found.allows_name("any")


@given(
    st.lists(st.from_regex(NAME_PATTERN, fullmatch=True), min_size=1, max_size=MAX_BOUND_NAMES, unique=True)
)
def test_bound_names_are_read_back_and_renewed(names: list[str]) -> None:
    pair = issue(AUTHORITY, CallerKind.WORKER, "w", ["h.example"], 5, names)
    for each in (pair, renew(AUTHORITY, pair.certificate, 5)):
        found = identify(each.certificate_pem())
        assert list(found.bound_names) == names
        assert all(found.allows_name(name) for name in names)
        assert not found.allows_name("".join(names) + "x")


def test_wrong_or_too_many_bound_names_are_refused() -> None:
    for names in (["../w"], [""], [str(number) for number in range(MAX_BOUND_NAMES + 1)]):
        with pytest.raises(Refused) as refused:
            issue(AUTHORITY, CallerKind.WORKER, "w", [], 5, names)
        assert "--name" in str(refused.value)
