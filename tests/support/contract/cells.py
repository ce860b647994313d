"""The contract's cells: every model by every strategy by every mesh, and why some can't be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.support.contract.boards import BOARDS
from tests.support.contract.lock_step import LockStep
from tests.support.contract.steps import (
    DRAWN_FROM,
    MODELS,
    STRATEGIES,
    device_config,
    opened,
    run_generation,
    run_step,
)

Shape = tuple[int, int]

MESHES: dict[Shape, str] = {mesh: board.name for board in BOARDS.values() for mesh in board.meshes}
"""The board of each mesh."""

_GOLDEN_MESHES = {
    "single": (1, 1),
    "generate": (1, 1),
    "ddp": (1, 8),
    "tp": (1, 8),
    "fsdp": (1, 8),
    "ddp_tp": (2, 4),
    "fsdp_tp": (2, 4),
}


@dataclass(frozen=True)
class Cell:
    """One model under one strategy on one mesh, or what text is drawn from (`GENERATE`)."""

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
        """Name of its golden file: each model has one for data parallel, each strategy one for GPT-2,
        drawing text one for Llama."""
        if self.mesh != _GOLDEN_MESHES[self.strategy]:
            return None
        if self.strategy == "ddp":
            return self.model
        shown_by = "llama" if self.strategy == GENERATE else "gpt2"
        return f"{self.model}-{self.strategy}" if self.model == shown_by else None


def shown(mesh: Shape) -> str:
    """A mesh as rows x cols."""
    return f"{mesh[0]}x{mesh[1]}"


def fits(strategy: str, mesh: Shape) -> bool:
    """Whether a strategy can be on a mesh: it takes as many axes of several chips as there are."""
    return sum(size > 1 for size in mesh) == len(STRATEGIES[strategy])


GENERATE = "generate"
"""Stands where a strategy does: text is drawn from the model, on one device."""

CELLS: dict[str, Cell] = {
    cell.id: cell
    for cell in (
        Cell(model, strategy, mesh)
        for mesh in MESHES
        for strategy in STRATEGIES
        if fits(strategy, mesh)
        for model in MODELS
    )
} | {cell.id: cell for cell in (Cell(model, GENERATE, (1, 1)) for model in DRAWN_FROM)}
"""The cells that can be, by id, mesh by mesh."""


def run(cell: Cell, module: LockStep, dtype: str, folder: Path) -> list[str]:
    """Run a cell on a device module; the calls that were made. Raises AssertionError for numbers that are none."""
    training = cell.strategy != GENERATE
    device = device_config(cell.strategy if training else "single", cell.mesh)
    with opened(module, device, dtype) as mesh:
        module.start()
        if training:
            loss, gradient = run_step(cell.model, device, mesh, folder)
            numbers = np.append(gradient, loss)
        else:
            numbers = run_generation(cell.model, mesh)
        lines = list(module.lines)
    assert np.isfinite(numbers).all(), f"{cell.id}: some of what was computed is not finite"
    return lines


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
            lines.append(_row(board, mesh, strategy, passed))
            if strategy == "single":
                lines.append(_row(board, mesh, GENERATE, passed))
    lines.append("")
    for strategy in STRATEGIES:
        out = [shown(mesh) for mesh in MESHES if not fits(strategy, mesh)]
        wanted = ("no axis", "one axis", "two axes")[len(STRATEGIES[strategy])]
        lines.append(f"* {strategy} takes {wanted} of several chips: refused on {', '.join(out)}.")
    return lines


def _row(board: str, mesh: Shape, strategy: str, passed: Mapping[str, bool]) -> str:
    cells = (Cell(model, strategy, mesh).id for model in MODELS)
    marks = [_MARKS[passed.get(cell)] if cell in CELLS else "" for cell in cells]
    return f"| {board} | {shown(mesh)} | {strategy} | {' | '.join(marks)} |"


_MARKS = {True: "ran", False: "FAILED", None: "-"}
