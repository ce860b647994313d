"""Compute the least time of a step from its parts: the critical path of the protocol. No I/O.

A step here is one period of steady training. It starts when all gradients of the step before are summed and its COMMIT
is decided. DESIGN.md's step protocol sets what may happen when:

* Weights. The optimizer updates the chunks one after the other, in layout order. A chunk goes out to all workers as
  soon as it is updated and its predecessor has left the aggregator's link.
* Forward pass. It waits for each parameter that has not arrived. So the pass is as late as its latest parameter makes
  it: each parameter's arrival, minus the time into the pass at which it is used.
* Backward pass. It follows the forward pass, and produces the gradients of the last chunks first.
* Gradients. A chunk goes out as soon as it is complete and its successor in the layout has left. All workers share the
  aggregator's link. A chunk is added while the next one arrives, so only the addition of the last one takes time.

Nothing can start earlier, so the period is a lower bound for these parts. A step that takes no longer hides everything
that can be hidden. The parts are measured separately: passes of all workers side by side without exchange (they share
the cores), the throughput of plain sockets on the link, and the kernels over the same chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.tensors.layout import CHUNK_ELEMENTS, chunk_count, chunk_range


@dataclass(frozen=True)
class Parts:
    """Durations of the parts of a step.

    Attributes:
        elements: elements of the layout.
        pass_seconds: duration of a forward and backward pass.
        uses: pairs (stop, seconds): time into the pass of the first use of the parameter that ends at element `stop`.
        ready: pairs (offset, seconds): time into the pass at which the gradients of all elements from `offset` on are
            complete. They are in order of time, and the last one has offset 0.
        link_seconds: time on the aggregator's link for one element of all workers, in one direction.
        sum_seconds: time to add and stage one element of the gradients.
        update_seconds: time to update one element and to round it.
    """

    elements: int
    pass_seconds: float
    uses: Sequence[tuple[int, float]]
    ready: Sequence[tuple[int, float]]
    link_seconds: float
    sum_seconds: float = 0.0
    update_seconds: float = 0.0

    @property
    def transfer_seconds(self) -> float:
        """Time that the link needs for a step's weights and gradients."""
        return 2 * self.elements * self.link_seconds


@dataclass(frozen=True)
class CriticalPath:
    """Moments of a step, in seconds from its start.

    Attributes:
        weights_end: arrival of the last weights.
        pass_delay: delay of the pass, compared with one that starts with the step.
        pass_end: end of the pass.
        step_seconds: end of the step, when the last gradients are summed.
    """

    weights_end: float
    pass_delay: float
    pass_end: float
    step_seconds: float


def critical_path(parts: Parts) -> CriticalPath:
    """Return the least time of a step, as the module describes it."""
    chunks = chunk_count(parts.elements)
    sizes = [stop - start for start, stop in (chunk_range(parts.elements, chunk) for chunk in range(chunks))]
    arrivals = []
    updated = arrived = 0.0
    for size in sizes:
        updated += size * parts.update_seconds
        arrived = max(arrived, updated) + size * parts.link_seconds
        arrivals.append(arrived)
    delay = max(
        (arrivals[(stop - 1) // CHUNK_ELEMENTS] - seconds for stop, seconds in parts.uses), default=0.0
    )
    delay = max(0.0, delay)
    gone = 0.0
    for chunk in reversed(range(chunks)):
        offset = chunk_range(parts.elements, chunk)[0]
        in_place = next(seconds for from_offset, seconds in parts.ready if from_offset <= offset)
        gone = max(gone, delay + in_place) + sizes[chunk] * parts.link_seconds
    end = gone + sizes[0] * parts.sum_seconds
    return CriticalPath(
        weights_end=arrivals[-1],
        pass_delay=delay,
        pass_end=delay + parts.pass_seconds,
        step_seconds=max(end, delay + parts.pass_seconds),
    )
