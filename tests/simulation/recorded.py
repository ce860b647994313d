"""The history of real daemons, from the records of their cores (`--record`, see services/runtime/recording.py)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aggregator.core import events as aggregator
from protos import cluster_pb2 as pb
from protos import plane_pb2 as plane
from protos.tensors_pb2 import GRADIENT
from services.runtime.recording import decode
from services.tensors.layout import chunk_count
from services.tensors.reduction_tree import Node
from tests.simulation.history import Committed, Covered, Event, Planned
from tests.simulation.simulated_sums import to_node


def history_of(aggregator_record: Path, optimizer_record: Path) -> Iterator[Event]:
    """Yield the events of one life of each role in an order for checking: a step's coverage, then its COMMIT."""
    covered: dict[tuple[int, int], list[Covered]] = {}
    for event in _sums(aggregator_record):
        if isinstance(event, Covered):
            covered.setdefault((event.generation, event.step), []).append(event)
        else:
            yield event
    for commit in _commits(optimizer_record):
        yield from covered.pop((commit.generation, commit.step), ())
        yield commit
    for undecided in covered.values():
        yield from undecided


def _calls(record: Path) -> Iterator[tuple[Any, list[Any]]]:
    """Yield each input of a core with its effects."""
    with record.open() as lines:
        for line in map(json.loads, lines):
            if line.get("call") == "handle":
                yield decode(line["arguments"])[0], decode(line["result"])


def _sums(record: Path) -> Iterator[Event]:
    """Yield plans and covered chunks. Additions are repeated on the numbers of the micro-batches."""
    micro_batches: dict[str, int] = {}
    kept: dict[tuple[int, Node], tuple[int, ...]] = {}
    for event, effects in _calls(record):
        if isinstance(event, aggregator.Submitted):
            micro_batches[event.job.id] = event.plan.micro_batches
        if isinstance(event, aggregator.FromOptimizer) and isinstance(event.body, pb.OptimizerStatus):
            job = event.body.job
            if event.body.elements:
                yield Planned(job, micro_batches[job], chunk_count(event.body.elements))
        for effect in effects:
            match effect:
                case plane.KeepSum() if effect.HasField("node"):
                    node = to_node(effect.node)
                    kept.update({(chunk, node): tuple(node.micro_batches) for chunk in effect.chunks})
                case plane.MergeSums():
                    left, right, parent = map(to_node, (effect.left, effect.right, effect.parent))
                    for chunk in effect.chunks:
                        kept[chunk, parent] = kept.pop((chunk, left)) + kept.pop((chunk, right))
                case plane.DropSum():
                    for chunk in effect.chunks:
                        kept.pop((chunk, to_node(effect.node)))
                case plane.DropSums():
                    kept.clear()
                case plane.FinishSum():
                    header = effect.header
                    for chunk in effect.chunks:
                        total = kept.pop((chunk, to_node(effect.node)))
                        if header.kind == GRADIENT:
                            yield Covered(header.job, header.generation, header.step, chunk, total)


def _commits(record: Path) -> Iterator[Committed]:
    for _, effects in _calls(record):
        for effect in effects:
            if isinstance(effect, plane.UpdatePart):
                yield Committed(effect.job, effect.generation, effect.step)
