"""Tests that docs/operate/timeline.md lists every event that daemons record, and that its commands exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from click.testing import CliRunner

from cli.main import tiermesh

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operate" / "timeline.md").read_text()


def recorded() -> set[tuple[str, str, str]]:
    """Return (daemon, row, event) of each call in the code; a peer's name is in capitals.

    A plane's tensors are the optimizer's part, wherever it is.
    """
    found = set()
    folders = {
        "worker": "worker",
        "aggregator": "aggregator",
        "optimizer": "optimizer",
        "plane": "aggregator",
    }
    for folder, of_folder in folders.items():
        for path in (ROOT / folder).rglob("*.py"):
            role = "worker" if path.name == "worker_plane.py" else of_folder
            for call in ast.walk(ast.parse(path.read_text())):
                if (
                    isinstance(call, ast.Call)
                    and isinstance(call.func, ast.Attribute)
                    and isinstance(call.func.value, ast.Name)
                    and call.func.value.id == "timeline"
                    and call.func.attr in ("mark", "span", "add")
                ):
                    row, name = call.args[:2]
                    assert isinstance(name, ast.Constant)
                    row = ast.literal_eval(row) if isinstance(row, ast.Constant) else _prefix(row) + "WORKER"
                    found.add(("optimizer" if row == "kernel" else role, row, name.value))
    return found


def _prefix(row: ast.expr) -> str:
    assert isinstance(row, ast.JoinedStr) and isinstance(row.values[0], ast.Constant)
    return str(row.values[0].value)


def listed() -> set[tuple[str, str, str]]:
    """Return (daemon, row, event) of each line in the page's table."""
    found = set()
    for line in re.findall(r"^\| (\w+) \| (`.*?`) \| (`.*?`) \|", PAGE, re.MULTILINE):
        role, row, events = line
        found |= {(role, row.strip("`"), event) for event in re.findall("`(.*?)`", events)}
    return found


def test_every_event_is_listed() -> None:
    assert recorded() == listed()


def test_documented_commands_and_options_exist() -> None:
    for command in ("local", "worker", "aggregator", "optimizer"):
        shown = CliRunner().invoke(tiermesh, [command, "--help"]).output
        assert "--timeline PATH" in shown and "--timeline-steps FIRST-LAST" in shown, command
    assert "--timeline build/timeline --timeline-steps 10-12" in PAGE
    assert "tiermesh timeline build/timeline" in PAGE
    assert "timeline" in tiermesh.load_all()
