"""HTTP/2 frames that cost a receiver more than their sender, one kind of flood each."""

from __future__ import annotations

from hpack import Encoder

from services.transport.http2.frames import (
    PREFACE,
    Flags,
    FrameType,
    Setting,
    frame,
    settings_frame,
    window_update_frame,
)

PATH = "/tiermesh.Cluster/Exchange"


def request_block(path: str = PATH) -> bytes:
    """Return the header block of a call."""
    return Encoder().encode(
        [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "flood"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        ]
    )


def opening(path: str = PATH) -> bytes:
    """Return what opens a connection and calls a method on stream 1."""
    headers = frame(FrameType.HEADERS, Flags.END_HEADERS, 1, request_block(path))
    return PREFACE + settings_frame({}) + headers


def floods(count: int, path: str = PATH) -> dict[str, bytes]:
    """Return floods of about `count` frames by name. Each follows `opening`."""
    block = request_block(path)
    streams = [2 * number + 3 for number in range(count)]
    resets = b"".join(
        frame(FrameType.HEADERS, Flags.END_HEADERS, stream, block)
        + frame(FrameType.RST_STREAM, 0, stream, b"\0\0\0\x08")
        for stream in streams
    )
    opened = b"".join(frame(FrameType.HEADERS, Flags.END_HEADERS, stream, block) for stream in streams)
    return {
        "settings": settings_frame({Setting.INITIAL_WINDOW_SIZE: 65535}) * count,
        "table-sizes": b"".join(settings_frame({Setting.HEADER_TABLE_SIZE: n % 4097}) for n in range(count)),
        "long-settings": frame(FrameType.SETTINGS, 0, 0, (b"\0\1" + b"\0\0\x10\0") * 2700)
        * (count // 100 + 1),
        "settings-acks": frame(FrameType.SETTINGS, Flags.ACK, 0) * count,
        "pings": frame(FrameType.PING, 0, 0, bytes(8)) * count,
        "ping-acks": frame(FrameType.PING, Flags.ACK, 0, bytes(8)) * count,
        "window-updates": window_update_frame(0, 1) * count,
        "stream-window-updates": window_update_frame(1, 1) * count,
        "priorities": frame(FrameType.PRIORITY, 0, 1, bytes(5)) * count,
        "resets": frame(FrameType.RST_STREAM, 0, 1, b"\0\0\0\x08") * count,
        "rapid-resets": resets,
        "streams": opened,
        "trailers": frame(FrameType.HEADERS, Flags.END_HEADERS | Flags.END_STREAM, 1, block) * count,
        "continuations": frame(FrameType.HEADERS, 0, 3, b"") + frame(FrameType.CONTINUATION, 0, 3) * count,
        "table-updates": frame(FrameType.HEADERS, Flags.END_HEADERS, 3, b"\x20" * 16_000)
        * (count // 100 + 1),
        "empty-headers": frame(FrameType.HEADERS, Flags.END_HEADERS, 3, b"\x00\x01a\x00" * 4000)
        * (count // 100 + 1),
        "empty-data": frame(FrameType.DATA, 0, 1) * count,
        "padding": frame(FrameType.DATA, Flags.PADDED, 1, bytes([255]) + bytes(255)) * count,
        "byte-data": b"".join(frame(FrameType.DATA, 0, 1, b"\0") for _ in range(count)),
        "unknown-frames": frame(0xFA, 0xFF, 7, b"x") * count,
        "long-unknown-frames": frame(0xFA, 0xFF, 7, bytes(60_000)) * (count // 100 + 1),
        "goaways": frame(FrameType.GOAWAY, 0, 0, bytes(8)) * count,
        "push-promises": frame(FrameType.PUSH_PROMISE, 0, 1, bytes(4)) * count,
    }
