"""One core, many shards: processes that each hold every count-th chunk of a job's tensors.

The aggregator's core decides as it does without shards. Payloads, sums, master weights and the update rule's state are
in the shards, so workers exchange tensors with all shards at once.

Two processes run this code. The folders are named after their sides of the service `tiermesh.Shard` (plane.proto):

    messages.py        both sides: orders and reports, their envelopes, and effects of the core as orders
    array_pieces.py    both sides: pieces of flat arrays, for checkpoints

    server/            a shard's process (`tiermesh aggregator --shard`)
        core.py            pure bookkeeping: which chunks it takes, which weights it may send
        kernel_state.py    payloads and tensors, on the kernel thread
        tensor_copies.py   copies of the tensors for checkpoints
        session.py         one aggregator's connection: carries out its orders, reports to it
        service.py         gRPC service

    client/            the aggregator's process (`--shards`)
        link.py, group.py  connection to one shard, and to all of them
        data_plane.py      the aggregator's DataPlane: effects on payloads become orders
        released_weights.py  pure bookkeeping: which weights each shard may send a worker
        tensor_store.py    the optimizer's TensorStore; gathered_tensors.py puts checkpoints together
        staged_sums.py     pure bookkeeping: which sums the shards have staged for a step
        optimizer_link.py  the aggregator's OptimizerLink to the engine in its own process
"""
