"""`tiermesh validate`: check a job's config without a cluster, and say what the job would take.

`command` runs it. `report` gathers the figures, of which `timing` has the times, for the `cluster` that is named.
`screen` prints the verdict and what matters, and `text` all of it.
"""
