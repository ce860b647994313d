"""Addresses to listen on: checked before they are bound, and errors that say whether they may be free later."""

from __future__ import annotations

import os
import socket

from services.errors import TiermeshError
from services.system_errors import system_error
from services.transport.security import join_address

ANOTHER_ADDRESS = "choose another address or port, or port 0 for any free one"


def check_port_free(name: str, host: str, port: int) -> None:
    """Check that `host`:`port` can be bound, because gRPC's own error does not say why it can't.

    Args:
        name: name of the address, for the error.
        host: host name or IP address.
        port: port; 0 for any.

    Raises:
        NotYet: it is in use, not an address of this host, or its name does not resolve.
        Refused: it is not permitted, or no host can have this name.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, ValueError) as error:
        raise listen_error(error, f"{name} {join_address(host, port)}", ANOTHER_ADDRESS) from None


def listen_error(error: OSError | ValueError, place: str, hint: str) -> TiermeshError:
    """Return the error about an address that can't be listened on.

    Args:
        error: error of resolving or binding it; a ValueError comes from a host name that no host can have.
        place: name and text of the address.
        hint: how to fix it.
    """
    if isinstance(error, OSError):
        code = error.errno or 0  # names that don't resolve have negative codes, with a text of their own
        what = os.strerror(code) if code > 0 else error.strerror or str(error)
    else:
        what = "no host can have this name"
    return system_error(error, f"{place}: {what.lower()}; {hint}")
