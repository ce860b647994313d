"""Rows: workers that together have a job's whole model, and so hold its leases. Without a pipeline it is one worker.

`row` is one of them, `row_table` sends orders to them, and `job_rows` takes what their workers report. `pipeline_rows`
is what a pipeline adds: `gathering` waits for the workers of a job that begins, `forming` decides which worker has
which stages, and `former` carries it out (docs/decisions/0060).
"""
