"""Ages, sizes and retentions as people write them: `30d`, `100GB`, `logs.older-than=90d`. Units are never left out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from services.errors import Refused

if TYPE_CHECKING:
    from aggregator.core.retention import Limits, Part

_AGE_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_SIZE_BYTES = {"B": 1} | {
    f"{prefix}{ending}": base**power
    for power, prefix in enumerate("KMGTP", 1)
    for ending, base in (("B", 1000), ("iB", 1024))
}
_AMOUNT = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s?([A-Za-z]{0,5})", re.ASCII)
_COUNT = re.compile(r"\d{1,15}", re.ASCII)


def read_age_seconds(name: str, text: str) -> float:
    """Return the seconds of an age such as `30d`.

    Raises:
        Refused: it is no age, or has no unit.
    """
    return _read_amount(name, text, _AGE_SECONDS, "an age in s, m, h, d or w, for example 30d")


def read_size_bytes(name: str, text: str) -> int:
    """Return the bytes of a size such as `100GB` or `64MiB`.

    Raises:
        Refused: it is no size, or has no unit.
    """
    return int(
        _read_amount(name, text, _SIZE_BYTES, "a size in B, KB, MB, GB, TB or KiB to TiB, for example 100GB")
    )


def _read_amount(name: str, text: str, units: Mapping[str, int], expected: str) -> float:
    found = _AMOUNT.fullmatch(text.strip())
    if found is None:
        raise Refused(f"{name} {text[:40]!r}: expected {expected}")
    if found[2] not in units:
        wrong = f"no unit {found[2]!r}" if found[2] else "the unit is missing"
        raise Refused(f"{name} {text[:40]!r}: {wrong}, expected {expected}")
    return float(found[1]) * units[found[2]]


def read_count(name: str, text: str) -> int:
    """Return a number of jobs.

    Raises:
        Refused: it is no whole number of 0 or more.
    """
    if not _COUNT.fullmatch(text.strip()):
        raise Refused(f"{name} {text[:40]!r}: expected a number of jobs of 0 or more, for example 100")
    return int(text)


def read_retention(
    _: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> dict[Part, Limits]:
    """Return the limits of several texts such as `logs.older-than=90d`.

    Raises:
        Refused: one of them has another form, or a limit is given twice.
    """
    from aggregator.core.retention import Limits, Part

    retention: dict[Part, Limits] = {}
    parts = {part.value: part for part in Part}
    limits: dict[str, tuple[str, Callable[[str, str], float]]] = {
        "older-than": ("older_than_seconds", read_age_seconds),
        "keep": ("keep", read_count),
        "max-bytes": ("max_bytes", read_size_bytes),
    }
    for text in given:
        name, _equals, value = text.partition("=")
        part_name, _dot, limit_name = name.partition(".")
        option = f"--{parameter.name}"
        if part_name not in parts or limit_name not in limits:
            raise Refused(
                f"{option} {text[:60]!r}: expected PART.LIMIT=VALUE with a PART of {', '.join(parts)} and a LIMIT of "
                f"{', '.join(limits)}, for example logs.older-than=90d"
            )
        field, read = limits[limit_name]
        part = parts[part_name]
        if getattr(retention.get(part, Limits()), field) is not None:
            raise Refused(f"{option} {text[:60]!r}: {name} was given before; give it once")
        change: dict[str, Any] = {field: read(f"{option} {name}", value)}
        retention[part] = replace(retention.get(part, Limits()), **change)
    return retention
