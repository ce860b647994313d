"""What moves and adds the bytes of tensors, and decides nothing.

Cores decide. They give a plane the orders of protos/plane.proto, and it reports what has happened;
docs/internals/plane.md says which there are and what they promise. A plane has sums, or tensors (master weights, staged
gradient, the rule's state), or both, of several jobs at once. It serves workers' data streams and sends them weights. A
worker's plane has the sums of its leases.

Files in reading order:

    plane.py              `Plane`: orders, reports, workers' streams
    order_thread.py       its two threads, which take turns between jobs; waiting_payloads.py bounds what waits of each
    bookkeeping.py        pure: which chunks it takes, which weights it may send a worker
    sums.py               pieces of chunks, and sums of nodes of the reduction tree
    tensor_orders.py      orders on tensors, on the kernel thread; plane_tensors.py has those of a plane's chunks
    master_tensors.py     weights, staged gradient and rule state of one job; huge_page_arrays.py allocates them
    update_rules.py       AdamW, SGD, NoOp
    link.py, group.py     links to planes: the one in this process, or several as one
    messages.py           orders and reports on a stream: their envelopes, and their sequence
    checkpoint_files.py   a plane's part of a checkpoint as a file, and the whole arrays that such files make
    streams/              data streams: chunks in messages or in shared memory, and the newest weights
    link_check/           known values on the path of tensors, compared and timed
    errors.py             errors of planes
    worker_plane.py       `WorkerPlane`: a worker's end of the data streams; lease_sums.py has the sums that it sends
    sum_queue.py          pure: which pieces of them are sent next
"""
