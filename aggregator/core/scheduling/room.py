"""Memory of the hosts: whether a job has room beside the jobs that run, and what it waits for if it has none.

Needs of roles on one host add up. Of snapshots, from which checkpoints are written, a host has one at a time: so the
largest of its jobs' counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from services.printable import counted, format_bytes, join_names, printable


@dataclass(frozen=True)
class HostedRole:
    """A process of a role, and what its Hello says of its host's memory.

    Attributes:
        role: worker, aggregator, optimizer or shard.
        name: its name, for people; workers are told apart by it.
        host: id of what has its memory (`Hello.host`). Processes with the same id share it.
        memory_bytes: memory of the host.
        taken_bytes: memory there that other processes than those of running jobs have; see `taken_by_others`.
    """

    role: str
    name: str
    host: str
    memory_bytes: int
    taken_bytes: int


@dataclass(frozen=True)
class RoleNeed:
    """Memory that a job needs in one process of a role.

    Attributes:
        memory_bytes: most memory during a step.
        snapshot_bytes: additional memory while a checkpoint is written.
    """

    memory_bytes: int
    snapshot_bytes: int = 0


@dataclass(frozen=True)
class JobNeeds:
    """Memory that a job needs.

    Attributes:
        job: id of the job.
        roles: need of one process by role; a role that is absent needs nothing.
        workers: names of the workers that the job has or is to get. Of other roles it needs all processes.
    """

    job: str
    roles: Mapping[str, RoleNeed]
    workers: frozenset[str]


@dataclass(frozen=True)
class MemoryShortage:
    """A lack of memory for a job.

    Attributes:
        line: one line for people: role and host that lack memory, what is needed there and what is left.
        is_lasting: whether the host is too small even if nothing else ran there.
    """

    line: str
    is_lasting: bool


def taken_by_others(memory_bytes: int, free_bytes: int, needed_bytes: int) -> int:
    """Return the memory of a host that is taken, but not by running jobs.

    Args:
        memory_bytes: memory of the host.
        free_bytes: what of it was free when its process said so.
        needed_bytes: what jobs that ran at that time need there (`Room.needed_bytes`): it counts once, as their need.
    """
    return max(memory_bytes - free_bytes - needed_bytes, 0)


@dataclass
class _Host:
    """A host, and what the jobs that run need there."""

    memory_bytes: int = 0
    taken_bytes: int = 0
    roles: list[HostedRole] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)  # how many processes of each role but worker
    needed_bytes: int = 0
    snapshot_bytes: int = 0
    jobs: list[str] = field(default_factory=list)


class Room:
    """Memory of all hosts, and what jobs need of it.

    Args:
        roles: processes in the order in which they told their host's memory: of one host the last one counts. Those
            that don't know their host are left out, since nothing can be said of it.
        running: jobs that run, which have their memory already.
    """

    def __init__(self, roles: Iterable[HostedRole], running: Iterable[JobNeeds] = ()) -> None:
        self._hosts: dict[str, _Host] = {}
        self._of_worker: dict[str, str] = {}
        for role in roles:
            if not role.host or not role.memory_bytes:
                continue
            host = self._hosts.setdefault(role.host, _Host())
            host.memory_bytes, host.taken_bytes = role.memory_bytes, role.taken_bytes
            host.roles.append(role)
            if role.role == "worker":
                self._of_worker[role.name] = role.host
            else:
                host.others[role.role] += 1
        self._shared = {name for name, host in self._hosts.items() if host.others}
        for job in running:
            self.add(job)

    def needed_bytes(self, host: str) -> int:
        """Return what the jobs that run need on a host, with one snapshot."""
        found = self._hosts.get(host)
        return 0 if found is None else found.needed_bytes + found.snapshot_bytes

    def add(self, job: JobNeeds) -> None:
        """Count a job among those that run."""
        for name, memory, snapshot in self._sum_up(job):
            host = self._hosts[name]
            host.needed_bytes += memory
            host.snapshot_bytes = max(host.snapshot_bytes, snapshot)
            host.jobs.append(job.job)

    def find_shortage(self, job: JobNeeds) -> MemoryShortage | None:
        """Return what a job lacks on the host that lacks most; None if it has room on all."""
        lacks = []
        for name, memory, snapshot in self._sum_up(job):
            host = self._hosts[name]
            total = host.taken_bytes + host.needed_bytes + memory + max(host.snapshot_bytes, snapshot)
            if total > host.memory_bytes:
                lacks.append((total - host.memory_bytes, name, memory, snapshot))
        if not lacks:
            return None
        _, name, memory, snapshot = max(lacks)
        return _describe(self._hosts[name], job, memory, snapshot)

    def _sum_up(self, job: JobNeeds) -> Iterator[tuple[str, int, int]]:
        """Yield the hosts where a job needs memory, with what its roles need there, and its snapshot, in bytes."""
        worker = job.roles.get("worker", RoleNeed(0))
        workers = Counter(self._of_worker[name] for name in job.workers if name in self._of_worker)
        for name in self._shared.union(workers):
            memory, snapshot = workers[name] * worker.memory_bytes, workers[name] * worker.snapshot_bytes
            for role, number in self._hosts[name].others.items():
                if role in job.roles:
                    memory += number * job.roles[role].memory_bytes
                    snapshot += number * job.roles[role].snapshot_bytes
            if memory or snapshot:
                yield name, memory, snapshot


def _roles_of(host: _Host, job: JobNeeds) -> list[HostedRole]:
    return [
        role
        for role in host.roles
        if role.role in job.roles and (role.role != "worker" or role.name in job.workers)
    ]


def _describe(host: _Host, job: JobNeeds, memory: int, snapshot: int) -> MemoryShortage:
    needed = memory + max(snapshot - host.snapshot_bytes, 0)
    left = max(host.memory_bytes - host.taken_bytes - host.needed_bytes - host.snapshot_bytes, 0)
    roles = [f"{role.role} {role.name}" for role in _roles_of(host, job)]
    verb = "needs" if len(roles) == 1 else "on one host need"
    used = []
    if host.jobs:
        size_bytes = host.needed_bytes + host.snapshot_bytes
        used.append(f"{counted(len(host.jobs), 'job')} {format_bytes(size_bytes)}")
    if host.taken_bytes:
        used.append(f"other processes {format_bytes(host.taken_bytes)}")
    line = (
        f"waits for memory: {join_names(roles)} {verb} {format_bytes(needed)}, but {format_bytes(left)} of "
        f"{format_bytes(host.memory_bytes)} is left"
    )
    if used:
        line += f" beside {' and '.join(used)}"
    return MemoryShortage(printable(line), is_lasting=memory + snapshot > host.memory_bytes)
