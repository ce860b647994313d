"""Rankfiles: the host of each rank, in any order of lines, and each wrong line refused by file and line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.launch.rankfile import parse_rankfile, read_rankfile
from services.errors import Refused


def test_forms_that_openmpi_takes(tmp_path: Path) -> None:
    file = tmp_path / "rankfile"
    file.write_text(
        "# ours\nrank 1=b slot=0:1\n\nrank  0 = a slots=0-3 # first\nRANK 2=10.0.0.3 slot=1,2\nrank 3=a slot=*\n"
    )
    assert read_rankfile(file) == ("a", "b", "10.0.0.3", "a")


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("rank 0=a slot=0\nrank 0=b slot=0", ["file line 2", "rank 0 is given twice"]),
        ("rank 0=a slot=0\nrank 2=b slot=0", ["file: rank 1 is missing", "0 to 2", "rank 1=HOST slot=0"]),
        ("rank 1=a slot=0", ["rank 0 is missing"]),
        ("rank 0=a", ["line 1", "rank N=HOST slot=S"]),
        ("rank 0=+n0 slot=0", ["line 1", "'+n0' is no host name"]),
        ("rank 0=-oX slot=0", ["'-oX' is no host name"]),
        ("rank 1024=a slot=0", ["rank 1024", "at most 1023"]),
        ("rank ٣=a slot=0", ["rank N=HOST slot=S"]),
        ("loudbox-01 slots=1", ["line 1", "rank N=HOST slot=S"]),
        ("", ["file: no rank found"]),
    ],
)
def test_what_is_refused(text: str, facts: list[str]) -> None:
    with pytest.raises(Refused) as refused:
        parse_rankfile(text, "file")
    line = str(refused.value)
    assert all(fact in line for fact in facts), line
    assert len(line) <= 300
    assert line.isprintable()


@given(st.permutations(range(7)))
def test_lines_may_come_in_any_order(ranks: list[int]) -> None:
    text = "\n".join(f"rank {rank}=host-{rank} slot=0" for rank in ranks)
    assert parse_rankfile(text, "file") == tuple(f"host-{rank}" for rank in range(7))


@given(st.text(max_size=120) | st.from_regex(r"rank \d{1,5}=[a-z+-]{1,5} slots?=\S{1,4}", fullmatch=True))
def test_any_text_gives_hosts_or_one_line(text: str) -> None:
    try:
        hosts = parse_rankfile(text, "file")
    except Refused as refused:
        assert str(refused).isprintable()
    else:
        assert all(not host.startswith("-") for host in hosts)
