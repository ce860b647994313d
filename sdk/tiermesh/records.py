"""What the calls of a client return: jobs, their events, and the state of the cluster."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from tiermesh.errors import Failed

ENDED = frozenset({"succeeded", "failed", "cancelled"})
"""States that no job leaves."""
MOST_FILES = 100
"""Most files of a checkpoint; a real one has about five."""
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")


class Malformed(Failed):
    """An answer that is not what the API promises."""

    def __init__(self, what: str, value: object, expected: str) -> None:
        shown = repr(value)
        shown = shown if len(shown) <= 100 else shown[:100] + "..."
        fix = "check that the address is that of a `tiermesh web` of the same or the next version"
        super().__init__(
            f"{what}: the server answered {shown}, expected {expected}; {fix}",
            field=what,
            value=shown,
            expected=expected,
            fix=fix,
        )


def read_object(body: bytes | str, what: str) -> dict[str, Any]:
    """Return the JSON object in a body."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise Malformed(what, body[:100], "JSON") from None
    return as_object(found, what)


def as_object(value: object, what: str) -> dict[str, Any]:
    """Check that a JSON value is an object, and return it."""
    if not isinstance(value, dict):
        raise Malformed(what, value, "an object")
    return value


def as_list(value: object, what: str) -> list[Any]:
    """Check that a JSON value is a list, and return it."""
    if not isinstance(value, list):
        raise Malformed(what, value, "a list")
    return value


@dataclass(frozen=True)
class Job:
    """A job, as it was when the server answered.

    Attributes:
        id: unique id.
        name: name for people.
        state: `queued`, `running`, `paused`, `succeeded`, `failed` or `cancelled`.
        detail: why it waits, failed or was cancelled; empty if there is nothing to say.
        step: number of updates so far.
        steps: number of updates to make.
        loss: training loss of the newest step.
        validation_loss: newest validation loss.
        checkpoint_step: step of the newest checkpoint.
        model_sha256: SHA-256 of that checkpoint's `model.safetensors`.
        tokens_per_second: training speed.
        seconds_left: time that its further steps and evaluations take.
        submitted: time of the submission.
        started: time of the start.
        ended: time of the end.
        fields: all that the server says of it, as JSON values.

    What is not known yet is None.
    """

    id: str
    name: str
    state: str
    detail: str
    step: int
    steps: int
    loss: float | None
    validation_loss: float | None
    checkpoint_step: int | None
    model_sha256: str | None
    tokens_per_second: float | None
    seconds_left: float | None
    submitted: datetime | None
    started: datetime | None
    ended: datetime | None
    fields: Mapping[str, Any] = field(repr=False, compare=False)

    @property
    def has_ended(self) -> bool:
        """Whether its state is final."""
        return self.state in ENDED

    @classmethod
    def read(cls, value: object) -> Job:
        """Return the job that a JSON object describes."""
        fields = as_object(value, "job")
        return cls(
            id=_text(fields, "job"),
            name=_text(fields, "name"),
            state=_text(fields, "state"),
            detail=_text(fields, "detail", ""),
            step=_count(fields, "step"),
            steps=_count(fields, "steps"),
            loss=_number(fields, "loss"),
            validation_loss=_number(fields, "validation_loss"),
            checkpoint_step=_whole(fields, "checkpoint_step"),
            model_sha256=_text(fields, "model_sha256", "") or None,
            tokens_per_second=_number(fields, "tokens_per_second"),
            seconds_left=_number(fields, "seconds_left"),
            submitted=_time(fields, "submitted"),
            started=_time(fields, "started"),
            ended=_time(fields, "ended"),
            fields=fields,
        )


@dataclass(frozen=True)
class Event:
    """A change of a job.

    Attributes:
        kind: `state`, `step`, `progress`, `evaluation`, `checkpoint`, `member`, `audit` or `tracking`. `missed` is a
            line of the log from while the connection was broken. `away` means that the server has lost the cluster's
            aggregator for now.
        time: time of the change.
        text: one line, as in the log.
        job: the job after the change; None for `missed` and `away`.
        grad_norm: global norm of a step's gradient.
        learning_rate: learning rate of a step.
        step_seconds: duration of a step.
        fields: all that the server says of it, as JSON values.
    """

    kind: str
    time: datetime | None
    text: str
    job: Job | None
    grad_norm: float | None
    learning_rate: float | None
    step_seconds: float | None
    fields: Mapping[str, Any] = field(repr=False, compare=False)

    @classmethod
    def read(cls, kind: str, data: str) -> Event:
        """Return the event of a kind and its data, a JSON object."""
        fields = read_object(data, "event")
        away = kind == "away"
        return cls(
            kind=kind,
            time=_time(fields, "since" if away else "time"),
            text=_text(fields, "detail" if away else "text", ""),
            job=None if fields.get("job") is None else Job.read(fields["job"]),
            grad_norm=_number(fields, "grad_norm"),
            learning_rate=_number(fields, "learning_rate"),
            step_seconds=_number(fields, "step_seconds"),
            fields=fields,
        )


@dataclass(frozen=True)
class CheckpointFile:
    """A file of a checkpoint.

    Attributes:
        sha256: its SHA-256.
        size_bytes: its size.
    """

    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that the cluster keeps.

    Attributes:
        step: the step that it was made after.
        files: its files by name.
    """

    step: int
    files: Mapping[str, CheckpointFile]

    @classmethod
    def read(cls, value: object) -> Checkpoint:
        """Return the checkpoint that a JSON object describes."""
        fields = as_object(value, "checkpoint")
        files = as_object(fields.get("files"), "checkpoint.files")
        if not 0 < len(files) <= MOST_FILES or not all(map(_FILE_NAME.fullmatch, files)):
            raise Malformed("checkpoint.files", sorted(files), f"1 to {MOST_FILES} plain names of files")
        return cls(
            step=_count(fields, "step"),
            files={name: _checkpoint_file(as_object(each, name)) for name, each in files.items()},
        )


def _checkpoint_file(fields: Mapping[str, Any]) -> CheckpointFile:
    return CheckpointFile(sha256=_text(fields, "sha256"), size_bytes=_count(fields, "bytes"))


@dataclass(frozen=True)
class Cluster:
    """The state of the cluster.

    Attributes:
        epoch: number of starts of its aggregator.
        leader: name of the aggregator that leads it.
        tiers: 2 or 3.
        running_jobs: ids of the jobs that run.
        workers: names of the connected workers.
        fields: all that the server says of it, as JSON values; `tiermesh status --json` has the same.
    """

    epoch: int
    leader: str
    tiers: int
    running_jobs: tuple[str, ...]
    workers: tuple[str, ...]
    fields: Mapping[str, Any] = field(repr=False, compare=False)

    @classmethod
    def read(cls, value: object) -> Cluster:
        """Return the cluster that a JSON object describes."""
        fields = as_object(value, "cluster")
        workers = as_list(fields.get("workers"), "cluster.workers")
        return cls(
            epoch=_whole(fields, "epoch") or 0,
            leader=_text(fields, "leader"),
            tiers=_whole(fields, "tiers") or 0,
            running_jobs=tuple(map(str, as_list(fields.get("running_jobs"), "cluster.running_jobs"))),
            workers=tuple(_text(as_object(each, "cluster.workers"), "name") for each in workers),
            fields=fields,
        )


def _text(fields: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = fields.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise Malformed(name, value, "a text")
    return value


def _number(fields: Mapping[str, Any], name: str) -> float | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Malformed(name, value, "a number or null")
    try:
        return float(value)
    except OverflowError:
        raise Malformed(name, value, "a number below 1e308") from None


def _whole(fields: Mapping[str, Any], name: str) -> int | None:
    value = _number(fields, name)
    if value is not None and not (math.isfinite(value) and value == int(value)):
        raise Malformed(name, value, "a whole number or null")
    return None if value is None else int(value)


def _count(fields: Mapping[str, Any], name: str) -> int:
    value = _whole(fields, name)
    if value is None or value < 0:
        raise Malformed(name, value, "a whole number from 0")
    return value


def _time(fields: Mapping[str, Any], name: str) -> datetime | None:
    value = fields.get(name)
    if value is None:
        return None
    try:
        # Python 3.10 knows neither `Z` nor fractions of other than 3 or 6 digits.
        whole, _, fraction = value.removesuffix("Z").partition(".")
        found = datetime.fromisoformat(f"{whole}.{(fraction or '0')[:6]:<06}")
    except (ValueError, AttributeError):
        raise Malformed(name, value, "a time such as 2026-11-27T10:00:00.123Z") from None
    return found.replace(tzinfo=timezone.utc)
