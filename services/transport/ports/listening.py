"""Errors of addresses to listen on, which say whether the address may be free later."""

from __future__ import annotations

import os

from services.errors import TiermeshError
from services.system_errors import system_error

ANOTHER_ADDRESS = "choose another address or port, or port 0 for any free one"


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
