"""Limits of a port's connections, without sockets."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.transport.ports.admission import Admission, ConnectionLimits, Refusal, Ticket

LIMITS = ConnectionLimits(
    connections=8,
    pending=6,
    pending_by_address=3,
    opened_by_address=5,
    opened_per_second=2.0,
    violation_cost=4,
)


@dataclass
class Port:
    """A port with a clock of its own."""

    limits: ConnectionLimits = LIMITS
    now: float = 100.0
    admission: Admission = field(init=False)

    def __post_init__(self) -> None:
        self.admission = Admission(self.limits, lambda: self.now)

    def open(self, address: str = "192.0.2.1") -> Ticket:
        ticket = self.admission.admit(address)
        assert isinstance(ticket, Ticket), ticket
        return ticket


def test_an_address_has_few_pending_connections_and_many_confirmed_ones() -> None:
    port = Port()
    for _ in range(5):
        port.open().confirm()
    for _ in range(3):
        port.open()
    assert port.admission.open == 8
    assert port.admission.admit("192.0.2.1") is Refusal.ALL
    assert Port(LIMITS).open().pending


def test_each_limit_has_its_reason() -> None:
    port = Port()
    tickets = [port.open() for _ in range(3)]
    assert port.admission.admit("192.0.2.1") is Refusal.ADDRESS
    tickets += [port.open("192.0.2.2") for _ in range(3)]
    assert port.admission.admit("192.0.2.3") is Refusal.PENDING
    for ticket in tickets:
        ticket.close()
        ticket.close()
    assert port.admission.open == 0
    for _ in range(2):
        port.open().close()
    assert port.admission.admit("192.0.2.1") is Refusal.RATE
    port.now += 0.5
    port.open().close()
    assert port.admission.admit("192.0.2.1") is Refusal.RATE


def test_a_violation_costs_more_than_a_connection_but_not_from_a_confirmed_peer() -> None:
    port = Port()
    ticket = port.open()
    ticket.violated()
    ticket.close()
    assert port.admission.admit("192.0.2.1") is Refusal.RATE
    port.open("192.0.2.2")
    confirmed = port.open("192.0.2.3")
    confirmed.confirm()
    confirmed.violated()
    port.open("192.0.2.3")


def test_addresses_of_one_ipv6_network_count_as_one() -> None:
    port = Port()
    for number in range(3):
        port.open(f"2001:db8::{number}")
    assert port.admission.admit("2001:db8::ffff") is Refusal.ADDRESS
    port.open("2001:db8:0:1::1")
    port.open("::ffff:192.0.2.1")
    port.open("fe80::1%eth0")


@pytest.mark.parametrize("refusal", Refusal)
@pytest.mark.parametrize("proof", ["a valid Hello", ""])
def test_every_reason_is_one_line_with_its_bound(refusal: Refusal, proof: str) -> None:
    text = ConnectionLimits(proof=proof).describe(refusal)
    assert text.isprintable()
    assert len(text) <= 200


@given(
    actions=st.lists(
        st.tuples(st.sampled_from("occv"), st.integers(0, 9), st.floats(0, 0.4), st.integers(0, 20)),
        max_size=200,
    )
)
def test_any_order_of_events_keeps_the_limits(actions: list[tuple[str, int, float, int]]) -> None:
    port = Port()
    opened: list[tuple[Ticket, str]] = []
    for kind, address, passed, which in actions:
        port.now += passed
        if kind == "o":
            ticket = port.admission.admit(f"192.0.2.{address}")
            if isinstance(ticket, Ticket):
                opened.append((ticket, f"192.0.2.{address}"))
        elif opened:
            ticket, _ = opened[which % len(opened)]
            if kind == "v":
                ticket.violated()
            elif which % 2:
                ticket.confirm()
            else:
                ticket.close()
                opened.pop(which % len(opened))
        pending = [each for each, _ in opened if each.pending]
        assert port.admission.open == len(opened) <= LIMITS.connections
        assert len(pending) <= LIMITS.pending
        for name in {name for _, name in opened}:
            own = [each for each, other in opened if other == name and each.pending]
            assert len(own) <= LIMITS.pending_by_address
    for ticket, _ in opened:
        ticket.close()
    assert port.admission.open == 0
    port.now += 1000
    assert isinstance(port.admission.admit("192.0.2.0"), Ticket)
