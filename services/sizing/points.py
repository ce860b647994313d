"""Points of a training pass at which memory may be at its peak."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class MemoryPoint:
    """Memory at one point of a pass, in bytes, beside weights, caches and inputs.

    Attributes:
        name: name of the point, for people.
        activations_bytes: values kept for the backward pass.
        gradients_bytes: gradients of parameters, with what adding them up over chips needs.
        temporaries_bytes: values and gradients of values that are freed soon.
    """

    name: str
    activations_bytes: int
    gradients_bytes: int
    temporaries_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.activations_bytes + self.gradients_bytes + self.temporaries_bytes

    def plus(self, *, activations_bytes: int = 0, gradients_bytes: int = 0) -> MemoryPoint:
        """Return the point where more is kept."""
        return replace(
            self,
            activations_bytes=self.activations_bytes + activations_bytes,
            gradients_bytes=self.gradients_bytes + gradients_bytes,
        )
