"""Files by SHA-256: a job's data, a model's layout, the files of its checkpoints.

store.py keeps them on disk, upload.py writes one, service.py serves them to peers within limits.py. Clients send them
by transfer.py and read them by fetch.py, in pieces (pieces.py). code_archive.py makes one file of a folder of code,
which code_folder.py reads and writes; source_hash.py tells code apart.
"""
