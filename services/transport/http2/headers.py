"""Headers of gRPC over HTTP/2: HPACK, the rules of RFC 9113 (section 8.2), metadata and statuses."""

from __future__ import annotations

import base64
import binascii
import string
from collections.abc import Iterable, Sequence
from urllib.parse import quote, unquote

import grpc
from hpack import Decoder, Encoder, HPACKError

from services.printable import one_line
from services.transport.http2.frames import ErrorCode, ProtocolError
from services.transport.limits import HEADER_LIST_BYTES

LONGEST_DETAILS_BYTES = 4096
"""Longest text of a status on the wire; gRPC's limit for all trailers is 8 KiB."""
CONTENT_TYPE = "application/grpc"

Value = str | bytes
"""Value of metadata: bytes for keys that end in -bin, else text."""
Metadata = Sequence[tuple[str, Value]]
Headers = list[tuple[str, str]]

_MOST_SIZE_UPDATES = 2  # at the start of a block (RFC 7541, section 4.2)
_PRINTABLE = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")
_NAME_CHARACTERS = frozenset(string.ascii_lowercase + string.digits + "!#$%&'*+-.^_`|~")
_OF_CONNECTIONS = frozenset({"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"})
_RESERVED = frozenset({"te", "content-type", "user-agent"})
_BY_HTTP_STATUS = {
    "400": grpc.StatusCode.INTERNAL,
    "401": grpc.StatusCode.UNAUTHENTICATED,
    "403": grpc.StatusCode.PERMISSION_DENIED,
    "404": grpc.StatusCode.UNIMPLEMENTED,
    "429": grpc.StatusCode.UNAVAILABLE,
    "502": grpc.StatusCode.UNAVAILABLE,
    "503": grpc.StatusCode.UNAVAILABLE,
    "504": grpc.StatusCode.UNAVAILABLE,
}
_BY_RESET: dict[int, grpc.StatusCode] = {
    ErrorCode.REFUSED_STREAM: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.CANCEL: grpc.StatusCode.CANCELLED,
    ErrorCode.ENHANCE_YOUR_CALM: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.INADEQUATE_SECURITY: grpc.StatusCode.PERMISSION_DENIED,
}
_BY_NUMBER = {code.value[0]: code for code in grpc.StatusCode}


class HeaderCodec:
    """HPACK state of one connection, in both directions.

    The encoder uses no dynamic table. So the peer's settings of its size change nothing, however many there are.
    """

    def __init__(self) -> None:
        self._encoder = Encoder()
        self._encoder.header_table_size = 0
        self._decoder = Decoder(max_header_list_size=HEADER_LIST_BYTES)

    def encode(self, headers: Headers) -> bytes:
        """Return a header block."""
        return self._encoder.encode(headers)

    def decode(self, block: bytes) -> Headers:
        """Return the headers of a block, in their order.

        Raises:
            ProtocolError: the block is damaged, too long, or breaks a rule of RFC 9113, section 8.2.
        """
        if _has_many_size_updates(block):
            text = f"a header block with more than {_MOST_SIZE_UPDATES} updates of the table's size"
            raise ProtocolError(text, ErrorCode.COMPRESSION_ERROR)
        try:
            fields = [(bytes(field[0]), bytes(field[1])) for field in self._decoder.decode(block, raw=True)]
        except HPACKError as error:  # its text can have the whole block
            text = f"a header block of {len(block)} bytes can't be read: {one_line(str(error), 100)}"
            raise ProtocolError(text, ErrorCode.COMPRESSION_ERROR) from None
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in fields]
        pseudo_allowed = True
        for name, value in headers:
            regular = not name.startswith(":")
            if regular:
                pseudo_allowed = False
            if (
                not name.removeprefix(":")
                or not _NAME_CHARACTERS.issuperset(name.removeprefix(":"))
                or not (regular or pseudo_allowed)
                or name in _OF_CONNECTIONS
                or any(character in value for character in "\0\r\n")
            ):
                raise ProtocolError(f"header {name[:40]!r}: not allowed there, or not with this value")
        return headers


def request_headers(scheme: str, authority: str, path: str, metadata: Metadata) -> Headers:
    """Return the headers of a call.

    Raises:
        ValueError: metadata that can't be sent.
    """
    return [
        (":method", "POST"),
        (":scheme", scheme),
        (":path", path),
        (":authority", authority),
        ("te", "trailers"),
        ("content-type", CONTENT_TYPE),
        ("user-agent", "tiermesh"),
        *_to_headers(metadata),
    ]


def response_headers(metadata: Metadata) -> Headers:
    """Return the headers of an answer.

    Raises:
        ValueError: metadata that can't be sent.
    """
    return [(":status", "200"), ("content-type", CONTENT_TYPE), *_to_headers(metadata)]


def status_headers(code: grpc.StatusCode, details: str) -> Headers:
    """Return the trailers of a status; its text is percent-encoded, and cut if it is very long."""
    headers = [("grpc-status", str(code.value[0]))]
    if details:
        text = quote(details, safe=_PRINTABLE)
        if len(text) > LONGEST_DETAILS_BYTES:
            text = text[:LONGEST_DETAILS_BYTES]
            text = text[: len(text) - 2] + text[-2:].partition("%")[0] + "..."
        headers.append(("grpc-message", text))
    return headers


def metadata_of(headers: Headers) -> tuple[tuple[str, Value], ...]:
    """Return the metadata among headers: all but those of HTTP and gRPC.

    Raises:
        ProtocolError: a binary value is not base64.
    """
    metadata: list[tuple[str, Value]] = []
    for name, value in headers:
        if name.startswith((":", "grpc-")) or name in ("te", "content-type"):
            continue
        if not name.endswith("-bin"):
            metadata.append((name, value))
            continue
        for part in value.split(","):
            try:
                metadata.append(
                    (name, base64.b64decode(part.strip() + "=" * (-len(part.strip()) % 4), validate=True))
                )
            except (binascii.Error, ValueError):
                raise ProtocolError(f"header {name[:40]!r}: the value is not base64") from None
    return tuple(metadata)


def status_of(headers: Headers) -> tuple[grpc.StatusCode, str]:
    """Return the status in trailers, and its text."""
    found = dict(headers)
    number, text = found.get("grpc-status"), unquote(found.get("grpc-message", ""), errors="replace")
    if number is None:
        return grpc.StatusCode.INTERNAL, "the peer ended the stream without a grpc-status"
    if not number.isascii() or not number.isdigit() or int(number[:9]) not in _BY_NUMBER:
        return grpc.StatusCode.UNKNOWN, text or f"the peer ended the stream with grpc-status {number[:20]!r}"
    return _BY_NUMBER[int(number[:9])], text


def status_of_http_error(headers: Headers) -> tuple[grpc.StatusCode, str] | None:
    """Return status and text for an answer that is not gRPC, or None if it is gRPC."""
    found = dict(headers)
    status, kind = found.get(":status", ""), found.get("content-type", "")
    if status != "200":
        return _BY_HTTP_STATUS.get(
            status, grpc.StatusCode.UNKNOWN
        ), f"the peer answers with HTTP status {status[:20]!r}"
    if not kind.startswith(CONTENT_TYPE):
        text = f"the peer answers with content-type {kind[:40]!r}, expected {CONTENT_TYPE}"
        return grpc.StatusCode.UNKNOWN, text
    return None


def status_of_reset(code: int) -> grpc.StatusCode:
    """Return the gRPC status that stands for a RST_STREAM with this error code."""
    return _BY_RESET.get(code, grpc.StatusCode.INTERNAL)


def _to_headers(metadata: Iterable[tuple[str, Value]]) -> Headers:
    headers = []
    for key, value in metadata:
        if not key or not _NAME_CHARACTERS.issuperset(key) or key.startswith("grpc-") or key in _RESERVED:
            raise ValueError(f"metadata key {key!r}: expected a lower-case name that gRPC does not reserve")
        if key.endswith("-bin"):
            raw = value.encode() if isinstance(value, str) else value
            headers.append((key, base64.b64encode(raw).decode().rstrip("=")))
        elif isinstance(value, bytes) or not all(" " <= character <= "~" for character in value):
            raise ValueError(f"metadata {key}: {value!r} is not printable ASCII; use a key that ends in -bin")
        else:
            headers.append((key, value))
    return headers


def _has_many_size_updates(block: bytes) -> bool:
    """Return whether a block starts with too many updates of the table's size; hpack would carry out any number."""
    position = 0
    for _ in range(_MOST_SIZE_UPDATES + 1):
        if position >= len(block) or block[position] & 0xE0 != 0x20:
            return False
        is_whole = block[position] & 0x1F != 0x1F
        position += 1
        while not is_whole and position < len(block):
            is_whole = block[position] < 0x80
            position += 1
    return True
