"""The worker's daemon: has gradients computed on this host's mesh, for an aggregator that leases it micro-batches.

Read it in this order:

1. `core/`: the state machine, pure; which leases are begun, which chunks are sent, which orders are obeyed.
2. `service.py`: keeps the control stream to the aggregator open and carries out the core's effects. Those on sums go to
   `plane/worker_plane.py`, which has the memory of sums and the data streams.
3. `device_thread.py`: the one thread that speaks to the compute process, which has the mesh. `compute_process.py` is
   the process from outside, `remote_step.py` its training step. `job_on_mesh.py` builds a job, `weight_loader.py` puts
   weights on the mesh, `lease_runner.py` computes leases.
4. `code_cache.py`: the code of users' own models, a copy for each job; `own_modules.py` finds what is installed.
5. `node_sum.py`, `pass_checksums.py`: a lease's sum, and checksums for verification.
6. `meters.py`: samples per second.
7. `daemon.py`: options of the process.
"""
