"""Errors of addresses to listen on, which say whether the address may be free later."""

from __future__ import annotations

import os
import socket

from services.errors import TiermeshError
from services.system_errors import system_error

ANOTHER_ADDRESS = "choose another address or port, or port 0 for any free one"


def listen_error(error: OSError | ValueError, place: str, hint: str) -> TiermeshError:
    """Return the error about an address that can't be listened on.

    Args:
        error: error of resolving or binding it; a ValueError comes from a host name that no host can have.
        place: name and text of the address.
        hint: how to fix an address that resolves.
    """
    if isinstance(error, socket.gaierror):
        what, hint = error.strerror or str(error), "correct the name, or give an IP address of this host"
    elif isinstance(error, OSError):
        what = os.strerror(error.errno or 0)
    else:
        what, hint = "no host can have this name", "correct it, or give an IP address of this host"
    return system_error(error, f"{place}: {what.lower()}; {hint}")
