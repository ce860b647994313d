"""The hosts of a launch: OpenMPI's hostfile `hosts.txt`, or the list of `--hosts`."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cli.launch.text_lines import TextLine, parse_lines, read_lines
from services.errors import Refused
from services.printable import printable, printable_path

MOST_RANKS = 1024
"""Largest number of ranks, and of slots of all hosts together."""

_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,253}[A-Za-z0-9_])?")
_LINE = re.compile(r"(?P<name>[^\s=]+)(?:\s+slots\s*=\s*(?P<slots>\S+))?")
_ITEM = re.compile(r"(?P<name>\[[^\]]*\]|[^:\[\]]*)(?::(?P<slots>[^:]*))?")
_BRACKETED = re.compile(r"\[([^\[\]]*)\]")


@dataclass(frozen=True)
class Host:
    """A host of a launch.

    Attributes:
        name: host name or IP address, as OpenSSH takes it.
        slots: number of ranks that may run there.
    """

    name: str
    slots: int


def read_hosts(path: Path) -> tuple[Host, ...]:
    """Return the hosts of a hostfile, in its order.

    Raises:
        Refused: the file can't be read, or has a line that isn't `HOST slots=N`, or a host twice.
    """
    return _parse(read_lines(path, "hosts"), printable_path(path))


def parse_hosts(text: str, source: str) -> tuple[Host, ...]:
    """Return the hosts of a hostfile's text; see `read_hosts`.

    Args:
        text: lines `HOST slots=N`; the rest of a line after `#` is a comment.
        source: name of the text in errors.
    """
    return _parse(parse_lines(text, source), source)


def parse_host_list(text: str) -> tuple[Host, ...]:
    """Return the hosts of a list `HOST[:SLOTS],...` as `--hosts` has it; a host without slots has one.

    Raises:
        Refused: a host has a bad name or number of slots, or is named twice.
    """
    hosts = []
    for item in filter(None, map(str.strip, text.split(","))):
        found = _ITEM.fullmatch(item)
        place = f"--hosts {printable(item, 80)!r}"
        if found is None:
            raise Refused(
                f"{place}: expected HOST or HOST:SLOTS, such as loudbox-01:1 or [2001:db8::1]:1; correct it"
            )
        slots = "1" if found["slots"] is None else found["slots"]
        hosts.append((place, Host(check_host_name(found["name"], place), _read_slots(slots, place))))
    if not hosts:
        raise Refused("--hosts: no host found; give a list such as loudbox-01:1,loudbox-02:1, or a file")
    return _check_all(hosts, "--hosts")


def check_host_name(name: str, place: str) -> str:
    """Return a host's name that has the right form.

    Args:
        name: host name or IP address; one of IPv6 may have brackets, which are removed.
        place: where it is written, for the error.

    Raises:
        Refused: it is neither. A name that OpenSSH would take for an option is refused here too.
    """
    bracketed = _BRACKETED.fullmatch(name)
    if bracketed and _is_address(bracketed[1]):
        return bracketed[1]
    if _NAME.fullmatch(name) or _is_address(name):
        return name
    if "@" in name:
        raise Refused(
            f"{place}: {printable(name, 60)!r} names a user, expected a host name alone; set `User` for that host in "
            "~/.ssh/config"
        )
    raise Refused(
        f"{place}: {printable(name, 60)!r} is no host name, expected letters, digits, '.', '-', '_', or an IP address"
    )


def _parse(lines: Iterable[TextLine], source: str) -> tuple[Host, ...]:
    hosts = []
    for line in lines:
        found = _LINE.fullmatch(line.text)
        if found is None:
            raise Refused(
                f"{line.place}: {printable(line.text, 60)!r} found, expected HOST slots=N and nothing else; write for "
                "example loudbox-01 slots=1"
            )
        name = check_host_name(found["name"], line.place)
        if found["slots"] is None:
            raise Refused(f"{line.place}: host {name} has no slots; write {name} slots=1")
        hosts.append((line.place, Host(name, _read_slots(found["slots"], f"{line.place}: host {name}"))))
    if not hosts:
        raise Refused(f"{source}: no host found; write one a line, such as loudbox-01 slots=1")
    return _check_all(hosts, source)


def _check_all(hosts: list[tuple[str, Host]], source: str) -> tuple[Host, ...]:
    """Return the hosts; raise Refused for one that is named twice, and for too many slots."""
    places: dict[str, str] = {}
    for place, host in hosts:
        folded = host.name.lower()
        if folded in places:
            raise Refused(
                f"{place}: host {printable(host.name, 60)} is named twice, first in {places[folded]}; remove one and "
                "write the number of its ranks as slots"
            )
        places[folded] = place
    slots = sum(host.slots for _, host in hosts)
    if slots > MOST_RANKS:
        raise Refused(f"{source}: {slots} slots, expected at most {MOST_RANKS} together; lower them")
    return tuple(host for _, host in hosts)


def _read_slots(text: str, place: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= MOST_RANKS):
        raise Refused(
            f"{place}: slots {printable(text, 20)!r} given, expected a number of ranks, 1 to {MOST_RANKS}; correct it"
        )
    return int(text)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return "%" not in name
