"""Units, settings and ports in deploy/ match the commands that they start."""

from __future__ import annotations

import configparser
import shlex
from pathlib import Path

import pytest
import yaml

from cli.main import tiermesh

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
ROLES = ("worker", "aggregator", "optimizer")
COMMANDS = {**{role: [role] for role in ROLES}, "shard": ["aggregator", "--shard"], "web": ["web"]}
"""Command line of each unit."""


def settings(role: str) -> dict[str, str]:
    """Return the settings of a role's example, including those that are commented out."""
    lines = (DEPLOY / "systemd" / f"{role}.env.example").read_text().splitlines()
    pairs = (line.lstrip("#").partition("=") for line in lines if "=" in line and not line.startswith("# "))
    return {name: value for name, _, value in pairs}


@pytest.mark.parametrize("role", COMMANDS)
def test_a_unit_starts_its_role_and_respects_exit_code_2(role: str) -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # systemd's keys have capitals
    unit.read(DEPLOY / "systemd" / f"tiermesh-{role}.service")
    service = unit["Service"]
    command = shlex.split(service["ExecStart"])
    assert command == ["/opt/tiermesh/.venv/bin/tiermesh", *COMMANDS[role]]
    assert service["RestartPreventExitStatus"] == "2"
    assert service["EnvironmentFile"] == f"/etc/tiermesh/{role}.env"


@pytest.mark.parametrize("role", COMMANDS)
def test_every_setting_of_an_example_is_a_flag_of_its_role(role: str) -> None:
    known = {parameter.envvar for parameter in tiermesh.load_all()[COMMANDS[role][0]].params}
    assert set(settings(role)) <= known
    assert all(settings(role).values())


@pytest.mark.parametrize("role", ["aggregator", "optimizer", "shard"])
def test_ports_of_the_examples_match_the_operations_page(role: str) -> None:
    main = settings(role)["TIERMESH_LISTEN"].rpartition(":")[2]
    tensors = settings(role)["TIERMESH_TENSOR_PORT"]
    lines = (DEPLOY.parent / "docs" / "operate" / "operations.md").read_text().splitlines()
    (row,) = [line for line in lines if line.startswith(f"| {role} |")]
    assert [cell.split(",")[0].strip() for cell in row.split("|")[2:4]] == [main, tensors]


@pytest.mark.parametrize("end", ["_LISTEN", "_PORT", "_STATE_DIR", "_TLS_CERT", "_TLS_KEY"])
def test_the_examples_of_roles_on_one_host_collide_nowhere(end: str) -> None:
    used = [
        value.rpartition(":")[2]
        for role in COMMANDS
        for name, value in settings(role).items()
        if name.endswith(end)
    ]
    assert len(used) > 1
    assert sorted(set(used)) == sorted(used)


def test_prometheus_scrapes_the_ports_of_the_examples() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    (scrape,) = config["scrape_configs"]
    targets = {target for group in scrape["static_configs"] for target in group["targets"]}
    for role in ROLES:
        port = settings(role)["TIERMESH_METRICS_LISTEN"].rpartition(":")[2]
        assert any(target.startswith(role) and target.endswith(f":{port}") for target in targets)
