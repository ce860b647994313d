"""Connections between roles: gRPC servers and channels, control streams, data streams and how they fail.

Reading order:

1. `security` (certificates, `HOST:PORT`), `limits` and `server` (grpcio's server and channel);
2. `ports/` (which connections are accepted) and `access/` (who may call what);
3. `links` (errors of a stream between two roles), `mailbox` and `backoff`;
4. `control/` (Hello, checksums, heartbeats, connecting again);
5. `data/` (tensors, by `http2/`, by grpcio, or in memory that processes of one host share).
"""
