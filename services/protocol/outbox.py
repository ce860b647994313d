"""The list in which a core collects the effects of one input."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

Effect = TypeVar("Effect")


@dataclass
class Outbox(Generic[Effect]):
    """Effects of one input, in the order in which the service carries them out."""

    effects: list[Effect] = field(default_factory=list)

    def put(self, effect: Effect) -> None:
        """Append an effect."""
        self.effects.append(effect)

    def withdraw(self, kept: int) -> None:
        """Drop all effects but the first ones, so many as there were when an error's cause began."""
        del self.effects[kept:]

    def take(self) -> list[Effect]:
        """Return all effects so far and empty the outbox."""
        effects, self.effects = self.effects, []
        return effects
