"""File descriptors of a daemon: how many connections its ports may have, so that enough are left for files."""

from __future__ import annotations

import dataclasses
import resource
from dataclasses import dataclass

from services.runtime.metrics_server import METRICS_LIMITS
from services.transport.ports.admission import ConnectionLimits

_LARGEST_LIMIT = 65536
DESCRIPTORS_OF_A_MAIN_CONNECTION = 3
"""One for the caller, and two for the way from the port to grpcio."""


@dataclass(frozen=True)
class PortLimits:
    """Limits of a daemon's ports.

    Attributes:
        main: limits of the main port.
        tensors: limits of the tensor port.
        metrics: limits of the metrics port.
    """

    main: ConnectionLimits
    tensors: ConnectionLimits
    metrics: ConnectionLimits


def raise_descriptor_limit() -> int:
    """Raise this process's limit of open files as far as the system allows, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _LARGEST_LIMIT if hard == resource.RLIM_INFINITY else min(hard, _LARGEST_LIMIT)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return _LARGEST_LIMIT if soft == resource.RLIM_INFINITY else soft


def limit_ports(descriptors: int) -> PortLimits:
    """Return the limits of ports that together take no more than half of the descriptors.

    The other half is for the queue, logs, checkpoints, shared memory and own connections.

    Args:
        descriptors: the process's limit of open files.
    """
    standard = ConnectionLimits()
    main = min(standard.connections, descriptors // 4 // DESCRIPTORS_OF_A_MAIN_CONNECTION)
    metrics = min(METRICS_LIMITS.connections, descriptors // 16)
    tensors = min(standard.connections, descriptors // 4 - metrics)
    return PortLimits(
        dataclasses.replace(standard, connections=main),
        dataclasses.replace(standard, connections=tensors),
        dataclasses.replace(METRICS_LIMITS, connections=metrics),
    )
