"""Single calls on real ttnn and the emulator, on a mocked LoudBox.

Each file runs in a pytest process of its own on the mocked board. `make test` draws a third of the calls of each op.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import mesh.emulator as emulator
from tests.support.contract import differences
from tests.support.contract.drawn_ops import EXAMPLES, NOT_DRAWN, OPS, format_not_drawn
from tests.support.contract.golden import GOLDEN, assert_page_has_table
from tests.support.contract.mocked_board import missing_requirement, run_on_board

REASON = missing_requirement()


@pytest.mark.skipif(REASON is not None, reason=REASON or "")
@pytest.mark.parametrize(
    ("file", "drawn_calls"),
    [
        ("ops_on_loudbox.py", EXAMPLES // 3),
        pytest.param("float32_extensions_on_loudbox.py", EXAMPLES // 3, marks=pytest.mark.long),
        pytest.param("drawn_calls_on_loudbox.py", EXAMPLES, marks=pytest.mark.long),
        pytest.param("detects_changes_on_loudbox.py", EXAMPLES // 3, marks=pytest.mark.long),
    ],
)
def test_on_the_loudbox(file: str, drawn_calls: int, tmp_path: Path) -> None:
    last_call = tmp_path / "last_call"
    arguments = ("-q", "-p", "no:cacheprovider", "--timeout=500", f"tests/contract/{file}")
    done = run_on_board(
        "loudbox",
        *("-m", "pytest", *arguments),
        environment={"TIERMESH_LAST_CALL": str(last_call), "TIERMESH_DRAWN_CALLS": str(drawn_calls)},
        timeout_seconds=600,
    )
    output = f"{done.stdout[-20_000:]}\n{done.stderr[-2_000:]}"
    if done.returncode < 0 and last_call.exists():
        output = f"the process ended with {done.returncode} in {last_call.read_text()}\n{output}"
    assert done.returncode == 0, output
    assert " passed" in done.stdout


def test_every_op_of_the_step_and_the_emulator_has_drawn_calls() -> None:
    golden = "\n".join(path.read_text() for path in GOLDEN.glob("*.txt"))
    called = set(re.findall(r"^(?:\w+#\d+ = )?([\w.]+)\(", golden, re.MULTILINE))
    assert {"matmul", "all_reduce", "experimental.dropout", "MeshMapperConfig"} <= called
    offered = {name for name in emulator.__all__ if inspect.isfunction(getattr(emulator, name))}
    offered |= {f"experimental.{name}" for name in emulator.experimental.__all__}
    assert not (called | offered) - OPS.keys() - NOT_DRAWN.keys()
    assert not OPS.keys() & NOT_DRAWN.keys()
    assert not (OPS.keys() | NOT_DRAWN.keys()) - called - offered - set(emulator.__all__)


def test_the_page_lists_the_differences() -> None:
    assert_page_has_table("differences", differences.format_table())
    assert_page_has_table("calls not drawn", format_not_drawn())
