"""Compute the least time of a step from its parts: the critical path of the protocol. No I/O.

A step here is one period of steady training. It starts when all gradients of the step before are summed and its COMMIT
is decided. DESIGN.md's step protocol sets what may happen when:

* Weights. The optimizer updates the chunks one after the other, in layout order. A chunk goes out to all workers as
  soon as it is updated and its predecessor has left the aggregator's link.
* Forward pass. It waits for each parameter that has not arrived. So the pass is as late as its latest parameter makes
  it: each parameter's arrival, minus the time into the pass at which it is used.
* Further micro-batches. They follow, with all weights on the mesh.
* Backward pass. That of the last micro-batch produces the gradients of the last chunks first.
* Gradients. A chunk goes out as soon as it is complete and its successor in the layout has left. All workers share the
  aggregator's link. A chunk is added while the next one arrives, so only the addition of the last one takes time.

Nothing can start earlier, so the period is a lower bound for these parts. A step that takes no longer hides everything
that can be hidden. `step_time.py` estimates the parts from a job's config. The benchmark `links_step` measures them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.tensors.layout import CHUNK_ELEMENTS, chunk_count

_MOST_PIECES = 4096
"""Number of pieces that are timed at most. Larger models are timed in pieces of several chunks."""


@dataclass(frozen=True)
class Parts:
    """Durations of the parts of a step.

    Attributes:
        elements: elements of the layout.
        pass_seconds: duration of a forward and backward pass of a micro-batch.
        uses: pairs (stop, seconds): time into the pass of the first use of the parameter that ends at element `stop`.
        ready: pairs (offset, seconds): time into the pass at which the gradients of all elements from `offset` on are
            complete. They are in order of time, and the last one has offset 0.
        down_seconds: time on the aggregator's link for one element of the weights, for all workers.
        up_seconds: time on it for one element of the gradients of all workers.
        before_seconds: time from the start of the first micro-batch's pass to that of the last one's.
        sum_seconds: time to add and stage one element of the gradients.
        update_seconds: time to update one element and to round it.
    """

    elements: int
    pass_seconds: float
    uses: Sequence[tuple[int, float]]
    ready: Sequence[tuple[int, float]]
    down_seconds: float
    up_seconds: float
    before_seconds: float = 0.0
    sum_seconds: float = 0.0
    update_seconds: float = 0.0

    @property
    def transfer_seconds(self) -> float:
        """Time that the link needs for a step's weights and gradients."""
        return self.elements * (self.down_seconds + self.up_seconds)


@dataclass(frozen=True)
class CriticalPath:
    """Moments of a step, in seconds from its start.

    Attributes:
        weights_end: arrival of the last weights.
        pass_delay: delay of the first pass, compared with one that starts with the step.
        pass_end: end of the last pass.
        step_seconds: end of the step, when the last gradients are summed.
    """

    weights_end: float
    pass_delay: float
    pass_end: float
    step_seconds: float


def critical_path(parts: Parts) -> CriticalPath:
    """Return the least time of a step, as the module describes it."""
    piece = CHUNK_ELEMENTS * -(-chunk_count(parts.elements) // _MOST_PIECES)
    offsets = range(0, parts.elements, piece)
    sizes = [min(piece, parts.elements - offset) for offset in offsets]
    arrivals = []
    updated = arrived = 0.0
    for size in sizes:
        updated += size * parts.update_seconds
        arrived = max(arrived, updated) + size * parts.down_seconds
        arrivals.append(arrived)
    delay = max((arrivals[(stop - 1) // piece] - seconds for stop, seconds in parts.uses), default=0.0)
    delay = max(0.0, delay)
    last_pass = delay + parts.before_seconds
    gone = 0.0
    ready = iter(parts.ready)
    from_offset, in_place = next(ready)
    for offset, size in zip(reversed(offsets), reversed(sizes), strict=True):
        while from_offset > offset:
            from_offset, in_place = next(ready)
        gone = max(gone, last_pass + in_place) + size * parts.up_seconds
    end = gone + sizes[0] * parts.sum_seconds
    return CriticalPath(
        weights_end=arrivals[-1],
        pass_delay=delay,
        pass_end=last_pass + parts.pass_seconds,
        step_seconds=max(end, last_pass + parts.pass_seconds),
    )
