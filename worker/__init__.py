"""The worker: computes gradients on this host's mesh, for an aggregator that leases it micro-batches.

Read it in this order:

1. `core/`: the state machine, pure; which leases are begun, which chunks are sent, which orders are obeyed.
2. `service.py`: keeps the control stream to the aggregator open and carries out the core's effects. Those on sums go to
   `plane/worker_plane.py`, which has the memory of sums and the data streams.
3. `device_thread.py`: the one thread that touches the mesh. `job_on_mesh.py` builds a job, `weight_loader.py` puts
   weights on the mesh, `lease_runner.py` computes leases.
4. `code_cache.py`: the code of users' own models, a copy for each job; `own_modules.py` finds what is installed.
5. `node_sum.py`, `pass_checksums.py`: a lease's sum, and checksums for verification.
6. `meters.py`: samples per second and memory by phase.
7. `step_interface.py`: what the device thread needs of a training step.
8. `daemon.py`: options of the process.
"""
