"""`tiermesh metrics JOB`: the history of a job's figures, as a table of means, as CSV or as JSON."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import NamedTuple, TypeAlias

from cli.output import Output
from cli.tables import fit_table
from protos.jobs_pb2 import MetricsColumn, MetricsRequest, MetricsRows
from services.errors import Failed
from services.jobs.client import JobsClient
from services.jobs.target import AggregatorTarget
from services.printable import counted

TABLE_ROWS = 20
"""Number of rows if none is given; CSV has a row for each step."""

Value: TypeAlias = "float | str | None"
"""A cell; None for an unknown number, the empty text for an unknown worker."""


Columns: TypeAlias = dict[tuple[str, str], list[Value]]
"""Columns by name and kind, all with as many cells."""


class History(NamedTuple):
    """Rows of an answer.

    Attributes:
        columns: the columns.
        steps_per_row: number of steps that a row stands for.
    """

    columns: Columns
    steps_per_row: int

    def find(self, name: str) -> Sequence[Value]:
        """Return a column's values or means."""
        for kind in ("value", "mean", "text"):
            if (name, kind) in self.columns:
                return self.columns[name, kind]
        return ()

    def add(self, part: MetricsRows) -> History:
        """Return this history with a further part (Failed)."""
        columns = {key: self.columns.get(key, []) + values for key, values in read_part(part).items()}
        return History(columns, part.steps_per_row)

    def to_json(self) -> dict[str, object]:
        """Return the columns by name: lists, or lists by kind for those of summaries."""
        fields: dict[str, object] = {}
        for (name, kind), values in self.columns.items():
            if kind in ("value", "text"):
                fields[name] = values
            else:
                kinds = fields.setdefault(name, {})
                assert isinstance(kinds, dict)
                kinds[kind] = values
        return {"steps_per_row": self.steps_per_row, "columns": fields}


async def show_metrics(
    target: AggregatorTarget, request: MetricsRequest, output: Output, *, as_csv: bool
) -> None:
    """Print the history of a job.

    Args:
        target: the aggregator.
        request: what of it.
        output: where it goes.
        as_csv: whether to print CSV as it comes, instead of a table of all rows.
    """
    async with JobsClient(target) as client:
        request.job = (await client.job(request.job)).id
        async with aclosing(client.metrics(request)) as parts:
            if as_csv:
                rows = 0
                async for part in parts:
                    rows += _write_csv(read_part(part), output, header=not rows)
                output.result({"job": request.job, "rows": rows})
                return
            history = History({}, 1)
            async for part in parts:
                history = history.add(part)
    for line in format_history(history, output.width):
        output.say(line)
    output.result({"job": request.job, **history.to_json()})


def read_part(part: MetricsRows) -> Columns:
    """Return the columns of a part of an answer.

    Raises:
        Failed: they have different numbers of rows.
    """
    columns = {(column.name, column.kind): _values(column) for column in part.columns}
    if len({len(values) for values in columns.values()}) > 1:
        raise Failed(
            "Metrics: columns with different numbers of rows came, expected the same; check that command and "
            "aggregator have the same version"
        )
    return columns


def _values(column: MetricsColumn) -> list[Value]:
    if column.kind == "text":
        return list(column.texts)
    count = len(column.values) // 8
    numbers = struct.unpack(f"<{count}d", column.values[: 8 * count])
    return [None if math.isnan(number) else number for number in numbers]


# ---- CSV ----

_FORMATS: Mapping[str, Callable[[float], str]] = {
    "step": "{:.0f}".format,
    "generation": "{:.0f}".format,
    "unix_seconds": "{:.3f}".format,
    **dict.fromkeys(("loss", "grad_norm", "learning_rate", "validation_loss"), repr),
}
"""Columns with all their digits. The others have those of a float32, as which they are kept."""
_as_float32 = "{:.7g}".format


def _write_csv(columns: Columns, output: Output, *, header: bool) -> int:
    """Print rows, perhaps with the names of columns before them; return how many."""
    titles = [name if kind in ("value", "text") else f"{name}_{kind}" for name, kind in columns]
    cells = [[_format(name, value) for value in values] for (name, _), values in columns.items()]
    rows = [",".join(row) for row in zip(*cells, strict=True)]
    output.write("".join(f"{line}\n" for line in (*([",".join(titles)] if header else ()), *rows)))
    return len(rows)


def _format(name: str, value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, str):  # names of workers, of which a row of several has commas
        return f'"{value}"' if "," in value else value
    return _FORMATS.get(name, _as_float32)(value)


# ---- the table ----

_SHARES = {
    "COMPUTE": "compute_seconds",
    "WIRE": "wire_seconds",
    "UPDATE": "update_seconds",
    "WAIT": "wait_seconds",
}
_TITLES: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "STEP": ("step", "{:,.0f}".format),
    "LOSS": ("loss", "{:.4f}".format),
    "VALIDATION": ("validation_loss", "{:.4f}".format),
    "SECONDS": ("step_seconds", "{:.3g}".format),
    **{title: (name, "{:.0%}".format) for title, name in _SHARES.items()},
    "TOKENS/S": ("tokens_per_second", "{:,.0f}".format),
    "MFU": ("mfu", "{:.1%}".format),
    "LR": ("learning_rate", "{:.3g}".format),
    "GRAD NORM": ("grad_norm", "{:.3g}".format),
}
"""Columns of the table, by title; the last ones are left out first if it is too wide."""
_WAITED_FOR = "WAITED FOR"


def format_history(history: History, width: int | None) -> list[str]:
    """Return a table of a history that fits a width, if any, without what is unknown in all rows."""
    steps = history.find("step")
    if not steps:
        return ["no figures: the job has made no step in this range yet"]
    shown: dict[str, list[str]] = {}
    for title, (name, spell) in _TITLES.items():
        values = history.find(name)
        if title in _SHARES:
            values = [
                _ratio(part, whole) for part, whole in zip(values, history.find("step_seconds"), strict=False)
            ]
        cells = [spell(value) if isinstance(value, float) else "" for value in values]
        if any(cells):
            shown[title] = cells
    waited_for = [str(name) for name in history.find("waited_for")]
    if any(waited_for):
        shown[_WAITED_FOR] = waited_for
    while True:
        rows = list(zip(*([title, *cells] for title, cells in shown.items()), strict=True))
        lines = fit_table(rows, width, {_WAITED_FOR: len(_WAITED_FOR)})
        if lines is not None or len(shown) == 1:
            break
        del shown[[title for title in shown if title != _WAITED_FOR or len(shown) == 2][-1]]
    lines = lines or [str(row[0]) for row in rows]
    if history.steps_per_row > 1:
        lines.append(f"means of {counted(history.steps_per_row, 'step')} up to each; --csv has all steps")
    return lines


def _ratio(part: Value, whole: Value) -> float | None:
    return part / whole if isinstance(part, float) and isinstance(whole, float) and whole else None
