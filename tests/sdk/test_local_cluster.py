"""Local clusters: which daemons are started, in which order, and that none is left."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import tiermesh
from tests.support.web_api import TOKEN, WebApi, problem

# In place of the command: a daemon that notes its start and its end, and serves at the address of the test's server.
COMMAND = f"""#!{sys.executable}
import json, os, signal, sys
role, options = sys.argv[1], sys.argv[2:]
folder = os.path.dirname(__file__)
def note(what):
    with open(folder + "/journal", "a") as journal:
        journal.write(json.dumps([what, role, options]) + "\\n")
def end(*_):
    note("end")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
note("start")
if role == open(folder + "/broken").read():
    sys.exit("the port is taken")
if "--token-file" in options:
    with open(options[options.index("--token-file") + 1], "w") as file:
        file.write("{TOKEN}")
ready = options[options.index("--ready-file") + 1]
with open(ready + ".new", "w") as file:
    file.write('{{"port": ' + open(folder + "/port").read() + "}}")
os.rename(ready + ".new", ready)
sys.stdin.read()
note("parent gone")
"""


@pytest.fixture
def command(api: WebApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a command whose daemons serve at the address of `api`."""
    path = tmp_path / "bin" / "tiermesh"
    path.parent.mkdir()
    path.write_text(COMMAND)
    path.chmod(0o755)
    (path.parent / "broken").write_text("")
    (path.parent / "port").write_text(api.url.rpartition(":")[2])
    monkeypatch.setattr("tiermesh.local_cluster.find_command", lambda: str(path))
    return path.parent


def journal(command: Path) -> list[tuple[str, str]]:
    lines = (command / "journal").read_text().splitlines()
    return [(what, role) for what, role, _ in map(json.loads, lines)]


def options_of(command: Path, role: str) -> list[str]:
    lines = map(json.loads, (command / "journal").read_text().splitlines())
    return next(options for what, found, options in lines if (what, found) == ("start", role))


def test_daemons_start_and_end_in_order(command: Path, api: WebApi, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with tiermesh.local({"training_config": {}}, {"max_steps": 3}, workers=2, state_dir=state) as cluster:
        assert cluster.job.state == "queued"
        assert cluster.state_dir == state
        assert [what for what, _ in journal(command)] == ["start"] * 5
    assert api.received[0].json["overrides"] == {"max_steps": 3}
    roles = [role for _, role in journal(command)]
    assert roles[:2] == ["optimizer", "aggregator"] and roles[-2:] == ["aggregator", "optimizer"]
    assert sorted(roles[2:5]) == sorted(roles[5:8]) == ["web", "worker", "worker"]
    address = api.url.removeprefix("http://")
    assert options_of(command, "aggregator")[-7:-5] == ["--optimizer", address]
    for role in ("worker", "web"):
        options = options_of(command, role)
        assert options[options.index("--aggregator") + 1] == address
        assert "--exit-with-parent" in options


def test_two_tiers_have_no_optimizer(command: Path) -> None:
    with tiermesh.local({}, workers=1, tiers=2) as cluster:
        folder = cluster.state_dir
        assert {role for _, role in journal(command)} == {"aggregator", "worker", "web"}
    assert not folder.exists()


def test_a_daemon_that_does_not_start(command: Path) -> None:
    (command / "broken").write_text("worker")
    with (
        pytest.raises(tiermesh.Failed, match="its log ends with: the port is taken"),
        tiermesh.local({}),
    ):
        pass
    assert journal(command)[-1] == ("end", "optimizer")


def test_a_config_that_is_refused(command: Path, api: WebApi) -> None:
    api.put("POST", "/v1/jobs", problem(422, "refused", "training_config: missing"))
    with pytest.raises(tiermesh.Refused, match="training_config: missing"), tiermesh.local({}):
        pass
    assert sum(what == "end" for what, _ in journal(command)) == 5


def test_options_of_the_environment_are_not_those_of_daemons(
    command: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIERMESH_LISTEN", "0.0.0.0:1")
    text = (command / "tiermesh").read_text()
    check = 'note("start")\nassert "TIERMESH_LISTEN" not in os.environ'
    (command / "tiermesh").write_text(text.replace('note("start")', check))
    with tiermesh.local({}, workers=1, tiers=2):
        pass


@pytest.mark.parametrize("named", [{"workers": 0}, {"workers": 65}, {"tiers": 1}])
def test_arguments_that_are_none(named: dict[str, int]) -> None:
    with pytest.raises(tiermesh.Refused) as caught, tiermesh.local({}, **named):
        pass
    assert [caught.value.field] == list(named)


def test_a_host_without_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    with pytest.raises(tiermesh.Refused, match="tiermesh-cluster"), tiermesh.local({}):
        pass
