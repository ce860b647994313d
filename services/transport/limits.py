"""Limits that grpcio's connections and those of `http2/` share."""

from __future__ import annotations

from services.timeouts import STANDARD_TIMEOUTS

MESSAGE_LIMIT_BYTES = 4 * 1024 * 1024
"""Longest message sent or received, without its 5-byte gRPC prefix."""

HELLO_SECONDS = STANDARD_TIMEOUTS.hello
"""Longest wait for the first message of a stream (Hello), and for its answer."""

KEEPALIVE_SECONDS = STANDARD_TIMEOUTS.ping
"""Time without traffic after which a connection is pinged."""

KEEPALIVE_TIMEOUT_SECONDS = STANDARD_TIMEOUTS.broken - STANDARD_TIMEOUTS.ping
"""Time without an answer to a ping after which a connection is dead."""
