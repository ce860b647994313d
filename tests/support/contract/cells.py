"""The cells of the contract: every model under every strategy on every mesh, where the two fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.support.contract.boards import BOARDS
from tests.support.contract.lock_step import LockStep
from tests.support.contract.steps import (
    MODELS,
    STRATEGIES,
    TEXT_MODELS,
    device_config,
    open_configured_mesh,
    run_generation,
    run_step,
)

Shape = tuple[int, int]

MESHES: dict[Shape, str] = {mesh: board.name for board in BOARDS.values() for mesh in board.meshes}
"""Name of the board that each mesh is opened on."""

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
    """One model under one strategy on one mesh. Strategy `GENERATE` generates text instead of training."""

    model: str
    strategy: str
    mesh: Shape

    @property
    def board(self) -> str:
        return MESHES[self.mesh]

    @property
    def id(self) -> str:
        return f"{self.model}-{self.strategy}-{format_mesh(self.mesh)}"

    @property
    def golden(self) -> str | None:
        """Name of the cell's golden file; None for most cells.

        Each model has one with data parallelism, each strategy one with GPT-2, and generation one with Llama.
        """
        if self.mesh != _GOLDEN_MESHES[self.strategy]:
            return None
        if self.strategy == "ddp":
            return self.model
        model = "llama" if self.strategy == GENERATE else "gpt2"
        return f"{self.model}-{self.strategy}" if self.model == model else None

    @property
    def in_make_test(self) -> bool:
        """Whether `make test` runs the cell on ttnn. `make test-all` runs the other cells.

        It runs a third, in which every model, every strategy on each of its meshes, and every board occur: of such
        thirds the quickest one.
        """
        models, strategies = list(MODELS), [*STRATEGIES, GENERATE]
        place = models.index(self.model) + strategies.index(self.strategy) + list(MESHES).index(self.mesh)
        return place % 3 == 2


def format_mesh(mesh: Shape) -> str:
    """Return a mesh as text, such as 1x8."""
    return f"{mesh[0]}x{mesh[1]}"


def fits(strategy: str, mesh: Shape) -> bool:
    """Return whether a strategy uses exactly the axes of the mesh that have several chips."""
    return sum(size > 1 for size in mesh) == len(STRATEGIES[strategy])


GENERATE = "generate"
"""Strategy of the cells that generate text, on one device."""

CELLS: dict[str, Cell] = {
    cell.id: cell
    for cell in (
        Cell(model, strategy, mesh)
        for mesh in MESHES
        for strategy in STRATEGIES
        if fits(strategy, mesh)
        for model in MODELS
    )
} | {cell.id: cell for cell in (Cell(model, GENERATE, (1, 1)) for model in TEXT_MODELS)}
"""Cells by id, mesh by mesh."""


def run_cell(cell: Cell, module: LockStep, dtype: str, folder: Path) -> list[str]:
    """Run a cell on a device module and return its calls. Raises AssertionError if results aren't finite."""
    training = cell.strategy != GENERATE
    device = device_config(cell.strategy if training else "single", cell.mesh)
    with open_configured_mesh(module, device, dtype) as mesh:
        module.reset()
        if training:
            loss, gradient = run_step(cell.model, device, mesh, folder)
            numbers = np.append(gradient, loss)
        else:
            numbers = run_generation(cell.model, mesh)
        lines = list(module.lines)
    assert np.isfinite(numbers).all(), f"{cell.id}: results are not finite"
    return lines


def format_table(passed: Mapping[str, bool]) -> list[str]:
    """Return the cells as lines of a Markdown table, with a list of the strategies that don't fit a mesh.

    Args:
        passed: whether each cell passed, by id. Other cells were not run.
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
        out = [format_mesh(mesh) for mesh in MESHES if not fits(strategy, mesh)]
        wanted = ("no axis", "one axis", "two axes")[len(STRATEGIES[strategy])]
        lines.append(f"* {strategy} takes {wanted} of several chips: refused on {', '.join(out)}.")
    return lines


def _row(board: str, mesh: Shape, strategy: str, passed: Mapping[str, bool]) -> str:
    cells = (Cell(model, strategy, mesh).id for model in MODELS)
    marks = [_MARKS[passed.get(cell)] if cell in CELLS else "" for cell in cells]
    return f"| {board} | {format_mesh(mesh)} | {strategy} | {' | '.join(marks)} |"


_MARKS = {True: "ran", False: "FAILED", None: "-"}
