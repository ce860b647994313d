"""Links from the aggregator to its optimizer.

link.py says what every link does. local.py reaches an optimizer in this process (2-tier), remote.py one on another
host (3-tier). A third implementation is in aggregator/shards/client: an optimizer whose tensors are in shards.
"""
