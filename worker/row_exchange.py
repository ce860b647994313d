"""The exchange of a lease's arrays with the other workers of its row, as the device thread uses it."""

from __future__ import annotations

from typing import Protocol

from protos import cluster_pb2 as pb
from services.config.job import JobConfig
from services.errors import Failed, TiermeshError
from services.pipeline.exchange import ArraySizes, PassExchange, ReceivedKind


class LeaseDropped(TiermeshError):
    """The lease under way was dropped: its result is not needed."""


class NeighbourLost(TiermeshError):
    """A worker of the row that arrays can't be exchanged with: it can't be reached, or sends wrong ones.

    Attributes:
        neighbour: its name.
    """

    def __init__(self, neighbour: str, reason: str) -> None:
        super().__init__(reason)
        self.neighbour = neighbour


class RowExchange(PassExchange, Protocol):
    """A `PassExchange` of one lease. Its calls raise LeaseDropped or NeighbourLost where they wait."""

    def worker_of(self, range_index: int) -> str:
        """Return which worker of the row has a range, for people; -1 is the last range."""

    def sender_of(self, kind: ReceivedKind) -> str:
        """Return the name of the worker that sends this one's arrays of a kind."""

    def drop(self) -> None:
        """End the lease: calls that wait raise LeaseDropped. Any thread may call it."""

    def close(self) -> None:
        """End the lease's passes. What was sent is still delivered."""


class OpenExchange(Protocol):
    """Opens the exchange of a lease."""

    def __call__(self, lease: pb.Lease, config: JobConfig, sizes: ArraySizes) -> RowExchange:
        """Return the exchange.

        Args:
            lease: the lease.
            config: config of its job.
            sizes: largest arrays that this worker's stages exchange.

        Raises:
            LeaseDropped: the lease is of another row than the worker's.
            NeighbourLost: another worker of the row can't be reached.
        """


def refuse_exchange(lease: pb.Lease, config: JobConfig, sizes: ArraySizes) -> RowExchange:
    """Refuse to open an exchange: this process has no links to other workers."""
    del config, sizes
    raise Failed(f"lease {lease.lease}: this worker has no links to other workers")
