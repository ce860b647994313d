"""The dashboards of deploy/grafana, and what Grafana asks Prometheus for them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

GRAFANA = Path(__file__).resolve().parents[2] / "deploy" / "grafana"
FILES = sorted((GRAFANA / "dashboards").glob("*.json"))


def read_dashboard(file: Path) -> dict[str, Any]:
    """Return a dashboard."""
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def variables(dashboard: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the selector and the label whose values each variable of a dashboard has, by name."""
    found = {}
    for each in dashboard["templating"]["list"]:
        query = re.fullmatch(r"label_values\((.+), (\w+)\)", each["query"]["query"])
        assert query is not None, each
        found[each["name"]] = (query[1], query[2])
    return found


def queries(dashboard: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the title of a panel and a query of it."""
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def fill_in(query: str, values: Mapping[str, str]) -> str:
    """Return a query with values for Grafana's variables, whose names begin with `$`."""
    return re.sub(r"\$(\w+)", lambda name: values[name[1]], query)
