"""The worker: computes gradients on this host's mesh, for an aggregator that leases it micro-batches.

Read it in this order:

1. `core/`: the state machine, pure; which leases are begun, which chunks are sent, which orders are obeyed.
2. `service.py`: keeps the control stream to the aggregator open and carries out the core's effects.
3. `shard_streams.py`, `data_stream.py`: weights come in and sums go out, one stream for each shard.
4. `device_thread.py`: the one thread that touches the mesh. `job_on_mesh.py` builds a job, `weight_loader.py` puts
   weights on the mesh, `lease_runner.py` computes leases.
5. `node_sum.py`, `sum_memory.py`, `pass_checksums.py`: a lease's sum, its memory, and checksums for verification.
6. `meters.py`: samples per second and memory by phase.
7. `step_interface.py`: what the device thread needs of a training step.
8. `daemon.py`: options of the process.
"""
