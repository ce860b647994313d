"""Admission: the demands that a job, and the cluster, make on workers.

The first worker pins the job's fingerprint. A worker that differs from it could compute other bits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from aggregator.core.membership.members import Member
from protos.cluster_pb2 import Hello
from services.errors import Refusal
from services.printable import printable
from services.protocol.fingerprint import CODE
from services.timeouts import Timeouts


class Admission:
    """The demands of a job on its workers, and the workers that meet them.

    Args:
        exact: whether a worker's fingerprint must match the first one's.
        fingerprint: the pinned fingerprint; empty before there is one.
        timeouts: the cluster's timeouts.
        now: the time, on the monotonic clock.

    Attributes:
        fingerprint: the first worker's fingerprint, which the job pins; empty before there is one.
        layout_hash: the hash of the job's layout; empty before it is known.
    """

    def __init__(
        self, *, exact: bool, fingerprint: Mapping[str, str], timeouts: Timeouts, now: float
    ) -> None:
        self.fingerprint = dict(fingerprint)
        self.layout_hash = ""
        self._exact = exact
        self._unfit_seconds = timeouts.unfit  # long enough for a person to repair a mesh
        self._admitted: set[str] = set()
        self._unfit_since_seconds: float | None = None
        self._expected_until_seconds = now + timeouts.comeback if fingerprint else now

    def check_layout(self, layout_hash: str) -> Refusal | None:
        """Return why a worker that has built this layout can't take part; None if it can."""
        if self.layout_hash in ("", layout_hash):
            return None
        return Refusal(
            f"its model's layout hash {layout_hash[:12]} differs from the job's {self.layout_hash[:12]}; "
            "give all hosts the same version of Tiermesh"
        )

    def check(self, layout_hash: str, fingerprint: Mapping[str, str]) -> Refusal | None:
        """Return why a worker with this layout and fingerprint can't take part; None if it can."""
        return self.check_layout(layout_hash) or self._check_fingerprint(fingerprint)

    def _check_fingerprint(self, fingerprint: Mapping[str, str]) -> Refusal | None:
        differences = self.describe_differences(fingerprint)
        if differences is None or not self._exact or self.find_other_code(fingerprint) is not None:
            return None
        return Refusal(f"fingerprint differs: {differences} (`exact: false` in the job would accept it)")

    def find_other_code(self, fingerprint: Mapping[str, str]) -> str | None:
        """Return the code of a worker that differs from the job's in nothing else; None if it doesn't.

        Such a worker waits: the job is pinned to its code once no worker of the present code is left.
        """
        code = fingerprint.get(CODE, "")
        if not self._exact or not self.fingerprint or code == self.code:
            return None
        return code if {**self.fingerprint, CODE: code} == {**fingerprint, CODE: code} else None

    @property
    def code(self) -> str:
        """The hash of the code that the job is pinned to; empty if it has none."""
        return self.fingerprint.get(CODE, "")

    def describe_differences(self, fingerprint: Mapping[str, str]) -> str | None:
        """Return how a fingerprint differs from the job's, key by key; None if it doesn't."""
        if not self.fingerprint:
            return None
        differences = "; ".join(
            f"{key} is {fingerprint.get(key, 'absent')!r}, the job's is {self.fingerprint.get(key, 'absent')!r}"
            for key in sorted(fingerprint.keys() | self.fingerprint.keys())
            if fingerprint.get(key) != self.fingerprint.get(key)
        )
        return differences or None

    def admit(self, name: str) -> None:
        """Count a worker among those that take part."""
        self._admitted.add(name)

    def missing(self, present: Collection[str]) -> list[str]:
        """Return the admitted workers that are not among the present ones."""
        return sorted(self._admitted - set(present))

    def withdraw(self, name: str) -> None:
        """Count a worker as taking no part, since it is refused or unfit."""
        self._admitted.discard(name)

    def is_hopeless(self, members: Collection[Member], now: float) -> bool:
        """Return whether no worker can take part: all are refused or long unfit, and no other is expected."""
        able = any(member.refusal is None and member.unfit is None for member in members)
        if able or not members or self._admitted or now < self._expected_until_seconds:
            self._unfit_since_seconds = None
            return False
        if self._unfit_since_seconds is None:
            self._unfit_since_seconds = now
        unfit = any(member.unfit is not None for member in members)
        return not unfit or now - self._unfit_since_seconds > self._unfit_seconds


def check_identity(
    hello: Hello, *, members: Iterable[Member], now: float, silent_seconds: float
) -> Refusal | None:
    """Return why a worker can't have its name or its incarnation, because another one has it; None if it can.

    The workers of a row know each other by both.

    Args:
        hello: the worker's first message.
        members: the workers connected already.
        now: the time, on the monotonic clock.
        silent_seconds: time without a message after which a connected worker no longer owns its name.
    """
    for other in members:
        silent = now - other.heard_seconds
        same_name, same_process = other.name == hello.name, other.incarnation == hello.incarnation
        if same_name and not same_process and silent < silent_seconds:
            return Refusal(
                f"a worker named {hello.name} is connected already (heard {silent:.1f} s ago); "
                "give this one another --name"
            )
        if same_process and not same_name:
            process = printable(hello.incarnation, 60)
            return Refusal(
                f"worker {hello.name} says that it is process {process}, which is worker {other.name}; "
                "expected an id of its own"
            )
    return None
