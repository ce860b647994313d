"""gRPC over HTTP/2 with few copies, for data streams: one connection carries one bidirectional stream.

Sources are RFC 9113 (HTTP/2), RFC 7541 (HPACK, by the package hpack) and gRPC's PROTOCOL-HTTP2.md. Read in this
order: `frames` (the format), `parser` (frames from received bytes), `headers` (HPACK, metadata, statuses), `messages`
(gRPC messages from DATA), `stream` (one stream with its flow control), `connection` (what both ends have in common),
`client` and `server`.

The first four are without I/O. The others run on asyncio's event loop.
"""
