"""Limits that grpcio's connections and those of `http2/` share."""

from __future__ import annotations

from services.protocol.bounds import MESSAGE_LIMIT_BYTES as MESSAGE_LIMIT_BYTES
from services.timeouts import STANDARD_TIMEOUTS

HEADER_LIST_BYTES = 16 * 1024
"""Longest header list accepted: the sum of names, values and 32 bytes per field (RFC 9113, section 6.5.2)."""

HELLO_SECONDS = STANDARD_TIMEOUTS.hello
"""Longest wait for the first message of a stream (Hello), and for its answer."""

KEEPALIVE_SECONDS = STANDARD_TIMEOUTS.ping
"""Time without traffic after which a connection is pinged."""

KEEPALIVE_TIMEOUT_SECONDS = STANDARD_TIMEOUTS.broken - STANDARD_TIMEOUTS.ping
"""Time without an answer to a ping after which a connection is dead."""

OPENING_SECONDS = HELLO_SECONDS / 2
"""Longest time from a connection to the main port to the end of its TLS handshake and its HTTP/2 settings."""

IDLE_SECONDS = 120.0
"""Time without a call after which a server closes a connection of its main port."""
