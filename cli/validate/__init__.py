"""`tiermesh validate`: check a job's config without a cluster, and say what the job would take.

`command` runs it, `report` gathers the figures, and `text` prints them.
"""
