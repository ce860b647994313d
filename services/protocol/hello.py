"""Hello, the first message of a control stream in each direction: how it is made, and when it is refused. Pure.

A Hello says which versions of the protocol its sender speaks, from `protocol_min` to `protocol`. Two peers agree on the
highest version that both speak.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, NamedTuple

from protos.cluster_pb2 import Hello, Welcome
from services.errors import Refusal
from services.names import NAME_FORM, is_name
from services.printable import printable
from services.protocol.features import name_features
from services.protocol.versions import LAST_EPOCH, MAX_EPOCH_LEAP, PROTOCOL_MIN, PROTOCOL_VERSION
from services.version import tiermesh_version

_NAME_CHARACTERS = 60
_SHOWN_DIGITS = 8
_CLUSTER = re.compile(r"[0-9a-f]{16}")
_HOST = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(/[0-9]{1,20})?")


class Role(str, Enum):
    """Roles that a Hello may name."""

    WORKER = "worker"
    AGGREGATOR = "aggregator"
    OPTIMIZER = "optimizer"


class HelloFault(Enum):
    """Kind of fault of a Hello."""

    PROTOCOL = "protocol"
    ROLE = "role"
    NAME = "name"
    SHARD = "shard"
    CLUSTER = "cluster"
    MEMORY = "memory"
    EPOCH_AHEAD = "epoch ahead"
    DEPOSED = "deposed"
    TWIN = "twin"


@dataclass(frozen=True)
class HelloRefusal(Refusal):
    """Reason why a Hello is refused.

    Attributes:
        fault: kind of fault.
        obeyed_epoch: newer epoch of the same cluster that was obeyed, which the aggregator may have to exceed since its
            queue was restored from a backup; 0 if there is none, or if its aggregator is at work.
    """

    fault: HelloFault
    obeyed_epoch: int = 0


class ProtocolRange(NamedTuple):
    """Versions of the protocol that a process speaks, both included."""

    oldest: int
    newest: int

    def __str__(self) -> str:
        return str(self.newest) if self.oldest == self.newest else f"{self.oldest} to {self.newest}"

    def agree(self, other: ProtocolRange) -> int | None:
        """Return the highest version that both speak; None if there is none."""
        highest = min(self.newest, other.newest)
        return highest if highest >= max(self.oldest, other.oldest) else None


PROTOCOL_RANGE = ProtocolRange(PROTOCOL_MIN, PROTOCOL_VERSION)
"""Versions that this process speaks."""


@dataclass(frozen=True)
class HelloExpectations:
    """Values that a receiver expects in a Hello.

    Attributes:
        receiver: the receiver as people call it: `aggregator`, `optimizer` or `shard`.
        sender: role of the sender.
        epoch: epoch of the receiver. A worker must not have obeyed a newer one, an aggregator not have an older one.
        shard: index and count of the shard that the sender must name; None accepts each index below its count.
        cluster: identity of the receiver's cluster; empty if it belongs to none yet.
        state_dir: where the receiver keeps that identity, for people.
        leader: incarnation of the aggregator of `epoch` that the receiver is connected to now; empty for none.
        protocol: versions that the receiver speaks.
    """

    receiver: str
    sender: Role
    epoch: int = 0
    shard: tuple[int, int] | None = (0, 1)
    cluster: str = ""
    state_dir: str = ""
    leader: str = ""
    protocol: ProtocolRange = PROTOCOL_RANGE


def make_hello(role: Role, name: str, **fields: Any) -> Hello:
    """Return the Hello of this process.

    Args:
        role: role of this process.
        name: its name, for people.
        fields: further fields of the message.
    """
    return Hello(
        protocol=PROTOCOL_VERSION,
        protocol_min=PROTOCOL_MIN,
        features=name_features(),
        version=own_version(),
        role=role.value,
        name=name,
        **{"shard_count": 1, **fields},
    )


@cache
def own_version() -> str:
    """Return the version that this process started with; an upgrade replaces the installed one while it runs."""
    return tiermesh_version()


def is_cluster(text: str) -> bool:
    """Return whether a text is the identity of a cluster."""
    return _CLUSTER.fullmatch(text) is not None


def is_host(text: str) -> bool:
    """Return whether a text is the id of what has a process's memory: `BOOT_ID` or `BOOT_ID/INODE`."""
    return _HOST.fullmatch(text) is not None


def protocol_range(hello: Hello) -> ProtocolRange:
    """Return the versions that a Hello's sender speaks."""
    return ProtocolRange(hello.protocol_min, hello.protocol)


def check_hello(hello: Hello, expected: HelloExpectations) -> HelloRefusal | None:
    """Return the first reason why a Hello is refused; None if it is accepted."""
    return next(_faults(hello, expected), None)


def _faults(hello: Hello, expected: HelloExpectations) -> Iterator[HelloRefusal]:
    name, own = printable(hello.name, _NAME_CHARACTERS) or "without a name", expected.receiver
    peer = f"{expected.sender.value} {name}"

    spoken = protocol_range(hello)
    if expected.protocol.agree(spoken) is None:
        old = peer if spoken.newest < expected.protocol.oldest else f"this {own}"
        yield HelloRefusal(
            f"{peer} speaks protocol {spoken}, this {own} {expected.protocol}; upgrade {old} to the other's version of "
            "Tiermesh",
            HelloFault.PROTOCOL,
        )
    if hello.role != expected.sender.value:
        yield HelloRefusal(
            f"{name} has role {hello.role[:20]!r}, expected {expected.sender.value!r}; only {expected.sender.value}s "
            f"connect to {_article(own)}",
            HelloFault.ROLE,
        )
    if not is_name(hello.name):
        yield HelloRefusal(
            f"{peer} has an unusable name, expected {NAME_FORM}; give it another --name", HelloFault.NAME
        )
    index, count = hello.shard_index, hello.shard_count or 1
    if index >= count or expected.shard not in (None, (index, count)):
        wanted = "an index below the count"
        if expected.shard is not None:
            wanted = "shard {} of {}".format(*expected.shard)
            wanted += "; list each process once in --shards" if own == "shard" else ""
        yield HelloRefusal(f"{peer} asks for shard {index} of {count}; expected {wanted}", HelloFault.SHARD)
    if hello.cluster and not is_cluster(hello.cluster):
        yield HelloRefusal(
            f"{peer} names cluster {printable(hello.cluster, 40)!r}, expected 16 hexadecimal digits",
            HelloFault.CLUSTER,
        )
    needs_cluster = expected.sender is Role.AGGREGATOR or hello.cluster
    if expected.cluster and hello.cluster != expected.cluster and needs_cluster:
        yield HelloRefusal(printable(_describe_stranger(hello, expected, peer)), HelloFault.CLUSTER)
    if hello.host and not is_host(hello.host):
        yield HelloRefusal(
            f"{peer} names host {printable(hello.host, 40)!r}, expected the boot id of its kernel, or none",
            HelloFault.MEMORY,
        )
    if hello.memory_free_bytes > hello.memory_bytes:
        yield HelloRefusal(
            f"{peer} has {hello.memory_free_bytes} bytes of memory free, expected at most all {hello.memory_bytes}; "
            "correct what it sends",
            HelloFault.MEMORY,
        )
    if hello.epoch_seen > LAST_EPOCH:
        yield HelloRefusal(
            f"{peer} has epoch {hello.epoch_seen}, expected at most {LAST_EPOCH}; restore the aggregator's job queue "
            "from a backup, since its epoch is damaged",
            HelloFault.EPOCH_AHEAD,
        )
    if expected.sender is Role.AGGREGATOR and 0 < expected.epoch < hello.epoch_seen - MAX_EPOCH_LEAP:
        # Once it was obeyed, no aggregator could exceed it: none skips more epochs at once.
        yield HelloRefusal(
            f"{peer} has epoch {hello.epoch_seen}, this {own} obeys epoch {expected.epoch}, expected at most "
            f"{MAX_EPOCH_LEAP} more; stop that aggregator, since its epoch is wrong",
            HelloFault.EPOCH_AHEAD,
        )
    if expected.sender is Role.AGGREGATOR and hello.epoch_seen < expected.epoch:
        yield HelloRefusal(
            f"{peer} has epoch {hello.epoch_seen}, this {own} obeys epoch {expected.epoch}: a newer aggregator has "
            "taken over; stop this one",
            HelloFault.DEPOSED,
            obeyed_epoch=_near(expected.epoch, hello.epoch_seen)
            if expected.cluster and not expected.leader
            else 0,
        )
    if hello.epoch_seen == expected.epoch and expected.leader not in ("", hello.incarnation):
        # Each start of an aggregator raises the epoch in its queue, so this one has a copy of that queue.
        yield HelloRefusal(
            f"{peer} has epoch {hello.epoch_seen}, as another aggregator has that this {own} obeys: one runs on a copy "
            "of the other's --state-dir; stop one, or restart this one to let it take over",
            HelloFault.TWIN,
        )
    if expected.sender is Role.WORKER and hello.epoch_seen > expected.epoch:
        yield HelloRefusal(
            f"{peer} has obeyed epoch {hello.epoch_seen}, this {own}'s epoch is {expected.epoch}: a newer aggregator "
            "has taken over; stop this one",
            HelloFault.EPOCH_AHEAD,
            obeyed_epoch=_near(hello.epoch_seen, expected.epoch) if hello.cluster else 0,
        )


def _near(obeyed: int, own: int) -> int:
    """Return an obeyed epoch; 0 if it is so far above the aggregator's own that it must be wrong."""
    return obeyed if obeyed - own <= MAX_EPOCH_LEAP else 0


def _describe_stranger(hello: Hello, expected: HelloExpectations, peer: str) -> str:
    """Return what to do about a peer of another cluster."""
    own = expected.receiver
    theirs = hello.cluster[:_SHOWN_DIGITS] or "none"
    clusters = f"{peer} belongs to cluster {theirs}, this {own} to {expected.cluster[:_SHOWN_DIGITS]}"
    kept = f" (--state-dir {expected.state_dir})" if expected.state_dir else ""
    if expected.sender is Role.AGGREGATOR:
        other, moved, cluster = f"give it another {own}", "this one", hello.cluster or "ID"
    else:
        other, moved, cluster = "give it its own aggregator's address", "the worker", expected.cluster
    return f"{clusters}{kept}; {other}, or stop {moved} and run `tiermesh cluster adopt {cluster} --state-dir DIR`"


def check_welcome(welcome: Welcome, epoch: int, obeyed_epoch: int, cluster: str = "") -> Refusal | None:
    """Return why a worker refuses an aggregator's Welcome; None if it accepts it.

    Args:
        welcome: the answer to the worker's Hello.
        epoch: the aggregator's epoch.
        obeyed_epoch: the newest epoch that the worker has obeyed.
        cluster: the cluster that it belongs to; empty before its first Welcome.
    """
    name = printable(welcome.name, _NAME_CHARACTERS)
    if not PROTOCOL_MIN <= welcome.protocol <= PROTOCOL_VERSION:
        return Refusal(
            f"aggregator {name} has chosen protocol {welcome.protocol}, this worker speaks {PROTOCOL_RANGE}; install "
            "the same version of Tiermesh on both"
        )
    if cluster and welcome.cluster != cluster:
        return Refusal(
            f"aggregator {name} belongs to cluster {printable(welcome.cluster, _SHOWN_DIGITS)}, this worker to "
            f"{cluster[:_SHOWN_DIGITS]}; stop the worker and run `tiermesh cluster adopt`"
        )
    if epoch < obeyed_epoch:
        return Refusal(
            f"aggregator {name} has epoch {epoch}, expected at least {obeyed_epoch}: a newer aggregator has taken over"
        )
    return None


def _article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
