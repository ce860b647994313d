"""Events of steps and evaluations, and the rows that a history answers with."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from aggregator.history.reader import check_request, read_history
from aggregator.history.writer import MetricsHistory
from protos.jobs_pb2 import CANCELLED, RUNNING, Job, JobEvent, MetricsRequest, StepSplit


def step(number: int, generation: int = 1, **fields: Any) -> JobEvent:
    """Return the event of a step whose loss is its number."""
    loss = fields.pop("loss", float(number))
    job = Job(id="a", state=RUNNING, step=number, generation=generation, loss=loss, tokens_per_second=100.0)
    return JobEvent(job=job, kind="step", seconds=1000.0 + number, **fields)


def evaluation(number: int, loss: float, generation: int = 1) -> JobEvent:
    """Return the event of an evaluation after a step."""
    job = Job(
        id="a",
        state=RUNNING,
        step=number,
        generation=generation,
        validation_step=number,
        validation_loss=loss,
    )
    return JobEvent(job=job, kind="evaluation", seconds=2000.0)


def full_step(number: int) -> JobEvent:
    """Return the event of a step with all figures."""
    split = StepSplit(compute_seconds=0.5, wire_seconds=0.125, update_seconds=0.25, wait_seconds=0.125)
    event = step(number, grad_norm=2.5, learning_rate=3e-4, step_seconds=1.0, split=split, waited_for="w1")
    event.job.mfu = 0.25
    return event


STOPPED = JobEvent(job=Job(id="a", state=CANCELLED), kind="state")


def write(folder: Path, events: Iterable[JobEvent]) -> None:
    """Write events by an aggregator that starts and stops."""
    history = MetricsHistory(folder)
    for event in events:
        history.record(event)
    history.close()


def read(folder: Path, **request: Any) -> dict[str, list[Any]]:
    """Return an answer's columns, named NAME or NAME/KIND; None for what is unknown."""
    asked = MetricsRequest(job="a", **request)
    check_request(asked)
    columns: dict[str, list[Any]] = {}
    for part in read_history(folder / "a", asked):
        for column in part.columns:
            name = column.name if column.kind in ("value", "text") else f"{column.name}/{column.kind}"
            numbers = np.frombuffer(column.values, "<f8").tolist()
            known = [None if math.isnan(each) else each for each in numbers]
            columns.setdefault(name, []).extend(column.texts or known)
    return columns


def losses(folder: Path, **request: Any) -> dict[int, float]:
    """Return the known losses by step."""
    columns = read(folder, columns=["loss"], **request)
    pairs = zip(columns["step"], columns["loss"], strict=True)
    return {int(number): loss for number, loss in pairs if loss is not None}
