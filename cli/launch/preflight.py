"""What is checked of every host before anything is started there. Pure."""

from __future__ import annotations

import platform

from cli.launch.agent.protocol import PROTOCOL_VERSION, Facts, Probed
from services.errors import Refusal
from services.printable import printable_path
from services.version import tiermesh_version

FREE_BYTES = 1 << 30
"""Least free space on a host: logs, files of the job, and no checkpoint yet."""
CLOCK_SECONDS = 60.0
"""Largest difference of two clocks. Certificates are valid from five minutes ago."""


def check_facts(host: str, facts: Facts) -> Refusal | None:
    """Return why a host can't take part, from what its agent has told; None if it can.

    Args:
        host: host as errors name it.
        facts: the agent's first message.
    """
    if facts.protocol != PROTOCOL_VERSION or facts.tiermesh != tiermesh_version():
        return Refusal(
            f"host {host}: has Tiermesh {facts.tiermesh}, expected {tiermesh_version()} as here; install that there, "
            "or give --remote PATH"
        )
    own_python = platform.python_version()
    if _minor(facts.python) != _minor(own_python):
        return Refusal(
            f"host {host}: runs Tiermesh in Python {facts.python}, expected {_minor(own_python)} as here; make its "
            "environment with that, or give --remote PATH"
        )
    if facts.free_bytes < FREE_BYTES:
        return Refusal(
            f"host {host}: {facts.free_bytes / 1e6:.0f} MB free at {printable_path(facts.folder)}, expected "
            f"{FREE_BYTES / 1e6:.0f} MB or more; free space, or give another --state-dir"
        )
    return None


def check_probe(host: str, probed: Probed, sent_seconds: float, received_seconds: float) -> Refusal | None:
    """Return why a host can't take part, from its ports and its clock; None if it can.

    Args:
        host: host as errors name it.
        probed: the agent's answer.
        sent_seconds: this host's clock when the question was sent.
        received_seconds: this host's clock when the answer came.
    """
    if probed.used_ports:
        port = probed.used_ports[0]
        return Refusal(
            f"host {host}: port {port} is in use; end what uses it (`ss -ltnp` there shows it), or give another with "
            "--aggregator-port or --optimizer-port"
        )
    # The host read its clock between the two moments.
    ahead = max(probed.unix_seconds - received_seconds, 0.0) - max(sent_seconds - probed.unix_seconds, 0.0)
    if abs(ahead) > CLOCK_SECONDS:
        way = "ahead of" if ahead > 0 else "behind"
        return Refusal(
            f"host {host}: its clock is {abs(ahead):.0f} s {way} this host's, expected at most {CLOCK_SECONDS:.0f} s; "
            "set it, for example by NTP"
        )
    return None


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
