"""The process around a role's service: set-up, signals, exit codes, logs, metrics.

This layer may import every other layer of services. Read `daemon` first, which calls `process`, `logs`,
`descriptors`, `metrics` and `metrics_server`. `stop_watch` stops the process on a signal.
`backlog` and `handover` pass work between threads and the event loop. `recording` records and replays a core's calls.
"""
