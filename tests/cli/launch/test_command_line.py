"""The command of each daemon: order of starting, addresses, TLS beyond this machine, and what a shell makes of it."""

from __future__ import annotations

import json
import subprocess
import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from cli.launch.command_line import (
    DaemonCommand,
    Place,
    Ports,
    aggregator_address,
    daemon_commands,
    web_url,
)
from cli.launch.plan import LaunchPlan, Rank, Role

_DESCRIPTOR = "mesh_descriptors { }\n"


def _plan(hosts: tuple[str | None, ...], roles: tuple[Role, ...]) -> LaunchPlan:
    ranks = tuple(
        Rank(
            number,
            role,
            host,
            f"rank{number}",
            number,
            {"TT_RUN_RANK": str(number)},
            _DESCRIPTOR if role == "worker" else "",
        )
        for number, (host, role) in enumerate(zip(hosts, roles, strict=True))
    )
    return LaunchPlan(ranks, 3 if "optimizer" in roles else 2)


def _places(plan: LaunchPlan) -> dict[int, Place]:
    return {
        rank.number: Place(("/opt/tiermesh",), f"/run/{rank.name}", f"{rank.host or '127.0.0.1'}")
        for rank in plan.ranks
    }


def _option(command: DaemonCommand, name: str) -> str:
    return command.arguments[command.arguments.index(name) + 1]


def test_daemons_start_before_those_that_dial_them() -> None:
    plan = _plan(("a", "b", "c", "d"), ("worker", "worker", "aggregator", "optimizer"))
    commands = daemon_commands(plan, _places(plan), Ports(81, 82))
    assert [command.rank.role for command in commands] == ["optimizer", "aggregator", "worker", "worker"]
    optimizer, aggregator, worker, _ = commands
    assert optimizer.arguments[:2] == ("/opt/tiermesh", "optimizer")
    assert (_option(optimizer, "--listen"), optimizer.ports) == ("0.0.0.0:82", (82,))
    assert (_option(aggregator, "--listen"), aggregator.ports) == ("0.0.0.0:81", (81,))
    assert _option(aggregator, "--optimizer") == "d:82"
    assert _option(worker, "--aggregator") == "c:81" == aggregator_address(plan, _places(plan), Ports(81, 82))
    assert (_option(worker, "--listen"), worker.ports) == ("127.0.0.1:0", ())
    assert {_option(command, "--tls-key") for command in commands} == {
        f"/run/rank{n}/daemon.key" for n in range(4)
    }


def test_local_daemons_stay_on_loopback_without_tls() -> None:
    plan = _plan((None, None), ("worker", "aggregator"))
    for command in daemon_commands(plan, _places(plan)):
        assert _option(command, "--listen").startswith("127.0.0.1:")
        assert "--tls-key" not in command.arguments
        assert "--optimizer" not in command.arguments


def test_the_http_api_serves_programs_and_calls_the_aggregator_on_loopback() -> None:
    plan = _plan(("a", "b", "b"), ("worker", "aggregator", "web"))
    places, ports = _places(plan), Ports(81, 82, 83, 84)
    aggregator, _, web = daemon_commands(plan, places, ports)
    assert web.rank.role == "web"
    assert (_option(web, "--listen"), web.ports) == ("0.0.0.0:83", (83,))
    assert _option(web, "--aggregator") == _option(aggregator, "--people-listen") == "127.0.0.1:84"
    assert _option(aggregator, "--tokens") == "/run/rank1/tokens.txt"
    assert aggregator.ports == (81, 84)
    assert web_url(plan, places, ports) == "https://b:83"
    local = _plan((None, None, None), ("worker", "aggregator", "web"))
    aggregator, _, web = daemon_commands(local, _places(local), ports)
    assert "--people-listen" not in aggregator.arguments and "--tls-key" not in web.arguments
    assert _option(web, "--aggregator") == "127.0.0.1:81"
    assert web_url(local, _places(local), ports) == "http://127.0.0.1:83"


def test_ipv6_addresses_are_in_brackets() -> None:
    plan = _plan(("::1", "::2"), ("worker", "aggregator"))
    aggregator, worker = daemon_commands(plan, _places(plan), Ports(81))
    assert _option(worker, "--aggregator") == "[::2]:81"
    assert _option(aggregator, "--listen") == "[::]:81"


def test_workers_get_their_descriptor_and_cache() -> None:
    plan = _plan(("a", "b"), ("worker", "aggregator"))
    places = {number: Place(("t",), f"/run/{number}", "x", "/cache") for number in (0, 1)}
    aggregator, worker = daemon_commands(plan, places)
    assert worker.files == {"/run/0/mgd.textproto": _DESCRIPTOR}
    assert worker.environment["TT_MESH_GRAPH_DESC_PATH"] == "/run/0/mgd.textproto"
    assert worker.environment["TT_METAL_CACHE"] == "/cache/rank0"
    assert aggregator.files == {}
    assert aggregator.environment == {"TT_RUN_RANK": "1"}


_TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF, exclude_characters="\x7f"), max_size=12)


@settings(max_examples=8, deadline=None)
@given(_TEXT, st.dictionaries(st.from_regex("TT_[A-Z]{1,4}", fullmatch=True), _TEXT, max_size=3))
def test_a_shell_reads_what_was_meant(argument: str, environment: dict[str, str]) -> None:
    script = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"
    rank = Rank(0, "worker", None, "r", 0, environment, "")
    command = DaemonCommand(
        rank, (sys.executable, "-I", "-S", "-c", script, argument), environment, ("TT_MESH_ID",), {}, ()
    )
    done = subprocess.run(
        ["/bin/sh", "-c", command.in_shell()],
        env={"TT_MESH_ID": "9", "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=True,
    )
    arguments, variables = json.loads(done.stdout)
    assert arguments == [argument]
    assert variables.items() >= environment.items()
    assert "TT_MESH_ID" not in variables
