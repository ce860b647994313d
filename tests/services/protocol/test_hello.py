"""Each Hello that does not fit is refused by name, and peers agree on the newest protocol that both speak."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.cluster_pb2 import Hello, Welcome
from services.protocol.hello import (
    HelloExpectations,
    HelloFault,
    ProtocolRange,
    Role,
    check_hello,
    check_welcome,
    make_hello,
    protocol_range,
)
from services.protocol.versions import LAST_EPOCH, MAX_EPOCH_LEAP, PROTOCOL_MIN, PROTOCOL_VERSION
from tests.support.anything import message
from tests.support.facts import has_facts

LEADER = HelloExpectations("aggregator", Role.WORKER, epoch=3)
FOLLOWER = HelloExpectations("optimizer", Role.AGGREGATOR, epoch=3)
BOOT = "6d6f0a4c-3f3c-4a1e-9c0d-1f2e3d4c5b6a"
SHARD = HelloExpectations("shard", Role.AGGREGATOR, epoch=3, shard=None)


def hello(sender: Role, **changed: Any) -> Hello:
    made = make_hello(sender, "peer", epoch_seen=3)
    for field, value in changed.items():
        setattr(made, field, value)
    return made


@pytest.mark.parametrize(
    ("expected", "changed", "fault", "facts"),
    [
        (LEADER, {"protocol": 4, "protocol_min": 3}, HelloFault.PROTOCOL, "3 to 4 ... 10; upgrade worker peer"),
        (LEADER, {"protocol": 12, "protocol_min": 11}, HelloFault.PROTOCOL, "11 to 12 ... 10; upgrade this aggregator"),
        (LEADER, {"role": "optimizer"}, HelloFault.ROLE, "peer ... 'optimizer' ... 'worker'; ... an aggregator"),
        (LEADER, {"name": ""}, HelloFault.NAME, "worker without a name has an unusable name ... another --name"),
        (LEADER, {"name": "peer "}, HelloFault.NAME, "expected 1 to 64"),
        (LEADER, {"name": "\u0440eer"}, HelloFault.NAME, "expected 1 to 64"),
        (LEADER, {"name": "a\x1b[1m"}, HelloFault.NAME, r"a\x1b[1m has an unusable name"),
        (LEADER, {"name": "../peer"}, HelloFault.NAME, "../peer has an unusable name"),
        (FOLLOWER, {"name": "x" * 300}, HelloFault.NAME, "expected 1 to 64"),
        (LEADER, {"host": "loudbox-1"}, HelloFault.MEMORY, "worker peer names host 'loudbox-1' ... boot id"),
        (FOLLOWER, {"host": f"{BOOT}/x"}, HelloFault.MEMORY, "names host ... expected the boot id"),
        (LEADER, {"memory_bytes": 9, "memory_free_bytes": 10}, HelloFault.MEMORY, "peer has 10 bytes ... all 9;"),
        (LEADER, {"epoch_seen": 4}, HelloFault.EPOCH_AHEAD, "worker peer ... epoch 4 ... 3"),
        (LEADER, {"shard_index": 1, "shard_count": 2}, HelloFault.SHARD, "shard 1 of 2; expected shard 0 of 1"),
        (FOLLOWER, {"role": "worker"}, HelloFault.ROLE, "'worker' ... 'aggregator'; ... an optimizer"),
        (FOLLOWER, {"epoch_seen": 2}, HelloFault.DEPOSED, "aggregator peer ... epoch 2 ... obeys epoch 3"),
        (replace(FOLLOWER, leader="other"), {"incarnation": "one"}, HelloFault.TWIN,
         "aggregator peer has epoch 3 ... another aggregator ... copy ... --state-dir; stop one, or restart this one"),
        (replace(SHARD, leader="other"), {"incarnation": "one"}, HelloFault.TWIN, "this shard obeys"),
        (FOLLOWER, {"epoch_seen": LAST_EPOCH + 1}, HelloFault.EPOCH_AHEAD, f"epoch {LAST_EPOCH + 1} ... {LAST_EPOCH}"),
        (FOLLOWER, {"epoch_seen": 4 + MAX_EPOCH_LEAP}, HelloFault.EPOCH_AHEAD, "epoch 65540 ... 3 ... 65536 more"),
        (SHARD, {"shard_index": 2, "shard_count": 2}, HelloFault.SHARD, "shard 2 of 2; expected an index below"),
        (replace(SHARD, shard=(0, 2)), {"shard_index": 1, "shard_count": 2}, HelloFault.SHARD, "0 of 2; ... --shards"),
    ],
)  # fmt: skip
def test_each_mismatch_is_refused_by_name(
    expected: HelloExpectations, changed: dict[str, Any], fault: HelloFault, facts: str
) -> None:
    refusal = check_hello(hello(expected.sender, **changed), expected)
    assert refusal is not None and refusal.fault is fault
    assert has_facts(refusal.reason, facts), refusal.reason


@pytest.mark.parametrize(
    ("expected", "fitting"),
    [
        (LEADER, {}),
        (LEADER, {"epoch_seen": 0}),
        (LEADER, {"shard_count": 0}),
        (LEADER, {"host": BOOT, "memory_bytes": 9, "memory_free_bytes": 9}),
        (FOLLOWER, {"host": f"{BOOT}/18446744073709551615"}),
        (FOLLOWER, {"epoch_seen": 4}),
        (FOLLOWER, {"epoch_seen": 3 + MAX_EPOCH_LEAP}),
        (replace(FOLLOWER, epoch=0), {"epoch_seen": LAST_EPOCH}),
        (SHARD, {"shard_index": 1, "shard_count": 2}),
        (LEADER, {"protocol_min": 0}),
        (replace(LEADER, protocol=ProtocolRange(3, 5)), {"protocol": 4, "protocol_min": 2}),
        (replace(LEADER, protocol=ProtocolRange(4, 6)), {"protocol": 7, "protocol_min": 5}),
    ],
)
def test_a_hello_that_fits_is_accepted(expected: HelloExpectations, fitting: dict[str, Any]) -> None:
    assert check_hello(hello(expected.sender, **fitting), expected) is None


RANGES = st.tuples(st.integers(1, 9), st.integers(1, 9)).map(lambda pair: ProtocolRange(*sorted(pair)))


@given(RANGES, RANGES)
def test_peers_agree_on_the_highest_common_version(one: ProtocolRange, other: ProtocolRange) -> None:
    spoken = [set(range(each.oldest, each.newest + 1)) for each in (one, other)]
    assert one.agree(other) == other.agree(one) == max(spoken[0] & spoken[1], default=None)


def test_a_hello_says_which_versions_this_program_speaks() -> None:
    assert protocol_range(make_hello(Role.WORKER, "w")) == (PROTOCOL_MIN, PROTOCOL_VERSION)


@given(message(Hello), st.sampled_from([LEADER, FOLLOWER, SHARD]))
def test_any_hello_is_accepted_or_refused_in_a_short_line(
    anything: Hello, expected: HelloExpectations
) -> None:
    refusal = check_hello(anything, expected)
    assert refusal is None or (len(refusal.reason) <= 300 and refusal.reason.isprintable())


@pytest.mark.parametrize(
    ("welcome", "epoch", "facts"),
    [
        (Welcome(name="a", protocol=PROTOCOL_VERSION), 2, "aggregator a ... epoch 2, expected at least 3"),
        (
            Welcome(name="a", protocol=PROTOCOL_VERSION + 1),
            3,
            f"aggregator a ... protocol {PROTOCOL_VERSION + 1}",
        ),
        (Welcome(name="a"), 3, "aggregator a ... protocol 0"),
    ],
)
def test_a_welcome_that_does_not_fit_is_refused(welcome: Welcome, epoch: int, facts: str) -> None:
    assert has_facts(str(check_welcome(welcome, epoch, obeyed_epoch=3)), facts)
    assert check_welcome(Welcome(protocol=PROTOCOL_VERSION), 3, obeyed_epoch=3) is None
