"""`tiermesh check --cluster`: check all meshes and links of a cluster, and name the slow and broken ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from cli.check import describe_outcome, parse_shape
from cli.output import Output
from protos.checks_pb2 import AxisReport, LinkReport, MeshReport
from protos.jobs_pb2 import CheckedLink, CheckedMesh, CheckRequest
from services.errors import Failed, NotYet
from services.jobs.client import JobsClient
from services.jobs.target import AggregatorTarget
from services.printable import counted

SLOW_SHARE = 0.5
"""A link is slow if it carries less than this share of the median of its kind, in either direction."""
MAX_RESULTS = 1 << 19
"""Most results of a check; an aggregator has at most 1024 workers and 256 shards."""

_HEADINGS = ("link", "path", "latency", "up", "down", "result")


async def run(target: AggregatorTarget, mesh_shape: str | None, backend: str, output: Output) -> None:
    """Check a cluster, and print each result and a table of the links.

    Args:
        target: aggregator to call.
        mesh_shape: rows and columns of each worker's mesh; None for that of its last job, or else all its devices.
        backend: value as in `device_config.backend`.
        output: where the result goes.

    Raises:
        Failed: a mesh or a link does not work, or gives wrong values.
        NotYet: all workers serve jobs, another check is under way, or no worker is connected.
    """
    rows, columns = parse_shape(mesh_shape) if mesh_shape else (0, 0)
    meshes: list[CheckedMesh] = []
    links: list[CheckedLink] = []
    planned = 0
    async with JobsClient(target) as client:
        async for result in client.check(CheckRequest(rows=rows, columns=columns, backend=backend)):
            if len(meshes) + len(links) > MAX_RESULTS:
                raise Failed(f"aggregator {client.address}: more than {MAX_RESULTS} results of a check")
            match result.WhichOneof("result"):
                case "plan":
                    planned, busy = result.plan.links, result.plan.busy
                    what = f"{counted(result.plan.meshes, 'mesh', 'meshes')} and {counted(planned, 'link')}"
                    others = f"; {counted(busy, 'worker')} at work on jobs: not checked" if busy else ""
                    output.say(f"checking {what}; no job gets their workers meanwhile{others}")
                case "mesh":
                    meshes.append(result.mesh)
                    output.say(_mesh_line(result.mesh))
                case "link":
                    links.append(result.link)
                    output.say(f"link {len(links)} of {planned}: {_describe(result.link)}")
    if not meshes:
        raise NotYet("no worker is connected; start workers, and check again")
    slow = find_slow(links)
    for line in format_table(links, slow):
        output.say(line)
    broken = [each for each in links if each.report.problem]
    broken_meshes = [each for each in meshes if not _mesh_passed(each.report)]
    output.result(
        {
            "passed": not broken and not broken_meshes,
            "meshes": [_mesh_fields(each) for each in meshes],
            "links": [_link_fields(each, index in slow) for index, each in enumerate(links)],
        }
    )
    for index in sorted(slow):
        output.warn(f"slow: {_describe(links[index])}: {slow[index]}; look at its cable, port and host")
    _raise_first_problem(broken_meshes, broken)


def find_slow(links: Sequence[CheckedLink]) -> dict[int, str]:
    """Return the slow links: index, and in which direction it is how slow.

    A link's kind is the roles of its ends, and whether payloads stay in shared memory.
    """
    slow: dict[int, str] = {}
    for direction in ("up", "down"):
        speeds: dict[tuple[str, str, bool], dict[int, float]] = {}
        for index, link in enumerate(links):
            speed = getattr(link.report, f"{direction}_bytes_per_second")
            if speed and not link.report.problem:
                kind = (link.role, link.peer_role, link.report.shared_memory)
                speeds.setdefault(kind, {})[index] = speed
        for of_kind in speeds.values():
            usual = median(of_kind.values())
            for index, speed in of_kind.items():
                if speed < SLOW_SHARE * usual:
                    text = f"{format_speed(speed)} {direction}, where {format_speed(usual)} is usual"
                    slow[index] = f"{slow[index]}; {text}" if index in slow else text
    return slow


def format_speed(bytes_per_second: float) -> str:
    """Return a speed in Mbit/s or Gbit/s, as links are rated."""
    bits = bytes_per_second * 8
    return f"{bits / 1e9:.2f} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.1f} Mbit/s"


def _format_latency(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


def _name(link: CheckedLink) -> str:
    return f"{link.role} {link.name} -> {link.peer_role} {link.peer}"


def _path(report: LinkReport) -> str:
    if report.shared_memory:
        return "shared memory"
    return "wire, main port" if report.main_port else "wire"


def _describe(link: CheckedLink) -> str:
    report = link.report
    if report.problem:
        return f"{_name(link)}: FAILED: {report.problem}"
    facts = [_path(report), _format_latency(report.latency_seconds)]
    for direction in ("up", "down"):
        speed = getattr(report, f"{direction}_bytes_per_second")
        facts += [f"{format_speed(speed)} {direction}"] if speed else []
    return f"{_name(link)}: {', '.join(facts)}"


def format_table(links: Sequence[CheckedLink], slow: Iterable[int]) -> list[str]:
    """Return the table of links, line by line.

    Args:
        links: the links.
        slow: indices of the slow ones.
    """
    rows = [_HEADINGS]
    for index, link in enumerate(links):
        report = link.report
        result = "slow" if index in slow else "passed"
        if report.problem:
            result = "WRONG VALUES" if report.wrong_bits else "FAILED"
        rows.append(
            (
                _name(link),
                _path(report) if report.latency_seconds else "-",
                _format_latency(report.latency_seconds) if report.latency_seconds else "-",
                format_speed(report.up_bytes_per_second) if report.up_bytes_per_second else "-",
                format_speed(report.down_bytes_per_second) if report.down_bytes_per_second else "-",
                result,
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]


def _mesh_passed(report: MeshReport) -> bool:
    return not report.problem and not any(axis.wrong_count for axis in report.axes)


def _mesh_line(checked: CheckedMesh) -> str:
    report = checked.report
    if report.problem:
        return f"mesh of worker {checked.name}: FAILED: {report.problem}"
    axes = "; ".join(
        f"axis {each.axis}, {each.devices} devices: {_axis_outcome(each)}" for each in report.axes
    )
    shape = [report.rows, report.columns]
    return f"mesh of worker {checked.name}: {shape} on {report.backend}: {axes or 'one device, no links to check'}"


def _axis_outcome(axis: AxisReport) -> str:
    return describe_outcome(axis.seconds, list(axis.wrong), axis.wrong_count)


def _mesh_fields(checked: CheckedMesh) -> dict[str, Any]:
    report = checked.report
    return {
        "worker": checked.name,
        "passed": _mesh_passed(report),
        "mesh_shape": [report.rows, report.columns] if report.rows else None,
        "backend": report.backend or None,
        "arch": report.arch or None,
        "axes": [
            {
                "axis": each.axis,
                "devices": each.devices,
                "passed": not each.wrong_count,
                "seconds": each.seconds,
                "wrong": list(each.wrong),
            }
            for each in report.axes
        ],
        "problem": report.problem or None,
    }


def _link_fields(link: CheckedLink, slow: bool) -> dict[str, Any]:
    report = link.report
    return {
        "from": link.name,
        "from_role": link.role,
        "to": link.peer,
        "to_role": link.peer_role,
        "passed": not report.problem,
        "slow": slow,
        "wrong_values": report.wrong_bits,
        "shared_memory": report.shared_memory,
        "main_port": report.main_port,
        "latency_seconds": report.latency_seconds or None,
        "up_bytes_per_second": report.up_bytes_per_second or None,
        "down_bytes_per_second": report.down_bytes_per_second or None,
        "problem": report.problem or None,
    }


def _raise_first_problem(meshes: Sequence[CheckedMesh], links: Sequence[CheckedLink]) -> None:
    """Raise the first problem with what to do about it, and the number of others.

    Raises:
        Failed: there is a problem.
    """
    if not meshes and not links:
        return
    more = len(meshes) + len(links) - 1
    others = f" (and {more} more)" if more else ""
    if meshes:
        advice = (
            "look at that worker's log, and run `tiermesh check --mesh` on its host"
            if meshes[0].report.problem
            else "reset its devices with `tt-smi -r`, and run `tiermesh check --mesh` on its host"
        )
        raise Failed(f"{_mesh_line(meshes[0])}{others}; {advice}")
    advice = (
        "replace its cable or network card, or test the memory of both hosts: the bytes that arrive differ"
        if links[0].report.wrong_bits
        else "look at the logs of both ends"
    )
    raise Failed(f"{_describe(links[0])}{others}; {advice}")
