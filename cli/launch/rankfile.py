"""OpenMPI's rankfiles, which name the host of each rank."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from cli.launch.hosts_file import MOST_RANKS, check_host_name
from cli.launch.text_lines import TextLine, parse_lines, read_lines
from services.errors import Refused
from services.printable import printable, printable_path

_LINE = re.compile(
    r"rank\s+(?P<rank>\d{1,9})\s*=\s*(?P<host>\S+)\s+slots?\s*=\s*(?P<slots>[\d:,*-]+)",
    re.ASCII | re.IGNORECASE,
)


def read_rankfile(path: Path) -> tuple[str, ...]:
    """Return the host of each rank by a rankfile. Its slots are not used: a daemon takes what cores there are.

    Raises:
        Refused: the file can't be read, has a line that isn't `rank N=HOST slot=S`, or its ranks are not 0 to N-1.
    """
    return _parse(read_lines(path, "rankfile"), printable_path(path))


def parse_rankfile(text: str, source: str) -> tuple[str, ...]:
    """Return the host of each rank by the text of a rankfile; see `read_rankfile`.

    Args:
        text: lines `rank N=HOST slot=S`; the rest of a line after `#` is a comment.
        source: name of the text in errors.
    """
    return _parse(parse_lines(text, source), source)


def _parse(lines: Iterable[TextLine], source: str) -> tuple[str, ...]:
    hosts: dict[int, str] = {}
    for line in lines:
        found = _LINE.fullmatch(line.text)
        if found is None:
            raise Refused(
                f"{line.place}: {printable(line.text, 60)!r} found, expected rank N=HOST slot=S; write for example "
                "rank 0=loudbox-01 slot=0"
            )
        rank = int(found["rank"])
        if rank >= MOST_RANKS:
            raise Refused(f"{line.place}: rank {rank} given, expected at most {MOST_RANKS - 1}; lower it")
        if rank in hosts:
            raise Refused(f"{line.place}: rank {rank} is given twice, expected once; remove one of its lines")
        hosts[rank] = check_host_name(found["host"], line.place)
    if not hosts:
        raise Refused(f"{source}: no rank found; write one a line, such as rank 0=loudbox-01 slot=0")
    missing = sorted(set(range(len(hosts))) - set(hosts))
    if missing:
        raise Refused(
            f"{source}: rank {missing[0]} is missing, expected ranks 0 to {max(hosts)}; add a line rank "
            f"{missing[0]}=HOST slot=0"
        )
    return tuple(hosts[rank] for rank in sorted(hosts))
