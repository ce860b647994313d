"""Rows: workers that together hold all stages of a pipeline, and that the rest of the core sees as one worker each.

`holders` says what a job needs of them, `job_rows` does it. `gathering` waits for the workers of a job that begins.
`forming` decides which worker has which stages, `former` carries it out, `row_table` sends orders to rows
(docs/decisions/0044).
"""
