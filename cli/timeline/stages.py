"""What the stages of a pipeline did in a step of a timeline: their passes, waits, bubble, and what they exchanged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cli.timeline.trace import Event, Interval, StepTrace, length, union, without

STAGE_WAIT = "wait for stage"
"""Name of the event in which a pass waits for an array of another stage, or for room to send one."""
_ROOM = "room"
"""What such an event waits for if it is no array."""


@dataclass(frozen=True)
class ArrayTransfer:
    """An array on its way between the workers of two stages.

    Attributes:
        sender: title of the worker that sends it.
        receiver: title of the worker that takes it.
        text: what it is, for people.
        step: step of the lease.
        start: when it was handed to the link, possibly while others were still on their way.
        stop: when it had arrived whole.
    """

    sender: str
    receiver: str
    text: str
    step: int
    start: float
    stop: float


@dataclass(frozen=True)
class StageTimes:
    """The time of a worker's stages in a step, in seconds.

    Attributes:
        worker: title of the worker.
        ranges: its ranges of blocks.
        forward_seconds: time of forward passes.
        backward_seconds: time of backward passes.
        waiting_seconds: time in which a pass waited for other stages.
        idle_share: the bubble: share of the time from the pipeline's first pass to its last in which it ran none.
    """

    worker: str
    ranges: tuple[int, ...]
    forward_seconds: float
    backward_seconds: float
    waiting_seconds: float
    idle_share: float


@dataclass(frozen=True)
class Exposure:
    """Time of the transfers between stages, and the part of it in which their receiver waited for them.

    Attributes:
        transfer_seconds: time in which at least one array was on its way to a worker, summed over workers.
        exposed_seconds: part of it in which the worker waited for an array.
    """

    transfer_seconds: float
    exposed_seconds: float

    @property
    def hidden_share(self) -> float:
        """Share of the transfers that computing hides, between 0 and 1."""
        return 1 - self.exposed_seconds / self.transfer_seconds


class PipelineTrace:
    """The pipelines of a trace; without any, it has no stages and no transfers.

    Args:
        trace: timelines of all daemons.

    Attributes:
        transfers: arrays between workers.
    """

    def __init__(self, trace: StepTrace) -> None:
        self._trace = trace
        self._passes = [event for event in trace.events if _is_pass(event)]
        self.transfers = list(_pair_transfers(trace))

    def stages(self, step: int) -> list[StageTimes]:
        """Return the times of each worker in a step, in the order of their stages; nothing without a pipeline."""
        found = []
        groups = self._linked_workers(step)
        computing = {worker: self._computing(worker, step) for worker in self._trace.workers}
        for worker in self._trace.workers:
            own = list(self._of(worker, step, self._passes))
            if not own:
                continue
            of_group = union(each for other in groups.get(worker, {worker}) for each in computing[other])
            begin, end = of_group[0][0], of_group[-1][1]
            busy = length(computing[worker])
            found.append(
                StageTimes(
                    worker,
                    tuple(sorted({int(each.args["range"]) for each in own})),
                    length(self._trace.passes(worker, "forward", step)),
                    length(self._trace.passes(worker, "backward", step)),
                    length(self._waits(worker, step)),
                    1 - busy / (end - begin) if end > begin else 0.0,
                )
            )
        return sorted(found, key=lambda each: each.ranges)

    def exposure(self, steps: Iterable[int]) -> Exposure | None:
        """Return how much of the transfers between stages their receivers waited for; None without transfers."""
        transfer = exposed = 0.0
        for step in steps:
            for worker in self._trace.workers:
                moving = union(
                    (each.start, each.stop)
                    for each in self.transfers
                    if (each.receiver, each.step) == (worker, step)
                )
                transfer += length(moving)
                exposed += length(moving) - length(without(moving, self._waits(worker, step, of_arrays=True)))
        return Exposure(transfer, exposed) if transfer else None

    def _computing(self, worker: str, step: int) -> list[Interval]:
        passes = (self._trace.passes(worker, name, step) for name in ("forward", "backward"))
        return union(each for of_name in passes for each in of_name)

    def _waits(self, worker: str, step: int, *, of_arrays: bool = False) -> list[Interval]:
        return union(
            (event.start, event.stop)
            for event in self._trace.events
            if (event.process, event.name, event.step) == (worker, STAGE_WAIT, step)
            if not of_arrays or event.args.get("what") != _ROOM
        )

    def _of(self, worker: str, step: int, events: Iterable[Event]) -> Iterator[Event]:
        inside = [
            (event.start, event.stop)
            for event in self._trace.events
            if (event.process, event.name, event.step) == (worker, "micro-batch", step)
        ]
        for event in events:
            if event.process == worker and any(
                begin <= event.start and event.stop <= end for begin, end in inside
            ):
                yield event

    def _linked_workers(self, step: int) -> dict[str, set[str]]:
        """Return the workers of each worker's pipeline, by what they have exchanged in a step."""
        groups: dict[str, set[str]] = {}
        for each in self.transfers:
            if each.step == step:
                group = groups.get(each.sender, {each.sender}) | groups.get(each.receiver, {each.receiver})
                groups |= dict.fromkeys(group, group)
        return groups


def _is_pass(event: Event) -> bool:
    return event.name in ("forward", "backward") and "range" in event.args


def _array_key(event: Event) -> str:
    """Return what an array is: the same at both ends."""
    return str(sorted(event.args.items()))


def _pair_transfers(trace: StepTrace) -> Iterator[ArrayTransfer]:
    """Yield the arrays of which both ends have a mark."""
    sent: dict[tuple[str, str, str], float] = {}
    for event in trace.events:
        if event.name == "array" and event.row.startswith("to "):
            receiver = trace.titles.get(event.row.removeprefix("to "), "")
            sent[event.process, receiver, _array_key(event)] = event.start
    for event in trace.events:
        if event.name == "array" and event.row.startswith("from ") and event.step is not None:
            sender = trace.titles.get(event.row.removeprefix("from "), "")
            start = sent.get((sender, event.process, _array_key(event)))
            if start is not None:
                text = f"{event.args.get('kind')} of micro-batch {event.args.get('micro_batch')}"
                yield ArrayTransfer(sender, event.process, text, event.step, start, event.stop)
