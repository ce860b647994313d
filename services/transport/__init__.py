"""Connections between roles: gRPC servers and channels, control streams, data streams and how they fail.

Reading order:

1. `security` (certificates, `HOST:PORT`), `limits` and `server` (grpcio's server and channel);
2. `links` (errors of a stream between two roles), `mailbox`, `heartbeats` and `backoff`;
3. `control_streams` (Hello and checksums) and `data_streams` (tensors, by `http2/` or grpcio);
4. `shared_memory_link` (tensors between processes of one host) and `newest_weights`.
"""
