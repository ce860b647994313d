"""The alert rules are documented, name metrics that exist, and fire on the cases that they are for."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.test_deploy import DEPLOY
from tests.docs.test_pages import metrics
from tests.support.prometheus import WITHOUT, find_program

FOLDER = DEPLOY / "prometheus"
PAGE = DEPLOY.parent / "docs" / "operate" / "monitoring.md"

PROMTOOL = find_program("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason=WITHOUT)
HEALTHY_MINUTES = 300
"""Length of the case of a cluster in good health."""


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    return group["rules"]


def test_every_alert_names_metrics_that_are_served() -> None:
    for rule in rules():
        assert {*re.findall(r"\btiermesh_[a-z_]*[a-z]\b", rule["expr"])} <= metrics(), rule["alert"]


def test_every_alert_is_documented_and_no_other_is() -> None:
    assert set(re.findall(r"`(Tiermesh\w+)`", PAGE.read_text())) == {rule["alert"] for rule in rules()}


def cases() -> list[dict[str, Any]]:
    return yaml.safe_load((FOLDER / "alerts_test.yml").read_text())["tests"]


def metric_of(series: dict[str, str]) -> str:
    return series["series"].partition("{")[0]


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    outcomes = {
        (each["alertname"], bool(each["exp_alerts"])) for case in cases() for each in case["alert_rule_test"]
    }
    assert outcomes == {(rule["alert"], fires) for rule in rules() for fires in (True, False)}


def test_a_cluster_in_good_health_has_all_metrics_of_the_alerts() -> None:
    healthy = {metric_of(each) for each in cases()[0]["input_series"]}
    assert healthy == {name for rule in rules() for name in re.findall(r"tiermesh_\w+|\bup\b", rule["expr"])}


def test_prometheus_reads_the_rules() -> None:
    assert yaml.safe_load((FOLDER / "prometheus.yml").read_text())["rule_files"] == ["alerts.yml"]


def promtool(*arguments: object) -> None:
    command = [str(PROMTOOL), *map(str, arguments)]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
@pytest.mark.parametrize(
    "arguments",
    [("check", "rules", "alerts.yml"), ("check", "config", "--syntax-only", "prometheus.yml")],
    ids=["rules", "config"],
)
def test_promtool_accepts_the_files(arguments: tuple[str, ...]) -> None:
    promtool(*arguments)


@needs_promtool
def test_promtool_finds_each_alert_in_its_case() -> None:
    promtool("test", "rules", "alerts_test.yml")


@needs_promtool
def test_no_other_alert_fires_in_any_case(tmp_path: Path) -> None:
    """All else of the cluster is in good health then."""
    content = yaml.safe_load((FOLDER / "alerts_test.yml").read_text())
    healthy, *others = content["tests"]
    names = [rule["alert"] for rule in rules()]
    for case in others:
        own = {metric_of(each) for each in case["input_series"]}
        case["input_series"] += [each for each in healthy["input_series"] if metric_of(each) not in own]
        told = {each["alertname"] for each in case["alert_rule_test"]}
        times = {each["eval_time"] for each in case["alert_rule_test"]}
        case["alert_rule_test"] += [
            {"eval_time": time, "alertname": name, "exp_alerts": []}
            for time in sorted(times)
            for name in names
            if name not in told
        ]
    healthy["alert_rule_test"] = [
        {"eval_time": f"{minute}m", "alertname": name, "exp_alerts": []}
        for minute in range(0, HEALTHY_MINUTES, 10)
        for name in names
    ]
    file = tmp_path / "all.yml"
    file.write_text(yaml.safe_dump({**content, "rule_files": [str(FOLDER / "alerts.yml")]}))
    promtool("test", "rules", file)
