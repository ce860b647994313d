"""The alert rules are documented, name metrics that exist, and fire on the cases that they are for."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml

from tests.deploy.test_deploy import DEPLOY
from tests.docs.test_pages import metrics

FOLDER = DEPLOY / "prometheus"
PAGE = DEPLOY.parent / "docs" / "operate" / "monitoring.md"

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="no promtool on this host; Debian has it in the package prometheus",
)


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    return group["rules"]


def test_every_alert_names_metrics_that_are_served() -> None:
    for rule in rules():
        assert {*re.findall(r"\btiermesh_[a-z_]*[a-z]\b", rule["expr"])} <= metrics(), rule["alert"]


def test_every_alert_is_documented_and_no_other_is() -> None:
    assert set(re.findall(r"`(Tiermesh\w+)`", PAGE.read_text())) == {rule["alert"] for rule in rules()}


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    cases = yaml.safe_load((FOLDER / "alerts_test.yml").read_text())["tests"]
    outcomes = {
        (each["alertname"], bool(each["exp_alerts"])) for case in cases for each in case["alert_rule_test"]
    }
    assert outcomes == {(rule["alert"], fires) for rule in rules() for fires in (True, False)}


def test_prometheus_reads_the_rules() -> None:
    assert yaml.safe_load((FOLDER / "prometheus.yml").read_text())["rule_files"] == ["alerts.yml"]


@needs_promtool
@pytest.mark.parametrize(
    "arguments", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")]
)
def test_promtool_accepts_the_rules(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(["promtool", *arguments], cwd=FOLDER, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
