"""Types of the fields of a job's config, and the base class of its records."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

PositiveInt = Annotated[int, Field(ge=1, le=2**31 - 1)]
"""A number of things of which there is at least one."""
NonNegativeInt = Annotated[int, Field(ge=0, le=2**31 - 1)]
"""A number of things of which there may be none."""
Probability = Annotated[float, Field(ge=0, lt=1)]
"""A share below one: a dropout probability, a momentum."""
Fraction = Annotated[float, Field(ge=0, le=1)]
"""A share, up to the whole."""
PositiveFloat = Annotated[float, Field(gt=0)]
"""A finite number above zero."""
NonNegativeFloat = Annotated[float, Field(ge=0)]
"""A finite number, zero or above."""
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""sha256 of a file's bytes, in hexadecimal."""


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("training_config.project_name: holds unprintable characters; write plain text")
    return text


PrintableName = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_printable)]
"""One line that a person reads in a list."""


class ConfigRecord(BaseModel):
    """Base of the records: frozen, no keys beyond those named, no silent conversions, finite numbers only."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
