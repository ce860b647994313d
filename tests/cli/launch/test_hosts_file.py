"""hosts.txt and `--hosts`: order and slots are read, and each wrong line is refused by file, line and value."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.launch.hosts_file import Host, parse_host_list, parse_hosts, read_hosts
from services.errors import Refused


def test_hosts_in_their_order_with_comments_and_blank_lines() -> None:
    text = (
        "# our rack\n\nloudbox-02.example slots=1\nloudbox-01 slots = 4  # two cards\r\n\t10.0.0.7\tslots=2\n"
    )
    assert parse_hosts(text, "hosts.txt") == (
        Host("loudbox-02.example", 1),
        Host("loudbox-01", 4),
        Host("10.0.0.7", 2),
    )


def test_ipv6_addresses_may_have_brackets() -> None:
    assert parse_hosts("[::1] slots=2\n2001:db8::1 slots=1\n", "hosts.txt") == (
        Host("::1", 2),
        Host("2001:db8::1", 1),
    )


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    (tmp_path / "hosts.txt").write_bytes(b"\xef\xbb\xbfa slots=1\r\n")
    assert read_hosts(tmp_path / "hosts.txt") == (Host("a", 1),)


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        (
            "a slots=1\nA slots=1",
            ["hosts.txt line 2", "host A is named twice, first in hosts.txt line 1", "slots"],
        ),
        ("a slots=1\nb", ["line 2", "host b has no slots", "write b slots=1"]),
        ("a slots=0", ["line 1", "host a", "'0'", "1 to 1024"]),
        ("a slots=99999999999", ["'99999999999'", "1 to 1024"]),
        ("a slots=-1", ["'-1'"]),
        ("a slots=two", ["'two'"]),
        ("a slots=1 max_slots=2", ["line 1", "max_slots=2", "HOST slots=N"]),
        ("slots=1", ["line 1", "HOST slots=N"]),
        ("-oProxyCommand=x slots=1", ["line 1", "HOST slots=N"]),
        ("-J slots=1", ["line 1", "'-J' is no host name"]),
        ("me@loudbox slots=1", ["'me@loudbox' names a user", "~/.ssh/config"]),
        ("a\x1b[2J slots=1", ["is no host name"]),
        ("fe80::1%eth0 slots=1", ["is no host name"]),
        ("a slots=1024\nb slots=1", ["1025 slots", "at most 1024"]),
        ("# nothing\n", ["no host found", "slots=1"]),
        ("", ["hosts.txt: no host found"]),
    ],
)
def test_what_is_refused(text: str, facts: list[str]) -> None:
    with pytest.raises(Refused) as refused:
        parse_hosts(text, "hosts.txt")
    line = str(refused.value)
    assert all(fact in line for fact in facts), line
    assert len(line) <= 300
    assert line.isprintable()


def test_files_that_are_no_text_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "hosts.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Refused, match="is not text"):
        read_hosts(tmp_path / "hosts.txt")
    with pytest.raises(Refused, match="no such file"):
        read_hosts(tmp_path / "none.txt")
    with pytest.raises(Refused, match="is a device"):
        read_hosts(Path("/dev/zero"))


def test_a_list_of_hosts() -> None:
    assert parse_host_list("a, b:2,,[::1]:3,") == (Host("a", 1), Host("b", 2), Host("::1", 3))


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("a,a", ["--hosts 'a'", "named twice"]),
        ("a:0", ["slots '0'"]),
        ("a:", ["slots ''"]),
        ("a b", ["'a b' is no host name"]),
        (",,", ["no host found"]),
        ("--config", ["'--config' is no host name"]),
        ("::1", ["--hosts '::1'", "[2001:db8::1]:1"]),
        ("[a]:1", ["'[a]' is no host name"]),
        ("a:2000", ["slots '2000'", "1 to 1024"]),
        (" ", ["no host found", "loudbox-01:1,loudbox-02:1"]),
    ],
)
def test_what_a_list_refuses(text: str, facts: list[str]) -> None:
    with pytest.raises(Refused) as refused:
        parse_host_list(text)
    assert all(fact in str(refused.value) for fact in facts), refused.value


@given(st.text(max_size=200))
def test_any_text_gives_hosts_or_one_line(text: str) -> None:
    for parse in (lambda: parse_hosts(text, "hosts.txt"), lambda: parse_host_list(text)):
        try:
            hosts = parse()
        except Refused as refused:
            assert str(refused).isprintable()
        else:
            assert all(not host.name.startswith("-") and host.slots >= 1 for host in hosts)


_names = st.from_regex(r"[a-z][a-z0-9-]{0,8}[a-z0-9]", fullmatch=True)


@given(st.lists(st.tuples(_names, st.integers(1, 9)), min_size=1, max_size=8, unique_by=lambda each: each[0]))
def test_what_is_written_is_read(hosts: list[tuple[str, int]]) -> None:
    wanted = tuple(Host(name, slots) for name, slots in hosts)
    lines = "".join(f"{name} slots={slots}\n" for name, slots in hosts)
    assert parse_hosts(lines, "hosts.txt") == wanted
    assert parse_host_list(",".join(f"{name}:{slots}" for name, slots in hosts)) == wanted
