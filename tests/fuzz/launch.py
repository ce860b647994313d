"""Targets of a launch: hosts, rankfiles, rank bindings, a mesh cut from a descriptor, and lines of agents."""

from __future__ import annotations

from cli.launch.agent import protocol
from cli.launch.agent.protocol import (
    PREFIX,
    Ended,
    Facts,
    Heartbeat,
    Probed,
    RunOver,
    Start,
    WatchJob,
    WriteFile,
)
from cli.launch.hosts_file import MOST_RANKS, parse_host_list, parse_hosts
from cli.launch.rank_bindings import parse_rank_bindings
from cli.launch.rankfile import parse_rankfile
from mesh.descriptors.cut import cut_mesh, list_meshes
from mesh.descriptors.read import format_textproto, parse_textproto
from mesh.descriptors.validate import find_problem
from services.errors import Refused
from services.yaml_text import parse_yaml
from tests.fuzz.target import Target
from tests.support.descriptors import describe_meshes

_BINDINGS = b"""rank_bindings:
- {rank: 1, mesh_id: 0, mesh_host_rank: 0, env_overrides: {TT_VISIBLE_DEVICES: '0,1', A: '${HOME}/x'}}
- {rank: 0, mesh_id: 1, subcontext_id: 0, subcontext_size: 2, mesh_graph_desc_path: mgd.textproto}
global_env: {TT_METAL_HOME: /opt/tt-metal}
mesh_graph_desc_path: configurations/x/mgd.textproto
mock_cluster_rank_binding: {0: m.yaml}
"""


def _hosts(content: bytes) -> None:
    hosts = parse_hosts(content.decode(), "hosts.txt")
    assert 1 <= sum(host.slots for host in hosts) <= MOST_RANKS
    assert len({host.name.lower() for host in hosts}) == len(hosts)


def _host_list(content: bytes) -> None:
    assert all(not host.name.startswith("-") for host in parse_host_list(content.decode()))


def _rankfile(content: bytes) -> None:
    assert 1 <= len(parse_rankfile(content.decode(), "rankfile")) <= MOST_RANKS


def _rank_bindings(content: bytes) -> None:
    document = parse_yaml(content.decode(), "rank_bindings.yaml")
    if not isinstance(document, dict):
        raise Refused("rank_bindings.yaml: no mapping")
    found = parse_rank_bindings(document, "rank_bindings.yaml", {"HOME": "/home/me"})
    assert [binding.rank for binding in found.ranks] == list(range(len(found.ranks)))
    assert all(value.isprintable() for binding in found.ranks for value in binding.env_overrides.values())


def _cut(content: bytes) -> None:
    descriptor = parse_textproto(content.decode(), "mgd.textproto")
    problem = find_problem(descriptor)
    if problem is not None:
        raise Refused(f"mgd.textproto: {problem}")
    for mesh_id in list_meshes(descriptor, "mgd.textproto"):
        assert find_problem(cut_mesh(descriptor, mesh_id, "mgd.textproto")) is None


_MESSAGES = (
    WatchJob(
        "1123-084732-5f97b52b",
        "box:7070",
        "rank4-optimizer",
        ("/run/daemon.crt", "/run/daemon.key", "/run/authority.crt"),
    ),
    RunOver('{"id": "1123-084732-5f97b52b", "state": "SUCCEEDED"}', ""),
    Facts(1, "1.0", "3.12.1", "box", "/home/me/run", 1 << 40, 1 << 36, True, False),
    Probed(1.5, (7070,)),
    Ended(4, -9, "rank4 ended, killed by SIGKILL"),
    Start(
        0, "worker", "rank0", "/r/rank0", "/r/rank0/ready.json", ("tiermesh", "worker"), {"A": "1"}, ("B",)
    ),
    WriteFile("/r/daemon.key", "text\n", secret=True),
    Heartbeat(),
)


def _agent_line(content: bytes) -> None:
    line = protocol.encode(protocol.decode(PREFIX + content))
    assert protocol.encode(protocol.decode(line)) == line


LAUNCH_TARGETS = {
    "hosts_file": Target(_hosts, (b"loudbox-01.example slots=1\n# two\n10.0.0.1 slots = 8\n",)),
    "host_list": Target(_host_list, (b"a:1, b,[::1]:2",)),
    "rankfile": Target(_rankfile, (b"rank 1=b slot=0:1\nrank 0=a slots=0-3 # first\n",)),
    "rank_bindings": Target(_rank_bindings, (_BINDINGS,)),
    "cut_mesh": Target(_cut, (format_textproto(describe_meshes(3)).encode(),)),
    "agent_line": Target(_agent_line, tuple(protocol.encode(each)[len(PREFIX) :] for each in _MESSAGES)),
}
"""Targets of the files of a launch by name."""
