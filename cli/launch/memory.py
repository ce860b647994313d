"""Whether the hosts of a launch have the memory that their roles need. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cli.launch.plan import LaunchPlan, Rank
from services.config.job import JobConfig
from services.config.parameters import count_largest, count_parameters
from services.printable import format_bytes
from services.sizing.host_memory import RoleMemory, estimate_host_memory
from services.sizing.pipeline import count_stage_elements, count_worker_elements

LARGEST_ERROR = 1.5
"""Factor by which the estimate may be too high, as for a worker that never has two nodes of a step at once. Beyond it
the roles certainly don't fit."""


@dataclass(frozen=True)
class HostNeed:
    """Memory that the roles of one host need at their peak.

    Attributes:
        host: host as hosts.txt names it; None for this machine, without OpenSSH.
        total_bytes: memory of all its roles.
        largest_bytes: memory of the role that needs most.
        largest: that role, for people.
        remedy: how that role gets to need less there.
    """

    host: str | None
    total_bytes: int
    largest_bytes: int
    largest: str
    remedy: str

    def __str__(self) -> str:
        if self.largest_bytes == self.total_bytes:
            return f"{self.largest} needs {format_bytes(self.total_bytes)} of memory"
        largest = f"{self.largest} {format_bytes(self.largest_bytes)}"
        return f"its roles need {format_bytes(self.total_bytes)} of memory ({largest})"


@dataclass(frozen=True)
class Shortage:
    """A host's lack of memory.

    Attributes:
        line: one line with host, need, memory and remedy.
        is_certain: whether the roles can't fit; else the estimate may be too high.
    """

    line: str
    is_certain: bool


def estimate_needs(plan: LaunchPlan, config: JobConfig) -> list[HostNeed]:
    """Return the memory that each host needs, in the order of the hosts; nothing if only workers know the model's size.

    Libraries, a worker's corpus and the memory of emulated chips come on top.
    """
    vocabulary = config.vocabulary
    elements = None if vocabulary is None else count_parameters(config.model, vocabulary)
    if vocabulary is None or elements is None:
        return []
    stages = count_stage_elements(config, vocabulary) or [elements]
    if len(plan.workers) < len(stages):  # they share the stages
        stages = [count_worker_elements(stages, len(plan.workers))]
    largest_elements = count_largest(config.model, vocabulary)
    found: dict[str | None, list[tuple[RoleMemory, Rank]]] = {}
    for rank in plan.ranks:
        if rank.role == "web":  # it has no tensors
            continue
        roles = estimate_host_memory(
            config,
            elements,
            worker_elements=stages[rank.number % len(stages)],  # stages are given in the order of the names
            largest_elements=largest_elements,
            workers=len(plan.workers),
            tiers=plan.tiers,
            shards=0,
        )
        memory = next(each for each in roles if each.role == rank.role)
        found.setdefault(rank.host, []).append((memory, rank))
    return [_sum_up(plan, host, roles) for host, roles in found.items()]


def find_shortage(need: HostNeed, name: str, memory_bytes: int) -> Shortage | None:
    """Return what a host lacks; None if it has enough.

    Args:
        need: what its roles need.
        name: host as errors name it.
        memory_bytes: memory that it has.
    """
    if need.total_bytes <= memory_bytes:
        return None
    line = f"host {name}: {need}, but it has {format_bytes(memory_bytes)}; {need.remedy}"
    return Shortage(line, is_certain=need.total_bytes > LARGEST_ERROR * memory_bytes)


def _sum_up(plan: LaunchPlan, host: str | None, roles: Sequence[tuple[RoleMemory, Rank]]) -> HostNeed:
    sizes = [memory.memory_bytes + memory.checkpoint_bytes for memory, _ in roles]
    largest = max(range(len(sizes)), key=sizes.__getitem__)
    role, remedy = _name_role(plan, roles[largest][1], is_alone=len(roles) == 1)
    return HostNeed(host, sum(sizes), sizes[largest], role, remedy)


def _name_role(plan: LaunchPlan, rank: Rank, *, is_alone: bool) -> tuple[str, str]:
    """Return a rank's role, and how it gets to need less on its host."""
    shards = "divide the optimizer into shards (docs/operate/operations.md)"
    if rank.role == "worker":
        fix = "divide the model over more stages" if is_alone else "give fewer ranks to the host"
        return f"the worker of rank {rank.number}", f"{fix}, or use a host with more"
    if rank.beside and plan.tiers == 3:
        fewer = len(plan.workers) - 2
        fix = f"give --workers {fewer} to leave it a host of its own" if fewer > 0 else "use a host with more"
        return f"the {rank.role}", f"{fix}, or {shards}"
    if rank.role == "aggregator" and plan.tiers == 2:
        beside = rank.number == len(plan.workers) and any(each.host == rank.host for each in plan.workers)
        ranks = (
            "two ranks, aggregator and optimizer, on hosts"
            if beside
            else "a rank for the optimizer on a host"
        )
        return "the aggregator with the optimizer", f"add {ranks} with enough, or {shards}"
    if rank.role == "aggregator":
        return "the aggregator", "use a host with more, or wire_dtype.weights=bf16"
    return "the optimizer", f"use a host with more for rank {rank.number}, or {shards}"
