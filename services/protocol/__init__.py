"""Protocol without I/O: versions, features, the plan of a job, envelopes, checksums of messages.

Imports `protos`, services' errors and nothing of the layers above. The cores of all roles may import it.
Read `versions`, `features`, `plan`, `envelope`, `checksums`, then `non_finite`.
"""
