"""The plan of a launch: each rank's role, host, name, environment and mesh.

Pure: it reads no file and starts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Role = Literal["worker", "aggregator", "optimizer"]


@dataclass(frozen=True)
class Rank:
    """One daemon of a launch.

    Attributes:
        number: rank, as tt-run counts: workers first, then the aggregator, then the optimizer.
        role: worker, aggregator or optimizer.
        host: host as hosts.txt names it; None for this machine, without OpenSSH.
        name: daemon's name, with rank, mesh id and host.
        mesh_id: id of its mesh in the folder's descriptor; the descriptor that a worker gets calls it 0.
        environment: variables to add to those of the host, without TT_MESH_GRAPH_DESC_PATH.
        descriptor_text: descriptor of a worker's one mesh, as protobuf text; empty for the other roles.
    """

    number: int
    role: Role
    host: str | None
    name: str
    mesh_id: int
    environment: Mapping[str, str]
    descriptor_text: str


@dataclass(frozen=True)
class LaunchPlan:
    """All daemons of a launch.

    Attributes:
        ranks: ranks in order, so workers come first.
        tiers: 3 if the optimizer is a daemon of its own, 2 if it runs in the aggregator.
    """

    ranks: tuple[Rank, ...]
    tiers: int

    @property
    def workers(self) -> tuple[Rank, ...]:
        """Ranks that compute."""
        return tuple(rank for rank in self.ranks if rank.role == "worker")

    @property
    def aggregator(self) -> Rank:
        """Rank that leads the workers."""
        return next(rank for rank in self.ranks if rank.role == "aggregator")

    @property
    def optimizer(self) -> Rank | None:
        """Rank that holds the master weights; None with 2 tiers."""
        return next((rank for rank in self.ranks if rank.role == "optimizer"), None)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts to reach by OpenSSH, each once, in the order of their first rank; empty if all ranks are local."""
        return tuple(dict.fromkeys(rank.host for rank in self.ranks if rank.host is not None))

    @property
    def is_local(self) -> bool:
        """Whether all ranks run on this machine."""
        return not self.hosts
