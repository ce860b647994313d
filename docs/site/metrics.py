"""Tables of all metrics, from the registries that the daemons serve."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry

from services.runtime.aggregator_metrics import AggregatorMetrics
from services.runtime.certificate_watch import EXPIRY_METRIC
from services.runtime.metrics import ConnectionMetrics, OptimizerMetrics, WorkerMetrics

HEAD = "| metric | type | labels | what it is |\n| --- | --- | --- | --- |"


def render_metrics() -> str:
    """Return a section for each role, with its metrics, their labels and what they count."""
    optimizer = _rows(OptimizerMetrics().registry)
    aggregator = _rows(AggregatorMetrics().registry)  # has those of an optimizer, too, for 2 tiers
    ports = CollectorRegistry()
    ConnectionMetrics(ports, "worker")
    expiry = f"| `{EXPIRY_METRIC}` | gauge | `role` | End of the daemon's certificate, in Unix time |"
    sections = {
        "Of a worker": _rows(WorkerMetrics().registry).values(),
        "Of an aggregator": [row for name, row in aggregator.items() if name not in optimizer],
        "Of an optimizer": optimizer.values(),
        "Of every daemon": [*_rows(ports).values(), expiry],
    }
    return "\n".join(_section(title, rows) for title, rows in sections.items())


def _section(title: str, rows: Iterable[str]) -> str:
    return "\n".join((f"## {title}\n", HEAD, *rows, ""))


def _rows(registry: CollectorRegistry) -> dict[str, str]:
    """Return a table's row for each metric, by its name."""
    rows = {}
    collectors: list[Any] = list(registry._collector_to_names)
    for collector in collectors:
        if hasattr(collector, "_labelnames"):  # the others are prometheus_client's own, of the process
            (family,) = collector.describe()
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = ", ".join(f"`{each}`" for each in collector._labelnames)
            rows[name] = f"| `{name}` | {family.type} | {labels} | {family.documentation} |"
    return rows
