"""Lists of addresses, and the order in which they are tried."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.errors import Refused
from services.transport.addresses import AddressRotation, split_addresses
from tests.support.anything import is_one_line

ADDRESSES = st.lists(
    st.builds("{}:{}".format, st.sampled_from(["a", "b.example", "[::1]"]), st.integers(0, 65535)),
    min_size=1,
    max_size=5,
    unique=True,
)


@given(addresses=ADDRESSES, comma=st.sampled_from([",", ", ", " ,"]))
def test_a_list_comes_back_in_its_order(addresses: list[str], comma: str) -> None:
    assert split_addresses("--aggregator", comma.join(addresses)) == tuple(addresses)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "--aggregator '': not HOST:PORT"),
        ("a:1,", "--aggregator 'a:1,': part 2 is empty"),
        (",a:1", "part 1 is empty"),
        ("a:1,,b:2", "part 2 is empty"),
        ("a:1,b", "--aggregator 'b': not HOST:PORT"),
        ("a:1,b:70000", "--aggregator 'b:70000': not HOST:PORT"),
        ("a:1;b:2", "--aggregator 'a:1;b:2': not HOST:PORT"),
        ("a:1, a:1", "--aggregator 'a:1, a:1': a:1 is given twice"),
    ],
)
def test_the_error_names_the_bad_part(text: str, line: str) -> None:
    with pytest.raises(Refused) as caught:
        split_addresses("--aggregator", text)
    assert line in str(caught.value)


@given(text=st.text(alphabet="a1:,[] \n\0", max_size=12))
def test_any_text_is_a_list_or_refused(text: str) -> None:
    try:
        assert all(split_addresses("--aggregator", text))
    except Refused as refused:
        assert is_one_line(refused)


@given(addresses=ADDRESSES, outcomes=st.lists(st.booleans(), max_size=30))
def test_a_round_starts_with_the_last_answer_and_tries_all(
    addresses: list[str], outcomes: list[bool]
) -> None:
    rotation = AddressRotation(addresses)
    tried: list[str] = []
    for answers in outcomes:
        tried.append(rotation.current)
        if answers:
            rotation.answered()
            assert rotation.current == tried[-1]
            tried = []
        elif rotation.failed():
            assert sorted(tried) == sorted(addresses)
            tried = []
        else:
            assert len(tried) < len(addresses)
