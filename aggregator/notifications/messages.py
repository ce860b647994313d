"""A notice about a job, and the forms in which a webhook takes it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from aggregator.core.events import NoticeKind
from aggregator.notifications.targets import Form
from protos.jobs_pb2 import JobEvent
from services.jobs.fields import state_name
from services.printable import FAILURE_CHARACTERS, printable

_NAME_CHARACTERS = 200


@dataclass(frozen=True)
class Notice:
    """What a target is told.

    Attributes:
        event: what has happened, a value of `NoticeKind`.
        job: id of the job.
        name: its name.
        owner: person that it belongs to; empty if that is unknown.
        state: its state.
        step: number of its updates so far.
        steps: number of all of them.
        loss: loss of the step; None if it is unknown or not finite.
        text: the line of the job's log.
        unix_seconds: Unix time of the event.
        repeated: number of events of this kind that were not told since the last one; at the job's end, of all kinds.
    """

    event: str
    job: str
    name: str
    owner: str
    state: str
    step: int
    steps: int
    loss: float | None
    text: str
    unix_seconds: float
    repeated: int = 0

    @classmethod
    def of_event(cls, kind: NoticeKind, event: JobEvent, repeated: int) -> Notice:
        """Return the notice about an event of a job."""
        job = event.job
        loss = job.loss if job.HasField("loss") and math.isfinite(job.loss) else None
        return cls(
            event=kind.value,
            job=job.id,
            name=printable(job.name, _NAME_CHARACTERS),
            owner=job.owner,
            state=state_name(job),
            step=job.step,
            steps=job.steps,
            loss=loss,
            text=printable(event.text, FAILURE_CHARACTERS),
            unix_seconds=round(event.seconds, 3),
            repeated=repeated,
        )

    @property
    def id(self) -> str:
        """Id of the notice, by which a receiver knows one that comes twice."""
        return f"{self.job}:{self.event}:{self.step}:{self.unix_seconds:.3f}"

    def to_fields(self) -> dict[str, Any]:
        """Return the notice as JSON values."""
        return asdict(self)

    @classmethod
    def from_fields(cls, stored: Mapping[str, Any]) -> Notice:
        """Return the notice that `to_fields` gave. Raises KeyError or TypeError for something else."""
        return cls(**{each.name: stored[each.name] for each in fields(cls)})


def encode(notice: Notice, form: Form) -> bytes:
    """Return the body of a notice, which is JSON in both forms."""
    if form == "slack":
        return json.dumps({"text": _spell(notice), "mrkdwn": False}).encode()
    return json.dumps({"id": notice.id, **notice.to_fields()}).encode()


def _spell(notice: Notice) -> str:
    """Return a notice as a line of Slack, where nothing of it is a link or a mention."""
    parts = [f"{notice.name} ({notice.job}), step {notice.step} of {notice.steps}"]
    if notice.loss is not None:
        parts.append(f"loss {notice.loss:.4f}")
    repeated = f" ({notice.repeated} more were not told)" if notice.repeated else ""
    line = f"{notice.event.replace('_', ' ')}: {', '.join(parts)}: {notice.text}{repeated}"
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
