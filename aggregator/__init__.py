"""The aggregator: takes jobs, leases their work to workers, sums gradients, and passes them to the optimizer.

Read it in this order:

1. core/: all decisions, without sockets, threads, clocks or files.
2. service.py: feeds the core; effects.py carries out what it decides, and wiring.py connects both with the parts below.
   jobs_service.py serves users, worker_control.py the workers.
3. data_plane.py: the core's orders go to planes (plane/), in this process or in shards/.
4. optimizer_links/: how the optimizer is reached.
5. storage/, leader.py and standby.py: what survives a crash, and which aggregator leads.
6. history/: the figures of every step of each job.
7. daemon.py: the command's options.
"""
