"""The history of a job as numpy arrays."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiermesh.records import Malformed, as_list, as_object

Curves = dict[str, NDArray[Any]]
"""Columns of a job's history by name; the first is `step`."""

_SUMMARIES = {"min": "_min", "max": "_max"}
"""What is added to the name of a column that summarises several steps; their mean has the name alone."""


def read_curves(answer: Mapping[str, Any]) -> Curves:
    """Return the columns of an answer, which are of equal length and have `step` among them."""
    curves: Curves = {}
    for each in as_list(answer.get("columns"), "columns"):
        column = as_object(each, "columns")
        name = f"{column.get('name')}{_SUMMARIES.get(column.get('kind', ''), '')}"
        curves[name] = _read_array(name, column)
    if "step" not in curves or len({len(each) for each in curves.values()}) != 1:
        raise Malformed("columns", list(curves), "columns of equal length, `step` among them")
    return curves


def _read_array(name: str, column: Mapping[str, Any]) -> NDArray[Any]:
    if column.get("kind") == "text":
        return np.array([str(each or "") for each in as_list(column.get("values"), name)], dtype=np.str_)
    try:
        values = np.frombuffer(base64.b64decode(column.get("base64") or "", validate=True), "<f8")
    except (TypeError, ValueError):
        raise Malformed(name, column.get("base64"), "float64 numbers in base64") from None
    if name != "step":
        return values
    if not np.isfinite(values).all():
        raise Malformed(name, "missing numbers", "numbers")
    return values.astype(np.int64)
