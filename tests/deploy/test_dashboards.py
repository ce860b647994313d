"""The dashboards ask for metrics that exist, and Grafana finds them and their Prometheus."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.deploy.test_deploy import DEPLOY
from tests.docs.test_pages import metrics
from tests.support.dashboards import FILES, GRAFANA, fill_in, queries, read_dashboard, variables

OTHERS = {"process_cpu_seconds_total", "process_max_fds", "process_open_fds", "process_resident_memory_bytes"}
"""Metrics of every process."""
COLUMNS = 24


def test_there_is_one_for_the_cluster_one_for_jobs_and_one_for_hosts() -> None:
    assert [file.stem for file in FILES] == ["cluster", "hosts", "job"]
    assert [read_dashboard(file)["uid"] for file in FILES] == [f"tiermesh-{file.stem}" for file in FILES]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_query_names_metrics_that_are_served(file: Path) -> None:
    dashboard = read_dashboard(file)
    asked = [query for _, query in queries(dashboard)]
    asked += [selector for selector, _ in variables(dashboard).values()]
    for query in asked:
        named = {*re.findall(r"\b(?:tiermesh|process)_[a-z_]*[a-z]\b", query)}
        assert named <= metrics() | OTHERS, query
        assert named or "up{" in query or "ALERTS{" in query, query
        fill_in(query, dict.fromkeys((*variables(dashboard), "__rate_interval"), "any"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_panel_has_a_place_a_title_and_a_text(file: Path) -> None:
    panels = read_dashboard(file)["panels"]
    places = [each["gridPos"] for each in panels]
    fields = [
        (x, y)
        for each in places
        for x in range(each["x"], each["x"] + each["w"])
        for y in range(each["y"], each["y"] + each["h"])
    ]
    assert len(fields) == len(set(fields)), "no panel covers another"
    assert max(x for x, _ in fields) < COLUMNS
    assert len({each["id"] for each in panels}) == len({each["title"] for each in panels}) == len(panels)
    assert all(each["description"].endswith(".") and each["targets"] for each in panels)


def test_grafana_is_told_where_the_dashboards_are_and_whom_they_ask() -> None:
    provisioning = GRAFANA / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "tiermesh.yml").read_text())["datasources"]
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "tiermesh.yml").read_text())["providers"]
    scrape = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["global"]
    assert source["jsonData"]["timeInterval"] == scrape["scrape_interval"]
    assert provider["options"]["path"] == f"/opt/tiermesh/{FILES[0].parent.relative_to(DEPLOY.parent)}"
    for file in FILES:
        dashboard = read_dashboard(file)
        asked = [each["datasource"] for each in (*dashboard["panels"], *dashboard["templating"]["list"])]
        assert all(each == {"type": source["type"], "uid": source["uid"]} for each in asked)
