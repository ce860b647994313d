"""Shards: processes with a plane each, which has every count-th chunk of a job's tensors (`aggregator --shard`).

The aggregator's core decides as it does with a plane in its own process. Workers exchange tensors with all shards at
once.

    session.py, service.py  a shard's process: one aggregator's connection, and the gRPC service
    link.py                 the aggregator's process (`--shards`): the connection to one shard
"""
