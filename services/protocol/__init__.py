"""Protocol without I/O: versions, the plan of a job, envelopes, checksums of messages.

Imports `protos`, services' errors and nothing of the layers above. The cores of all roles may import it.
Read `versions`, `plan`, `envelope`, `checksums`, then `non_finite`.
"""
