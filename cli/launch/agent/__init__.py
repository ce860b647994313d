"""The agent: one process on each host of a launch, which runs that host's daemons.

`protocol.py` has the messages, `process.py` is the agent, `connections.py` its streams, `link.py` the launcher's end.
`job_watch.py` tells a detached agent when its job has ended.
"""
