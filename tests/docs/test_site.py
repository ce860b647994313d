"""Check that the references of the documentation's site leave nothing out. `make docs` builds the site itself."""

from __future__ import annotations

import re

import tiermesh
from docs.site.http_calls import render_http_calls
from docs.site.job_keys import render_job_keys
from docs.site.metrics import render_metrics
from docs.site.python_package import render_python_package
from services.config.refusals import yaml_keys
from services.config.sections import SECTIONS
from services.runtime.aggregator_metrics import AggregatorMetrics
from services.runtime.metrics import WorkerMetrics


def first_cells(text: str) -> set[str]:
    return {*re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)}


def test_every_key_has_a_type_and_its_default() -> None:
    text = render_job_keys()
    assert {key for schema in SECTIONS.values() for key in yaml_keys(schema)} <= first_cells(text)
    assert "| `max_steps` | whole number from 1 to 2,147,483,647 | `1000` |" in text
    assert "| `mesh_shape` | list | `[1, 1]` |" in text
    assert "| `scheduler_type` | `identity`, `warmup_linear`, " in text


def test_every_metric_is_listed_once() -> None:
    text = render_metrics()
    listed = re.findall(r"^\| `(tiermesh_\w+)` \|", text, re.MULTILINE)
    families = [each for kind in (WorkerMetrics, AggregatorMetrics) for each in kind().registry.collect()]
    names = {each.name + "_total" * (each.type == "counter") for each in families}
    assert {name for name in names if name.startswith("tiermesh_")} <= {*listed}
    assert "| `tiermesh_loss` | gauge | `job`, `role` |" in text


def test_every_call_of_the_http_api_is_listed() -> None:
    text = render_http_calls()
    for path in ("/v1/health", "/v1/jobs", "/v1/jobs/{job}/events", "/v1/jobs/{job}/metrics"):
        assert f"## GET {path}\n" in text
    assert "## POST /v1/jobs\n" in text and "| `config` | body |" in text


def test_everything_that_programs_import_is_listed() -> None:
    text = render_python_package()
    for name in tiermesh.__all__:
        if callable(getattr(tiermesh, name)):
            assert re.search(rf"^## {name}\b", text, re.MULTILINE), name
