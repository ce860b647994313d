"""What people's programs share: the client of the aggregator's job service, its answers as JSON, a job's files.

1. `client.py` calls `tiermesh.Jobs` and `tiermesh.Files` for one person.
2. `fields.py` makes JSON of a job and of the cluster.
3. `input_files.py` has the files that a job names, for their upload.
"""
