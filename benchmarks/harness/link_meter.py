"""Measure a host's link: the throughput of plain sockets, and the time of a phase's payload, by interface counters."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from benchmarks.harness.hosts import Host
from services.errors import Failed

INTERVAL_SECONDS = 0.004
PACKET_HEADER_BYTES = 14 + 20 + 32
"""Bytes of the headers of Ethernet, IPv4, and TCP with time stamps. An unsegmented packet counts as one packet."""
FIRST_BYTES = 64 * 1024
"""A phase has started when this much has arrived, which is more than acknowledgements and control messages."""
RAW_LINK = Path(__file__).parents[1] / "peers" / "raw_link.py"
RAW_BYTES = 64 * 1024 * 1024
"""Bytes that each plain socket sends."""
RAW_TRIES = 3
"""Number of tries. The best one counts, since a sender that starts late leaves the link idle."""
_RAW_SECONDS = 60.0


@dataclass(frozen=True)
class Counters:
    """Counters of an interface at one moment.

    Attributes:
        seconds: moment on the clock of `time.perf_counter`.
        received: bytes of TCP streams received so far.
        sent: bytes of TCP streams sent so far.
    """

    seconds: float
    received: int
    sent: int


def parse(seconds: float, text: str, device: str) -> Counters:
    """Return the counters of one device from the text of /proc/net/dev.

    Raises:
        ValueError: the text has no such device.
    """
    for line in text.splitlines():
        name, colon, numbers = line.partition(":")
        if colon and name.strip() == device:
            fields = [int(field) for field in numbers.split()]
            received, sent = (fields[at] - PACKET_HEADER_BYTES * fields[at + 1] for at in (0, 8))
            return Counters(seconds, received, sent)
    raise ValueError(f"no device {device!r} in {text!r}")


class LinkMeter:
    """A context manager that reads the network counters of a process every few milliseconds.

    Args:
        process: id of a process in that network namespace.
        device: name of the interface there.

    Attributes:
        readings: readings so far, in order of time.
    """

    def __init__(self, process: int, device: str = "eth0") -> None:
        self._file = Path(f"/proc/{process}/net/dev")
        self._device = device
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="link meter")
        self.readings: list[Counters] = []

    def __enter__(self) -> LinkMeter:
        self.readings = [self.read()]
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self.readings.append(self.read())

    def read(self) -> Counters:
        """Read the counters now."""
        return parse(time.perf_counter(), self._file.read_text(), self._device)

    def _run(self) -> None:
        while not self._ended.wait(INTERVAL_SECONDS):
            self.readings.append(self.read())


@dataclass(frozen=True)
class Phase:
    """Time in which a phase's payload passed the link, from its first bytes to its last."""

    first_seconds: float
    last_seconds: float

    @property
    def seconds(self) -> float:
        """Duration of the phase."""
        return self.last_seconds - self.first_seconds


def phase_of(moments: Iterable[tuple[float, int]], size_bytes: int) -> Phase:
    """Return the phase in which `size_bytes` pass.

    Args:
        moments: pairs of seconds and bytes of one direction so far, in order. The first precedes the phase.
        size_bytes: bytes of the phase's payload.

    Returns:
        The phase from the last moment before `FIRST_BYTES` have passed to the first one after all have.

    Raises:
        ValueError: fewer bytes passed.
    """
    start: int | None = None
    first = before = 0.0
    begun = False
    for seconds, count in moments:
        start = count if start is None else start
        if not begun and count - start >= FIRST_BYTES:
            first, begun = before, True
        if count - start >= size_bytes:
            return Phase(first, seconds)
        before = seconds
    raise ValueError(f"fewer than {size_bytes} bytes went through")


def raw_share(flows: Sequence[tuple[Host, Host]], bits_per_second: float) -> float:
    """Return the share of a receiver's link that plain sockets fill, with all flows at once.

    Args:
        flows: sender and receiver of each flow.
        bits_per_second: rate of each link.

    Returns:
        The share of the receiver that got least, in the best of a few tries.

    Raises:
        Failed: a transfer failed.
    """
    return max(_raw_share(flows, bits_per_second) for _ in range(RAW_TRIES))


def _raw_share(flows: Sequence[tuple[Host, Host]], bits_per_second: float) -> float:
    senders: dict[Host, list[Host]] = {}
    for sender, receiver in flows:
        senders.setdefault(receiver, []).append(sender)
    python = [sys.executable, str(RAW_LINK)]
    with ExitStack() as stack:

        def start(host: Host, *arguments: str) -> subprocess.Popen[str]:
            process = stack.enter_context(
                subprocess.Popen(host.command([*python, *arguments]), stdout=subprocess.PIPE, text=True)
            )
            stack.callback(process.kill)
            return process

        size = str(RAW_BYTES)
        receiving = {host: start(host, "receive", str(len(of)), size) for host, of in senders.items()}
        for receiver, process in receiving.items():
            assert process.stdout is not None
            port = process.stdout.readline().strip()
            for sender in senders[receiver]:
                start(sender, "send", receiver.address, port, size)
        shares = []
        for receiver, process in receiving.items():
            try:
                output, _ = process.communicate(timeout=_RAW_SECONDS)
            except subprocess.TimeoutExpired:
                raise Failed(f"raw_link: not done within {_RAW_SECONDS:g} s") from None
            if process.returncode != 0:
                raise Failed(f"raw_link: exit code {process.returncode}")
            bits = 8 * RAW_BYTES * len(senders[receiver])
            shares.append(bits / bits_per_second / float(json.loads(output)))
    return min(shares)
