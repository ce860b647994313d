"""Check that what docs/operate/troubleshooting.md quotes is what the daemons and commands say."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from services.protocol.activities import Activity

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operate" / "troubleshooting.md").read_text()
ROLES = ("aggregator", "worker", "optimizer", "plane", "services", "training", "compute", "cli")
ALERTS = (ROOT / "deploy" / "prometheus" / "alerts.yml").read_text()


def texts() -> str:
    """Return all parts of texts in the code of the roles."""
    found = []
    for role in ROLES:
        for path in (ROOT / role).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return "\n".join(found)


def test_quoted_messages_are_in_the_code() -> None:
    rows = re.findall(r"^\| (.*?) \|", PAGE, re.MULTILINE)
    quoted = {text for row in rows for text in re.findall("`(.+?)`", row)}
    said = texts() + ALERTS + "\n".join(each.value for each in Activity)
    assert len(quoted) > 30
    assert [text for text in sorted(quoted) if not text.startswith("tiermesh_") and text not in said] == []
