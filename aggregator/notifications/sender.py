"""The messages to one target, on a thread of their own: a webhook that never answers takes no time of a job."""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aggregator.notifications.messages import Notice, encode
from aggregator.notifications.rules import OF_STEPS
from aggregator.notifications.targets import TargetFile
from aggregator.notifications.webhook import Failure, post
from services.durable_files import replace_file
from services.input_files import NoSuchFile, read_input_file
from services.printable import counted, printable_path
from services.runtime.queue_thread import QueueThread

log = logging.getLogger("tiermesh.aggregator")

MOST_WAITING = 1000
"""Number of messages that wait for a target; the oldest ones make room."""
GIVE_UP_SECONDS = 3600.0
"""Age of a message that no attempt has delivered, from which on it is dropped."""
PACE_SECONDS = 1.0
"""Least time between two messages; Slack takes no more."""
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 1.0, 60.0
MOST_TOLD_JOBS = 10_000
"""Jobs whose newest told steps are remembered. One that ends is forgotten."""
_MOST_FILE_BYTES = 8 << 20


class Sender:
    """Sends notices to one target, in their order. `put`, `end` and `wait` are called from one other thread.

    What waits is in a file, so a restart or another aggregator on the same state folder goes on with it. Only what was
    just being sent when a process was killed may come twice, with the same id.

    Args:
        name: name of the target.
        path: the file; its folder is made when it is needed.
        targets: the operator's targets.
        count: callback, called with an outcome (`sent` or `dropped`) and a number of messages. Any thread.
        tell: callback, called with a job's id and a line for its log. Any thread.
        clock: monotonic time in seconds.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        targets: TargetFile,
        *,
        count: Callable[[str, int], None],
        tell: Callable[[str, str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._path = path
        self._targets = targets
        self._count = count
        self._tell = tell
        self._clock = clock
        self._waiting: deque[Notice] = deque()
        self._told_steps: dict[str, dict[str, int]] = {}  # by job and kind
        self._load()
        self._due_seconds = float("-inf")
        self._retry_seconds = FIRST_RETRY_SECONDS
        self._is_failing = self._is_left = False
        self._thread: QueueThread[Notice] = QueueThread(
            f"notify-{name}",
            self._work,
            most_waiting=MOST_WAITING,
            most_at_once=MOST_WAITING,
            last=self._finish,
        )

    def told_steps(self, job: str) -> dict[str, int]:
        """Return the newest step of each kind that a job's target was told of, before any `put` of this process."""
        return dict(self._told_steps.get(job, {}))

    def put(self, notice: Notice) -> None:
        """Have a notice sent; it is dropped if too many wait."""
        if not self._thread.put(notice):
            self._drop(notice, f"more than {MOST_WAITING} messages wait")

    def end(self) -> None:
        """Have the thread end. What waits then is tried once more, and else by the next aggregator."""
        self._thread.end()

    def wait(self, seconds: float) -> bool:
        """Wait until the thread has ended, at most for some seconds; return whether it has.

        One that has not is left alone, and writes its file no more, which then is the next sender's.
        """
        self._is_left = not self._thread.wait(seconds)
        return not self._is_left

    # ---- on the thread ----

    def _work(self, notices: list[Notice]) -> None:
        """Take notices, of which there may be none, and send one that is due."""
        if notices:
            self._waiting.extend(notices)
            while len(self._waiting) > MOST_WAITING:
                self._drop(self._waiting.popleft(), f"more than {MOST_WAITING} messages wait")
            self._save()
        if self._waiting and self._clock() >= self._due_seconds:
            self._attempt()

    def _finish(self) -> None:
        while self._waiting and not self._is_left and self._attempt():
            pass
        if self._waiting and not self._is_left:
            count = counted(len(self._waiting), "message")
            log.warning("notify %s: %s not sent yet; the next start goes on with them", self._name, count)

    def _attempt(self) -> bool:
        """Send the oldest notice; return False if that failed, and is to be tried again."""
        notice = self._waiting[0]
        target = self._targets.content().get(self._name)
        if target is None:
            failure: Failure | None = Failure("the operator no longer defines it", is_final=True)
        else:
            failure = post(target.url, encode(notice, target.form))
        if failure is None:
            self._count("sent", 1)
            self._is_failing = False
        elif failure.is_final:
            self._drop(notice, failure.reason)
        elif time.time() - notice.unix_seconds > GIVE_UP_SECONDS:
            self._drop(notice, f"{failure.reason}, for more than {GIVE_UP_SECONDS / 60:g} minutes")
        else:
            if not self._is_failing:
                self._is_failing = True
                log.warning("notify %s: %s; trying again", self._name, failure.reason)
            self._due_seconds = self._clock() + self._retry_seconds
            self._retry_seconds = min(2 * self._retry_seconds, LONGEST_RETRY_SECONDS)
            return False
        self._due_seconds, self._retry_seconds = self._clock() + PACE_SECONDS, FIRST_RETRY_SECONDS
        self._waiting.popleft()
        self._remember(notice)
        self._save()
        return True

    def _drop(self, notice: Notice, reason: str) -> None:
        self._count("dropped", 1)
        self._tell(notice.job, f"notify {self._name}: not told of {notice.event}: {reason}")

    def _remember(self, notice: Notice) -> None:
        """Note that a job's target was told, so that a restart does not tell a step again that is redone."""
        if notice.event in OF_STEPS:
            self._told_steps.setdefault(notice.job, {})[notice.event] = notice.step
            while len(self._told_steps) > MOST_TOLD_JOBS:
                del self._told_steps[next(iter(self._told_steps))]
        elif notice.state in ("succeeded", "failed", "cancelled"):
            self._told_steps.pop(notice.job, None)

    # ---- the file ----

    def _load(self) -> None:
        try:
            stored: dict[str, Any] = json.loads(read_input_file("", self._path, _MOST_FILE_BYTES))
            waiting = deque(Notice.from_fields(each) for each in stored["waiting"])
            told = {
                str(job): {str(kind): int(step) for kind, step in steps.items()}
                for job, steps in stored["told_steps"].items()
            }
        except NoSuchFile:
            return
        except Exception as error:  # whatever is wrong with it, jobs must run
            log.warning(
                "%s: can't be read (%s); messages that waited in it are lost",
                printable_path(self._path),
                type(error).__name__,
            )
            return
        self._waiting, self._told_steps = waiting, told

    def _save(self) -> None:
        if self._is_left:
            return
        stored = {"waiting": [each.to_fields() for each in self._waiting], "told_steps": self._told_steps}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, json.dumps(stored).encode())
        except OSError as error:
            log.warning(
                "%s: can't be written (%s); a restart would lose or repeat messages",
                printable_path(self._path),
                error.strerror,
            )
