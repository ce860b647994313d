"""Single calls on real ttnn beside the emulator, on a mocked LoudBox."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import mesh.emulator as emulator
from tests.support.contract import differences
from tests.support.contract.drawn_ops import NOT_DRAWN, OPS, not_drawn_table
from tests.support.contract.golden import GOLDEN, hold_to_page
from tests.support.contract.mocked_board import missing, run_on

REASON = missing()


FILES = (
    "ops_on_loudbox.py",
    "drawn_calls_on_loudbox.py",
    "float32_extensions_on_loudbox.py",
    "detects_changes_on_loudbox.py",
)


@pytest.mark.skipif(REASON is not None, reason=REASON or "")
@pytest.mark.parametrize("file", FILES)
def test_on_the_loudbox(file: str, tmp_path: Path) -> None:
    last = tmp_path / "last_call"
    arguments = ("-q", "-p", "no:cacheprovider", "--timeout=500", f"tests/contract/{file}")
    done = run_on(
        "loudbox",
        *("-m", "pytest", *arguments),
        environment={"TIERMESH_LAST_CALL": str(last)},
        timeout_seconds=600,
    )
    shown = f"{done.stdout[-20_000:]}\n{done.stderr[-2_000:]}"
    if done.returncode < 0 and last.exists():
        shown = f"the process ended with {done.returncode} in {last.read_text()}\n{shown}"
    assert done.returncode == 0, shown
    assert " passed" in done.stdout


def test_calls_are_drawn_of_every_op_that_the_step_or_the_emulator_has() -> None:
    golden = "\n".join(path.read_text() for path in GOLDEN.glob("*.txt"))
    called = set(re.findall(r"^(?:\w+#\d+ = )?([\w.]+)\(", golden, re.MULTILINE))
    assert {"matmul", "all_reduce", "experimental.dropout", "MeshMapperConfig"} <= called
    offered = {name for name in emulator.__all__ if inspect.isfunction(getattr(emulator, name))}
    offered |= {f"experimental.{name}" for name in emulator.experimental.__all__}
    assert not (called | offered) - OPS.keys() - NOT_DRAWN.keys()
    assert not OPS.keys() & NOT_DRAWN.keys()
    assert not (OPS.keys() | NOT_DRAWN.keys()) - called - offered - set(emulator.__all__)


def test_the_page_has_the_table_of_differences() -> None:
    hold_to_page("differences", differences.table())
    hold_to_page("calls not drawn", not_drawn_table())
