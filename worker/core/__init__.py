"""The worker's state machine, without sockets, threads, clocks or files.

Read it in this order:

1. `events.py`: the inputs that `WorkerCore` takes and the effects that it returns.
2. `job.py`: what the worker knows of the job on its mesh, and of the weights that arrive for it.
3. `leases.py`: the leases it holds, and how much of their sums it may send.
4. `worker.py`: `WorkerCore`, which ties them together.

`lanes.py` stands apart: the ends of the links between the workers of a pipeline.
"""
