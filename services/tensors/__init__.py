"""Tensors as aggregator, optimizer and network see them: flat float32 arrays, cut into chunks.

Imports `protos` and services' protocol, instrumentation and errors; knows nothing of models or devices.
Read `layout` first, then `reduction_tree`, `stripes` and `chunk_ranges`, which are pure. Then `kernels/`,
`chunk_messages` (chunks on the wire) and `shared_memory` (chunks between processes of a host).
"""
