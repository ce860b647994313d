"""Tells the targets of all jobs what happens to them. It is used on the event loop, except where a method says more."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from aggregator.core.events import NoticeKind
from aggregator.notifications.rules import JobRules
from aggregator.notifications.sender import Sender
from aggregator.notifications.targets import TargetFile
from protos.jobs_pb2 import CANCELLED, FAILED, SUCCEEDED, JobEvent
from services.names import is_name

log = logging.getLogger("tiermesh.aggregator")

_CLOSE_SECONDS = 5.0
"""Longest wait for messages when the aggregator stops; the next one sends the others."""


class _Watched(NamedTuple):
    """A job whose target is told."""

    sender: Sender
    rules: JobRules


class Notifier:
    """The targets of all jobs, each with a sender once it has something to send.

    Args:
        folder: folder of the messages that wait.
        targets: the operator's targets.
        find_spec: returns the spec of a job; None if it can't be read.
        count: callback, called with an outcome (`sent`, `dropped` or `repeated`) and a number of messages. Any thread.
        tell: callback, called with a job's id and a line for its log. Any thread.
    """

    def __init__(
        self,
        folder: Path,
        targets: TargetFile,
        find_spec: Callable[[str], str | None],
        count: Callable[[str, int], None],
        tell: Callable[[str, str], None],
    ) -> None:
        self._targets = targets
        self._folder = folder
        self._find_spec = find_spec
        self._count = count
        self._tell = tell
        self._jobs: dict[str, _Watched | None] = {}  # None for one whose target is nobody
        self._senders: dict[str, Sender] = {}
        self._is_closed = False
        for path in sorted(folder.glob("[!.]*.json")):  # what the aggregator before this one has not sent
            self._sender(path.stem)

    def record(self, event: JobEvent, tells: NoticeKind | None) -> None:
        """Have the target of an event's job told of it, if it is to be.

        Args:
            event: the event.
            tells: what the core says of it.
        """
        if self._is_closed:
            return
        job = event.job.id
        if job not in self._jobs:
            self._jobs[job] = self._begin(job)
        watched = self._jobs[job]
        if event.job.state in (SUCCEEDED, FAILED, CANCELLED):
            del self._jobs[job]
        if watched is None:
            return
        repeated = watched.rules.repeated
        notice = watched.rules.find(event, tells)
        if notice is not None:
            watched.sender.put(notice)
        elif watched.rules.repeated > repeated:
            self._count("repeated", 1)

    def stop_telling(self) -> None:
        """Tell of no further events: that peers leave an aggregator that stops is no news."""
        self._is_closed = True

    def close(self) -> None:
        """End the senders. It blocks, so another thread calls it at the end."""
        for sender in self._senders.values():
            sender.end()
        deadline = time.monotonic() + _CLOSE_SECONDS
        for name, sender in self._senders.items():
            if not sender.wait(max(0.0, deadline - time.monotonic())):
                log.warning("notify %s: no answer to a message; the next start sends it again", name)

    def _begin(self, job: str) -> _Watched | None:
        spec_json = self._find_spec(job)
        try:
            name = "" if spec_json is None else str(json.loads(spec_json).get("notify", ""))
        except (ValueError, AttributeError):
            return None  # stored by another version
        if not is_name(name):
            return None
        sender = self._sender(name)
        return _Watched(sender, JobRules(sender.told_steps(job)))

    def _sender(self, name: str) -> Sender:
        if name not in self._senders:
            path = self._folder / f"{name}.json"
            self._senders[name] = Sender(name, path, self._targets, count=self._count, tell=self._tell)
        return self._senders[name]
