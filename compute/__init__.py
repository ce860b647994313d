"""The compute process of a worker: the mesh, the model and the data of one job, and nothing of clusters.

The worker's daemon spawns it as `python -m compute`, and speaks to it as docs/internals/compute-protocol.md says.
Read it in this order:

1. `server.py`: carries out the daemon's requests.
2. `job_on_mesh.py`: builds a job; `first_iteration.py` measures its memory, `chip_memory.py` refuses what can't fit.
3. `code_fingerprint.py`: hash of the code that computes.
4. `mesh_check.py`: the check of a mesh.
5. `step_interface.py`: what a training step is.
"""
