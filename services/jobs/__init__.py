"""What people's programs share: the client of the aggregator's job service, its answers as JSON, a job's files.

1. `connection.py` finds the aggregator that leads, and makes one person's calls to it.
2. `client.py` has the calls of `tiermesh.Jobs` and `tiermesh.Files`.
3. `fields.py` makes JSON of a job and of the cluster.
4. `input_files.py` has the files that a job names, for their upload, and `own_code.py` the code that goes with it.
"""
