"""The aggregator's data plane: payloads from workers are summed here, and the newest weights are sent to workers.

Read plane.py first, then worker_streams.py, then reduction.py.
"""
