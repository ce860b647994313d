"""How long a step takes at least, of which the parts are known: the protocol's critical path. Pure arithmetic.

A step here is a period of training as it goes on and on. It begins when all gradients of the step before are summed up
and decided on, and what can happen when is settled by DESIGN.md's step protocol:

* Weights. The optimizer updates the chunks in the order of the layout, one after the other; each goes out as soon as it
  is updated and the one before has left the aggregator's link, to all workers.
* Forward pass. It goes on until it needs a parameter that has not arrived yet, and waits for it. So all of the pass is
  as late as the parameter that holds it up most: it is as if the pass had begun at once, but no earlier than each
  parameter's arrival less the time into the pass at which it is used.
* Backward pass, right after it. It has the last chunks' gradients first.
* Gradients. A chunk goes out as soon as it is in place and the one after it in the layout has gone, of all workers
  through the aggregator's link. It is added while the next one comes: only the last chunk's addition takes time.

Nothing of it can begin earlier, so the period is a bound for these parts; a step that takes no longer hides all that
may be hidden. Parts are measured apart from each other and from any such step: a pass with nothing exchanged (every
worker's at the same time, as they share the cores), what plain sockets get of the link, kernels over the same chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.tensors.layout import CHUNK_ELEMENTS, chunk_count, chunk_range


@dataclass(frozen=True)
class Parts:
    """What a step is made of.

    Attributes:
        elements: of the layout.
        pass_seconds: a forward and backward pass.
        uses: (stop, seconds): how far into the pass the parameter that ends at an element is first used.
        ready: (offset, seconds): how far into it the gradients of all elements from an offset on are in place; in
            order, last with offset 0.
        link_seconds: that the aggregator's link needs for an element, of all workers, in one direction.
        sum_seconds: to add and stage an element of the gradients.
        update_seconds: to update an element and round it.
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
        """What the link needs for a step's weights and gradients."""
        return 2 * self.elements * self.link_seconds


@dataclass(frozen=True)
class CriticalPath:
    """Moments of a step, in seconds from its begin.

    Attributes:
        weights_end: the last weights have arrived.
        pass_delay: the pass is so much later than one that begins with the step.
        pass_end: it ends.
        step_seconds: the last gradients are summed up: the end.
    """

    weights_end: float
    pass_delay: float
    pass_end: float
    step_seconds: float


def critical_path(parts: Parts) -> CriticalPath:
    """The least time of a step; the module says why."""
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
