"""Connections between roles: gRPC servers and channels, control streams, data streams and how they fail.

Read in this order: `security` (certificates, `HOST:PORT`), `server` (gRPC server and channel), `links` (how a stream
between two roles ends), `mailbox` and `heartbeats` (what each end of a control stream runs), `control_streams`
(Hello and checksums), `data_streams` (tensors), `http2/` (the gRPC implementation that carries them),
`shared_memory_link` (tensors between processes of one host) and `newest_weights` (weights ready to be sent).
"""
