"""The contract's cells: every model by every strategy by every mesh, and why some can't be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from boards import BOARDS
from steps import MODELS, STRATEGIES

Shape = tuple[int, int]

MESHES: dict[Shape, str] = {mesh: board.name for board in BOARDS.values() for mesh in board.meshes}
"""The board of each mesh."""

_GOLDEN_MESHES = {
    "single": (1, 1),
    "ddp": (1, 8),
    "tp": (1, 8),
    "fsdp": (1, 8),
    "ddp_tp": (2, 4),
    "fsdp_tp": (2, 4),
}


@dataclass(frozen=True)
class Cell:
    """One model under one strategy on one mesh."""

    model: str
    strategy: str
    mesh: Shape

    @property
    def board(self) -> str:
        return MESHES[self.mesh]

    @property
    def id(self) -> str:
        return f"{self.model}-{self.strategy}-{shown(self.mesh)}"

    @property
    def golden(self) -> str | None:
        """Name of its golden file: each model has one for data parallel, each strategy one for GPT-2."""
        if self.mesh != _GOLDEN_MESHES[self.strategy]:
            return None
        if self.strategy == "ddp":
            return self.model
        return f"gpt2-{self.strategy}" if self.model == "gpt2" else None


def shown(mesh: Shape) -> str:
    """A mesh as rows x cols."""
    return f"{mesh[0]}x{mesh[1]}"


def fits(strategy: str, mesh: Shape) -> bool:
    """Whether a strategy can be on a mesh: it takes as many axes of several chips as there are."""
    return sum(size > 1 for size in mesh) == len(STRATEGIES[strategy])


CELLS: dict[str, Cell] = {
    cell.id: cell
    for cell in (
        Cell(model, strategy, mesh)
        for mesh in MESHES
        for strategy in STRATEGIES
        if fits(strategy, mesh)
        for model in MODELS
    )
}
"""The cells that can be, by id, mesh by mesh."""


def table(passed: Mapping[str, bool]) -> list[str]:
    """The cells as lines of a Markdown table: which ran and held (by id), which didn't, which weren't run.

    Below it stand the strategies that a mesh can't have, with the reason.
    """
    lines = [
        f"| board | mesh | strategy | {' | '.join(MODELS)} |",
        f"| --- | --- | --- |{' --- |' * len(MODELS)}",
    ]
    for mesh, board in MESHES.items():
        for strategy in STRATEGIES:
            if not fits(strategy, mesh):
                continue
            marks = [_MARKS[passed.get(Cell(model, strategy, mesh).id)] for model in MODELS]
            lines.append(f"| {board} | {shown(mesh)} | {strategy} | {' | '.join(marks)} |")
    lines.append("")
    for strategy in STRATEGIES:
        out = [shown(mesh) for mesh in MESHES if not fits(strategy, mesh)]
        wanted = ("no axis", "one axis", "two axes")[len(STRATEGIES[strategy])]
        lines.append(f"* {strategy} takes {wanted} of several chips: refused on {', '.join(out)}.")
    return lines


_MARKS = {True: "ran", False: "FAILED", None: "-"}
