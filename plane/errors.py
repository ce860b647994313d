"""Errors of planes, and the texts that people get of them."""

from __future__ import annotations

import logging

from services.errors import TiermeshError, describe_internal_error

log = logging.getLogger("tiermesh")


class PlaneLost(TiermeshError):
    """Loss of the tensors of a plane before a call was carried out. The optimizer's core gets TensorsLost for it."""


class NotStored(LookupError):
    """An order on a sum, or on pieces, that are not stored: what decided it expects other payloads here."""


def reason_of(error: Exception) -> str:
    """Return an error's text for people; an unexpected error is logged with its traceback."""
    if isinstance(error, TiermeshError):
        return str(error)
    log.error("%s", describe_internal_error(error), exc_info=error)
    return describe_internal_error(error)
