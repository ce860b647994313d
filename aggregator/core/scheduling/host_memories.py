"""What processes have told of their hosts' memory, and which jobs that wait have room in it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from aggregator.core.scheduling.room import HostedRole, JobNeeds, RoleNeed, Room, taken_by_others


class ToldMemory(NamedTuple):
    """Memory of a host, as a process there has told it.

    Attributes:
        host: id of what has the memory; empty if it is unknown.
        memory_bytes: memory of the host.
        free_bytes: what of it was free.
    """

    host: str = ""
    memory_bytes: int = 0
    free_bytes: int = 0


class HostMemories:
    """The hosts' memory, by the processes that have told of it."""

    def __init__(self) -> None:
        self._roles: dict[tuple[str, str], HostedRole] = {}  # by role and name

    def note(self, role: str, name: str, told: ToldMemory, running: Iterable[JobNeeds]) -> None:
        """Take what a process has told when it was connected.

        Args:
            role: worker, aggregator, optimizer or shard.
            name: its name.
            told: what it has told.
            running: what the jobs that ran then need.
        """
        self._roles.pop((role, name), None)  # so that the newest is the last
        needed_bytes = Room(self._roles.values(), running).needed_bytes(told.host)
        taken_bytes = taken_by_others(told.memory_bytes, told.free_bytes, needed_bytes)
        self._roles[role, name] = HostedRole(role, name, told.host, told.memory_bytes, taken_bytes)

    def note_open(self, job: JobNeeds, running: Collection[JobNeeds]) -> None:
        """Count the memory that an open job has as its own need. It was told of as that of other processes.

        Args:
            job: what the job needs.
            running: what the jobs that run need.
        """
        roles = self._roles.values()
        before, since = Room(roles, running), Room(roles, [*running, job])
        for key, role in self._roles.items():
            own_bytes = since.needed_bytes(role.host) - before.needed_bytes(role.host)
            self._roles[key] = replace(role, taken_bytes=max(role.taken_bytes - own_bytes, 0))

    def forget(self, role: str, name: str) -> None:
        """Forget a process that is gone."""
        self._roles.pop((role, name), None)

    def find_shortages(
        self, waiting: Mapping[str, Mapping[str, RoleNeed]], running: Iterable[JobNeeds]
    ) -> dict[str, str]:
        """Return what jobs that wait lack outside of workers, by job, if those before them in the order start.

        Args:
            waiting: what the jobs need of each role, in the order in which they come.
            running: what the jobs that run need.
        """
        room, found = Room(self._roles.values(), running), {}
        for job, roles in waiting.items():
            needs = JobNeeds(job, roles, frozenset())
            shortage = room.find_shortage(needs)
            if shortage is not None:
                found[job] = shortage.line
            else:
                room.add(needs)
        return found

    def find_small(self, worker: str, needs: Mapping[str, RoleNeed], running: Iterable[JobNeeds]) -> str:
        """Return why a worker has no room for its part of a job, beside the other roles of its host; empty if it has.

        Args:
            worker: the worker's name.
            needs: what the job needs of each role.
            running: what the jobs that run need of other roles than workers.
        """
        own = {role: need for role, need in needs.items() if role == "worker"}
        shortage = Room(self._roles.values(), running).find_shortage(JobNeeds("", own, frozenset({worker})))
        return "" if shortage is None else shortage.line

    def shares_host(self, worker: str) -> bool:
        """Return whether other roles than workers run on a worker's host."""
        own = self._roles.get(("worker", worker))
        others = {each.host for (role, _), each in self._roles.items() if role != "worker"}
        return own is not None and bool(own.host) and own.host in others
