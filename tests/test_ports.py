"""Tests get ports that no other test takes before their servers listen there."""

from __future__ import annotations

from itertools import islice

from tests.support.ports import PORTS, draw_ports, free_port


def test_no_process_gets_a_port_of_another_and_none_twice() -> None:
    workers = 4
    of_each = [list(islice(draw_ports(f"gw{number}", workers), 1000)) for number in range(workers)]
    drawn = [port for ports in of_each for port in ports]
    assert len(set(drawn)) == len(drawn) and set(drawn) <= set(PORTS)


def test_two_ports_of_one_test_differ() -> None:
    assert len({free_port() for _ in range(300)}) == 300
