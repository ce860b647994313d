"""Types of the fields of a job's config, and the base class of its records."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

PositiveInt = Annotated[int, Field(ge=1, le=2**31 - 1)]
"""Number of things, at least one."""
NonNegativeInt = Annotated[int, Field(ge=0, le=2**31 - 1)]
"""Number of things, possibly none."""
Probability = Annotated[float, Field(ge=0, lt=1)]
"""Number from 0 to below 1: a dropout probability, a momentum."""
Fraction = Annotated[float, Field(ge=0, le=1)]
"""Number from 0 to 1."""
PositiveFloat = Annotated[float, Field(gt=0)]
"""Finite number above zero."""
NonNegativeFloat = Annotated[float, Field(ge=0)]
"""Finite number, zero or above."""
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""sha256 of a file's bytes, in hexadecimal."""


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError(
            "training_config.project_name: unprintable characters given, expected plain text; remove them"
        )
    return text


PrintableName = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_printable)]
"""Name in one line of printable characters."""


class ConfigRecord(BaseModel):
    """Base of the records: frozen, with finite numbers only, without unknown keys and implicit conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
