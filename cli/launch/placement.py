"""The host of each rank: by the slots of hosts, by a rankfile, or this machine."""

from __future__ import annotations

from dataclasses import dataclass

from cli.launch.hosts_file import Host
from services.errors import Refused
from services.printable import counted


@dataclass(frozen=True)
class Placement:
    """Hosts of a launch. Without hosts and rankfile, all ranks run on this machine.

    Attributes:
        hosts: hosts with their slots.
        rank_hosts: host of each rank by a rankfile.
        source: where they are written, for errors.
    """

    hosts: tuple[Host, ...] = ()
    rank_hosts: tuple[str, ...] = ()
    source: str = ""

    def place(self, ranks: int) -> tuple[str | None, ...]:
        """Return the host of each rank; None stands for this machine.

        Ranks fill the slots of the first host, then of the second, as OpenMPI maps them by slot.

        Args:
            ranks: number of ranks.

        Raises:
            Refused: there are more ranks than slots, or a rankfile has another number of ranks.
        """
        if self.rank_hosts:
            if len(self.rank_hosts) != ranks:
                raise Refused(
                    f"{self.source}: hosts of {counted(len(self.rank_hosts), 'rank')}, expected those of {ranks}; give "
                    "each rank one line"
                )
            return self.rank_hosts
        if not self.hosts:
            return (None,) * ranks
        slots = [host.name for host in self.hosts for _ in range(host.slots)]
        if len(slots) < ranks:
            raise Refused(
                f"{self.source}: {counted(len(slots), 'slot')} on {counted(len(self.hosts), 'host')}, expected one "
                f"for each of {counted(ranks, 'rank')}; add hosts or raise slots"
            )
        return tuple(slots[:ranks])
