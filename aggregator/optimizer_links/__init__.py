"""Links from the aggregator to its optimizer.

link.py says what every link does. in_process.py reaches an optimizer in this process (2-tier and shards), remote.py one
on another host (3-tier).
"""
