"""systemd accepts the units: they can be enabled, they verify, and they restart what may pass but not what is wrong."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from services.errors import ExitCode
from tests.deploy.test_deploy import COMMANDS, DEPLOY
from tests.support.cluster.daemon import tiermesh

SYSTEM_UNITS = Path("/usr/lib/systemd/system")
PROGRAM = "opt/tiermesh/.venv/bin/tiermesh"

needs_systemd_tools = pytest.mark.skipif(
    not (shutil.which("systemd-analyze") and shutil.which("systemctl") and SYSTEM_UNITS.is_dir()),
    reason="no systemd-analyze or systemctl on this host",
)
needs_running_systemd = pytest.mark.skipif(
    not Path("/run/systemd/system").is_dir() or Path("/proc/1/comm").read_text().strip() != "systemd",
    reason="PID 1 of this host is not systemd",
)


def read_unit(role: str) -> configparser.ConfigParser:
    """Return the unit of a role."""
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # systemd's keys have capitals
    unit.read(DEPLOY / "systemd" / f"tiermesh-{role}.service")
    return unit


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the root of a host with Tiermesh and its units, as docs/operate/operations.md installs them."""
    units = tmp_path / "etc/systemd/system"
    units.mkdir(parents=True)
    for role in COMMANDS:
        shutil.copy(DEPLOY / "systemd" / f"tiermesh-{role}.service", units)
    (tmp_path / "usr/lib/systemd/system").mkdir(parents=True)
    for target in SYSTEM_UNITS.glob("*.target"):
        shutil.copy(target, tmp_path / "usr/lib/systemd/system", follow_symlinks=True)
    (tmp_path / PROGRAM).parent.mkdir(parents=True)
    (tmp_path / PROGRAM).write_text("#!/bin/sh\n")
    (tmp_path / PROGRAM).chmod(0o755)
    return tmp_path


@needs_systemd_tools
@pytest.mark.parametrize("role", COMMANDS)
def test_a_unit_verifies_without_a_warning(role: str, root: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", f"--root={root}", f"tiermesh-{role}.service"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


@needs_systemd_tools
@pytest.mark.parametrize("role", COMMANDS)
def test_an_enabled_unit_starts_with_the_host(role: str, root: Path) -> None:
    subprocess.run(
        ["systemctl", f"--root={root}", "enable", f"tiermesh-{role}"],
        check=True,
        capture_output=True,
        timeout=60,
    )
    link = root / f"etc/systemd/system/multi-user.target.wants/tiermesh-{role}.service"
    assert link.is_symlink()


@pytest.mark.parametrize("role", COMMANDS)
def test_a_unit_restarts_for_ever_unless_its_settings_are_wrong(role: str) -> None:
    unit = read_unit(role)
    assert unit["Service"]["Restart"] == "always"
    assert unit["Service"]["RestartPreventExitStatus"] == str(ExitCode.REFUSED.value)
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"


@pytest.mark.parametrize("role", COMMANDS)
def test_a_unit_waits_for_its_mounts_and_the_network(role: str) -> None:
    unit = read_unit(role)
    settings = (DEPLOY / "systemd" / f"{role}.env.example").read_text()
    mounts = unit["Unit"]["RequiresMountsFor"].split()
    for line in settings.splitlines():
        name, _, value = line.partition("=")
        if not line.startswith("#") and value.startswith("/"):
            assert any(value.startswith(f"{mount}/") for mount in mounts), f"{name} is on no awaited mount"
    assert unit["Unit"]["After"] == unit["Unit"]["Wants"] == "network-online.target"


def test_units_differ_only_in_what_their_role_needs() -> None:
    units = {role: read_unit(role) for role in COMMANDS}
    own = {"Description", "EnvironmentFile", "ExecStart", "ReadWritePaths", "Environment", "PrivateDevices"}
    own.add("TimeoutStopSec")  # of roles that write checkpoints
    for role, unit in units.items():
        for section in unit.sections():
            for key, value in unit[section].items():
                assert key in own or units["optimizer"][section][key] == value, f"{role}: {key}"
    assert "PrivateDevices" not in units["worker"]["Service"], "a worker opens /dev/tenstorrent"


@pytest.mark.parametrize(
    ("listen", "code", "fact"),
    [
        ("nowhere.invalid:7070", ExitCode.NOT_YET, "listen address nowhere.invalid:7070: "),
        ("192.0.2.1:7070", ExitCode.NOT_YET, "cannot assign requested address"),
        ("7070", ExitCode.REFUSED, "not HOST:PORT"),
        ("a" * 300 + ":7070", ExitCode.REFUSED, "no host can have this name"),
    ],
)
def test_a_daemon_tells_what_is_wrong_from_what_may_pass(
    listen: str, code: ExitCode, fact: str, tmp_path: Path
) -> None:
    done = tiermesh("aggregator", "--insecure", "--listen", listen, "--state-dir", tmp_path / "state")
    (*_, line) = done.stderr.splitlines()
    assert (done.returncode, fact in line) == (code, True), line


@pytest.mark.slow
@needs_running_systemd
def test_systemd_restarts_what_may_pass(tmp_path: Path) -> None:
    def run(listen: str, name: str) -> str:
        unit = read_unit("aggregator")["Service"]
        properties = [
            f"--property={key}={unit[key]}"
            for key in ("Restart", "RestartSec", "RestartPreventExitStatus", "TimeoutStopSec")
        ]
        program = [sys.executable, "-m", "cli.main", "aggregator", "--insecure", "--listen", listen]
        state = ["--state-dir", str(tmp_path / name)]
        subprocess.run(
            [
                "systemd-run",
                f"--unit={name}",
                f"--working-directory={DEPLOY.parent}",
                *properties,
                *program,
                *state,
            ],
            check=True,
        )
        try:
            for _ in range(120):
                shown = subprocess.run(
                    ["systemctl", "show", name, "--property=NRestarts,ActiveState"],
                    capture_output=True,
                    text=True,
                    check=True,
                ).stdout
                if "failed" in shown or "NRestarts=0" not in shown:
                    return shown
                time.sleep(0.5)
            return "neither failed nor restarted"
        finally:
            subprocess.run(["systemctl", "stop", name], check=False)
            subprocess.run(["systemctl", "reset-failed", name], check=False)

    assert "NRestarts=0" not in run("192.0.2.1:7070", "tiermesh-test-later")
    assert "NRestarts=0" in run("7070", "tiermesh-test-wrong")
