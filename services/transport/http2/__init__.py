"""gRPC over HTTP/2 with few copies, for data streams: one connection carries one bidirectional stream.

Sources are RFC 9113 (HTTP/2), RFC 7541 (HPACK, by the package hpack) and gRPC's PROTOCOL-HTTP2.md.

Without I/O: `frames` (the format), `parser` (frames from bytes), `headers` (HPACK, metadata, statuses), `messages`
(gRPC messages from DATA) and `frame_budget` (small frames that a peer may send). On asyncio's event loop: `stream`
(messages and flow control), `connection` (what both ends have in common), `client` and `server`. This is also the
reading order.
"""
