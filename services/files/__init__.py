"""Files and large texts by SHA-256: a job's spec, a model's layout, the files of its checkpoints.

store.py keeps them on disk, upload.py writes one, service.py serves them to peers, transfer.py is the client's side.
"""
