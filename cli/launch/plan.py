"""The plan of a launch: each rank's role, host, name, environment and mesh.

Pure: it reads no file and starts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from cli.launch.configuration import Configuration, DescriptorFile
from cli.launch.environment import MOCK_VARIABLE, VISIBLE_VARIABLE, rank_environment
from cli.launch.rank_bindings import RankBinding, RankBindings
from mesh.backend import may_drive_chips
from mesh.descriptors.cut import cut_mesh
from mesh.descriptors.read import format_textproto
from mesh.descriptors.shape_check import find_local_shape
from services.config.device import DeviceConfig
from services.errors import Refused
from services.names import NAME_CHARACTERS
from services.printable import counted, printable_path

Role = Literal["worker", "aggregator", "optimizer", "web"]


@dataclass(frozen=True)
class Rank:
    """One daemon of a launch.

    Attributes:
        number: rank, as tt-run counts: workers first, then the aggregator, then the optimizer; the HTTP API comes last.
        role: worker, aggregator, optimizer or web.
        host: host as hosts.txt names it; None for this machine, without OpenSSH.
        name: daemon's name, with rank, mesh id and host.
        mesh_id: id of its mesh in the folder's descriptor; the descriptor that a worker gets calls it 0.
        environment: variables to add to those of the host, without TT_MESH_GRAPH_DESC_PATH.
        descriptor_text: descriptor of a worker's one mesh, as protobuf text; empty for the other roles.
        beside: whether it is none of the folder's ranks, and so can run beside a worker on any host.
    """

    number: int
    role: Role
    host: str | None
    name: str
    mesh_id: int
    environment: Mapping[str, str]
    descriptor_text: str
    beside: bool = False


@dataclass(frozen=True)
class LaunchPlan:
    """All daemons of a launch.

    Attributes:
        ranks: ranks in order, so workers come first.
        tiers: 3 if the optimizer is a daemon of its own, 2 if it runs in the aggregator.
        stages: number of stages of the job's pipeline; 1 without one. With more, workers reach each other.
    """

    ranks: tuple[Rank, ...]
    tiers: int
    stages: int = 1

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
    def web(self) -> Rank | None:
        """Rank that serves the HTTP API, on the host of the aggregator; None without it."""
        return next((rank for rank in self.ranks if rank.role == "web"), None)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts to reach by OpenSSH, each once, in the order of their first rank; empty if all ranks are local."""
        return tuple(dict.fromkeys(rank.host for rank in self.ranks if rank.host is not None))

    @property
    def is_local(self) -> bool:
        """Whether all ranks run on this machine."""
        return not self.hosts

    @property
    def beside(self) -> tuple[Rank, ...]:
        """Ranks that share a worker's host because the folder has none for them."""
        return tuple(rank for rank in self.ranks if rank.beside)

    def move_beside(self, memory_bytes: Mapping[str, int]) -> LaunchPlan:
        """Return this plan with the ranks beside workers on the host that has most memory, the first of equal ones.

        Args:
            memory_bytes: memory of each host, by its name.
        """
        if self.is_local or not self.beside:
            return self
        host = max(self.hosts, key=memory_bytes.__getitem__)
        ranks = [
            replace(rank, host=host, name=_name(rank.number, rank.mesh_id, rank.role, host))
            if rank.beside
            else rank
            for rank in self.ranks
        ]
        return replace(self, ranks=tuple(ranks))


def plan_launch(
    configuration: Configuration,
    num_workers: int,
    device: DeviceConfig,
    parent: Mapping[str, str],
    *,
    workers: int | None = None,
    stages: int = 1,
    web: bool = False,
    local_chips: bool,
) -> LaunchPlan:
    """Return the plan of a launch.

    Roles follow tt-train's rule: ranks below the job's `num_workers` are workers, then comes the aggregator, then the
    optimizer if there is one rank more. In its pipeline example all ranks are stages: there the aggregator is one rank
    more than the folder has. With `workers` as many as ranks, so are aggregator and optimizer. Those ranks are on the
    host of the first worker until `LaunchPlan.move_beside` knows the memory of all.

    Args:
        configuration: content of the configuration folder.
        num_workers: `multihost_config.num_workers` of the job that the cluster is for.
        device: backend and mesh of that job.
        parent: environment of the launching process.
        workers: number of workers, from `--workers`; None for `num_workers` of them.
        stages: number of stages of that job's pipeline; 1 without one.
        web: whether to serve the HTTP API too.
        local_chips: whether this machine has chips, which ranks without a host would open.

    Raises:
        Refused: the number of ranks fits neither 2 nor 3 tiers or exceeds the slots; a worker's mesh doesn't fit the
            job, or lies on several hosts; or two workers of a host would open the same chips.
    """
    bindings = configuration.bindings
    count = len(bindings.ranks)
    if workers is None:
        roles, beside = _roles(count, num_workers, stages, bindings.source)
    else:
        roles, beside = _roles_of(workers, count, bindings.source)
    hosts = configuration.placement.place(count)
    ranks = []
    for binding, role, host, descriptor in zip(
        bindings.ranks, roles, hosts, configuration.descriptors, strict=True
    ):
        is_worker = role == "worker"
        ranks.append(
            Rank(
                number=binding.rank,
                role=role,
                host=host,
                name=_name(binding.rank, binding.mesh_id, role, host),
                mesh_id=binding.mesh_id,
                environment=rank_environment(binding, bindings, parent, opens_mesh=is_worker),
                descriptor_text=_cut(binding, descriptor, device, bindings.source) if is_worker else "",
            )
        )
    ranks += [
        _rank_beside(ranks[0], count + number, role, bindings, parent) for number, role in enumerate(beside)
    ]
    if web:
        aggregator = next(rank for rank in ranks if rank.role == "aggregator")
        found = _rank_beside(aggregator, len(ranks), "web", bindings, parent)
        ranks.append(replace(found, beside=aggregator.beside))  # where one goes, the other goes
    plan = LaunchPlan(tuple(ranks), tiers=3 if "optimizer" in (*roles, *beside) else 2, stages=stages)
    _check_meshes(plan.workers, configuration)
    if may_drive_chips(device.backend):
        opening = [rank for rank in plan.workers if rank.host is not None or local_chips]
        _check_devices(opening, bindings.source)
    return plan


def _rank_beside(
    other: Rank, number: int, role: Role, bindings: RankBindings, parent: Mapping[str, str]
) -> Rank:
    """Return a rank that the folder doesn't have: it opens no mesh, and runs on the host of another one."""
    binding = replace(bindings.ranks[0], rank=number, env_overrides={})
    return Rank(
        number=number,
        role=role,
        host=other.host,
        name=_name(number, binding.mesh_id, role, other.host),
        mesh_id=binding.mesh_id,
        environment=rank_environment(binding, bindings, parent, opens_mesh=False),
        descriptor_text="",
        beside=True,
    )


def _roles_of(workers: int, count: int, source: str) -> tuple[list[Role], list[Role]]:
    """Return the roles of the folder's ranks with a number of workers that was asked for, and the roles beside them."""
    others: list[Role] = ["aggregator", "optimizer"]
    own = count - workers  # ranks for other roles
    if own < 0:
        raise Refused(
            f"--workers {workers}: more than the {counted(count, 'rank')} of {source}, each of which has one mesh; "
            f"give {count} at most, or add ranks and hosts"
        )
    if own > len(others):
        raise Refused(
            f"--workers {workers}: {counted(count, 'rank')} in {source}, so {own - len(others)} would have no role; "
            f"give {count - len(others)} to {count}, or a folder of fewer ranks"
        )
    roles: list[Role] = ["worker"] * workers
    return [*roles, *others[:own]], [] if own else others


def _roles(count: int, num_workers: int, stages: int, source: str) -> tuple[list[Role], list[Role]]:
    """Return the roles of the folder's ranks by tt-train's rule, and the roles beside them."""
    workers: list[Role] = ["worker"] * num_workers
    if count == num_workers and stages > 1:
        return workers, ["aggregator"]
    if count == num_workers + 1:
        return [*workers, "aggregator"], []
    if count == num_workers + 2:
        return [*workers, "aggregator", "optimizer"], []
    needed = f"{num_workers + 1} (2 tiers) or {num_workers + 2} (3 tiers)"
    if stages > 1:
        needed = f"{num_workers}, {needed}"
        fix = f"give a folder of {counted(num_workers, 'rank')}, each of them a stage"
    elif count < 2:
        fix = "add ranks, or --workers 1 to put all roles on one host"
    else:
        fitting = max(count - 2, 1)
        fix = f"give --workers {count}, or add multihost_config.enabled=true multihost_config.num_workers={fitting}"
    raise Refused(
        f"{source}: {counted(count, 'rank')}, but the job's num_workers of {num_workers} needs "
        f"{needed}; {fix}"
    )


def _name(number: int, mesh_id: int, role: Role, host: str | None) -> str:
    what = f"mesh{mesh_id}" if role == "worker" else role
    place = "" if host is None else f"@{host.replace(':', '.')}"
    return f"rank{number}-{what}{place}"[:NAME_CHARACTERS]


def _cut(binding: RankBinding, descriptor: DescriptorFile, device: DeviceConfig, bindings_source: str) -> str:
    """Return the text of the descriptor of a worker's one mesh, which must fit the job."""
    source = printable_path(descriptor.path)
    if binding.mesh_host_rank:
        raise Refused(
            f"{bindings_source}: rank {binding.rank} has mesh_host_rank {binding.mesh_host_rank}, but a worker drives "
            "chips of one host; describe each host's part as a mesh of its own"
        )
    cut = cut_mesh(descriptor.content, binding.mesh_id, source)
    if may_drive_chips(device.backend) and device.mesh_shape != (1, 1):  # a single chip uses no links
        rows, columns = find_local_shape(cut, descriptor.path, {})
        if (rows, columns) != device.mesh_shape:
            raise Refused(
                f"device_config.mesh_shape: {list(device.mesh_shape)}, but mesh {binding.mesh_id} of {source} has "
                f"device_topology {[rows, columns]}; add device_config.mesh_shape=[{rows},{columns}], or give another "
                "--mgd"
            )
    return format_textproto(cut)


def _check_meshes(workers: Sequence[Rank], configuration: Configuration) -> None:
    """Check that each worker has a mesh of its own (Refused)."""
    users: dict[tuple[str, int], int] = {}
    for rank in workers:
        path = str(configuration.descriptors[rank.number].path)
        first = users.setdefault((path, rank.mesh_id), rank.number)
        if first != rank.number:
            raise Refused(
                f"{configuration.bindings.source}: workers {first} and {rank.number} both have mesh_id {rank.mesh_id}, "
                "expected a mesh of its own for each; correct one of them"
            )


def _check_devices(workers: Sequence[Rank], source: str) -> None:
    """Check that no two workers of one host open the same chips (Refused)."""
    opened: dict[str | None, list[tuple[int, frozenset[str]]]] = {}
    for rank in workers:
        if rank.environment.get(MOCK_VARIABLE):
            continue
        visible = rank.environment.get(VISIBLE_VARIABLE, "")
        chips = frozenset(each.strip() for each in visible.split(",") if each.strip())  # empty: all of them
        here = opened.setdefault(rank.host, [])
        for other, others in here:
            if chips and others and not chips & others:
                continue
            what = f"chip {min(chips & others)}" if chips and others else "all chips"
            raise Refused(
                f"{source}: workers {other} and {rank.number} both open {what} of {rank.host or 'this machine'}; give "
                f"each its own by {VISIBLE_VARIABLE} in env_overrides, or set device_config.backend=emulator"
            )
        here.append((rank.number, chips))
