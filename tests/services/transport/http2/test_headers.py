"""Headers: HPACK, the rules of HTTP/2, and round trips of metadata and statuses."""

from __future__ import annotations

import grpc
import pytest
from hpack import Decoder, Encoder
from hypothesis import given, settings
from hypothesis import strategies as st

from services.transport.http2.frames import ErrorCode, ProtocolError
from services.transport.http2.headers import (
    LONGEST_DETAILS_BYTES,
    HeaderCodec,
    metadata_of,
    request_headers,
    response_headers,
    status_headers,
    status_of,
    status_of_http_error,
    status_of_reset,
)
from services.transport.limits import HEADER_LIST_BYTES


@pytest.mark.parametrize("huffman", [True, False])
def test_blocks_are_read_with_and_without_huffman_and_from_the_table(huffman: bool) -> None:
    encoder, codec = Encoder(), HeaderCodec()
    headers = [(":status", "200"), ("some-key", "some value, with | marks")]
    for _ in range(2):  # the second time from the dynamic table
        assert codec.decode(encoder.encode(headers, huffman)) == headers


def test_blocks_do_not_depend_on_the_size_of_the_peers_table() -> None:
    ours, theirs = HeaderCodec(), Decoder()
    theirs.max_allowed_table_size = 0
    for _ in range(3):
        assert theirs.decode(ours.encode([("a-key", "a value")]), raw=True) == [(b"a-key", b"a value")]


@pytest.mark.parametrize("update", [b"\x20", b"\x3e", b"\x3f\xe1\x1f", b"\x3f\x80\x80\x00"])
def test_a_block_may_update_the_size_of_its_table_twice(update: bytes) -> None:
    block = Encoder().encode([("a-key", "a value")])
    assert HeaderCodec().decode(update * 2 + block) == [("a-key", "a value")]
    with pytest.raises(ProtocolError, match="more than 2 updates") as caught:
        HeaderCodec().decode(update * 3 + block)
    assert caught.value.code is ErrorCode.COMPRESSION_ERROR
    with pytest.raises(ProtocolError):
        HeaderCodec().decode(b"\x3f" + b"\xff" * 1000)


@pytest.mark.parametrize(
    "fields",
    [
        [("Upper", "a")],
        [("a b", "c")],
        [("", "a")],
        [(":", "a")],
        [("a", "b\r\nc: d")],
        [("a", "b"), (":path", "/")],
        [("connection", "close")],
        [("transfer-encoding", "chunked")],
    ],
)
def test_headers_that_http2_forbids_end_the_connection(fields: list[tuple[str, str]]) -> None:
    with pytest.raises(ProtocolError, match="header"):
        HeaderCodec().decode(Encoder().encode(fields))


def test_damaged_and_oversized_blocks_are_refused() -> None:
    with pytest.raises(ProtocolError) as caught:
        HeaderCodec().decode(b"\xff\xff\xff\xff\xff")
    assert caught.value.code is ErrorCode.COMPRESSION_ERROR
    encoder = Encoder()
    bomb = encoder.encode([("key", "v" * 3000)]) + encoder.encode([("key", "v" * 3000)]) * 1000
    with pytest.raises(ProtocolError, match="can't be read"):
        HeaderCodec().decode(bomb)


BLOCKS = [
    Encoder().encode(request_headers("http", "h:1", "/s/m", (("key", "value"), ("a-bin", b"\0\1")))),
    Encoder().encode([(":status", "200"), ("grpc-status", "13"), ("grpc-message", "100%25")], huffman=False),
    Encoder().encode([("key", "v" * 3000)]),
]


@settings(max_examples=300, deadline=None)
@given(
    st.binary(max_size=100)
    | st.builds(
        lambda block, position, changed: (
            block[: position % len(block)] + changed + block[position % len(block) :]
        ),
        st.sampled_from(BLOCKS),
        st.integers(0, 5000),
        st.binary(max_size=4),
    )
)
def test_any_block_is_headers_or_ends_the_connection(block: bytes) -> None:
    codec = HeaderCodec()
    for _ in range(2):  # the second time with the dynamic table of the first
        try:
            headers = codec.decode(block)
            metadata_of(headers)
        except ProtocolError as error:
            assert str(error).isprintable()
            return
        assert sum(len(name) + len(value) + 32 for name, value in headers) <= HEADER_LIST_BYTES
        assert isinstance(status_of(headers)[0], grpc.StatusCode)
        status_of_http_error(headers)


@given(st.text())
def test_any_status_text_round_trips(text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    headers = status_headers(grpc.StatusCode.ABORTED, text)
    assert all(" " <= character <= "~" for _, value in headers for character in value)
    code, details = status_of(headers)
    assert code is grpc.StatusCode.ABORTED
    assert details == text or len(text) * 12 > LONGEST_DETAILS_BYTES


def test_a_long_status_text_is_cut_between_characters() -> None:
    for start in range(3):
        headers = status_headers(grpc.StatusCode.ABORTED, "x" * start + "ü" * 5000)
        assert len(headers[1][1]) <= LONGEST_DETAILS_BYTES + 3
        assert status_of(headers)[1].startswith("x" * start + "üü")
        assert status_of(headers)[1].endswith("...")


def test_metadata_round_trips() -> None:
    metadata = (("tiermesh-key", "a value"), ("raw-bin", b"\0\xff,"), ("raw-bin", b""))
    headers = request_headers("http", "host:1", "/a.B/C", metadata)
    codec = HeaderCodec()
    got = metadata_of(codec.decode(codec.encode(headers)))
    assert got == (("user-agent", "tiermesh"), *metadata)


@pytest.mark.parametrize(
    "entry",
    [
        ("Key", "a"),
        ("key", "ü"),
        ("key", "a\nb"),
        ("grpc-status", "0"),
        ("te", "a"),
        ("", "a"),
        ("key", b"a"),
    ],
)
def test_metadata_that_cannot_be_sent_is_refused(entry: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="metadata"):
        response_headers((entry,))


def test_a_binary_value_that_is_no_base64_is_refused() -> None:
    with pytest.raises(ProtocolError, match="base64"):
        metadata_of([("a-bin", "!")])


def test_missing_and_unknown_statuses_become_errors() -> None:
    assert status_of([])[0] is grpc.StatusCode.INTERNAL
    for number in ("99", "x", "-1", "1" * 1000):
        assert status_of([("grpc-status", number)])[0] is grpc.StatusCode.UNKNOWN
    assert status_of([("grpc-status", "0")]) == (grpc.StatusCode.OK, "")
    assert status_of_reset(ErrorCode.CANCEL) is grpc.StatusCode.CANCELLED
    assert status_of_reset(77) is grpc.StatusCode.INTERNAL


def test_answers_that_are_not_grpc_become_errors() -> None:
    assert status_of_http_error(response_headers(())) is None
    assert status_of_http_error([(":status", "503")]) == (
        grpc.StatusCode.UNAVAILABLE,
        "the peer answers with HTTP status '503'",
    )
    refusal = status_of_http_error([(":status", "200"), ("content-type", "text/html")])
    assert refusal is not None
    assert "text/html" in refusal[1]
