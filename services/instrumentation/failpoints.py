"""Failpoints: named places in the code where a test can make the process die, fail or hang.

They are off unless the environment sets them:

    TIERMESH_FAILPOINTS=checkpoint.mid-file=kill@1,aggregator.save.before=error@3
    TIERMESH_FAILPOINTS_LOG=FILE

Here the process kills itself with SIGKILL when it reaches the first failpoint for the first time. It raises OSError
when it reaches the second for the third time. With `flip` in place of `error`, a value there gets a wrong bit. With
`hang`, the thread that reaches it stays there, as in a device that hangs. With `slow` it goes on after `SLOW_SECONDS`,
as on a slow disk. The log gets a line `NAME PROCESS HIT`
whenever a failpoint is reached, followed by the action if one is due. The line is written before the action.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from services.errors import Refused

VARIABLE = "TIERMESH_FAILPOINTS"
LOG_VARIABLE = "TIERMESH_FAILPOINTS_LOG"

FAILPOINTS: Mapping[str, str] = {
    "aggregator.epoch.before": "the epoch is raised in a transaction that is not committed",
    "aggregator.epoch.after": "the raised epoch is on disk, and no peer knows it",
    "aggregator.save.before": "a job's state is written in a transaction that is not committed",
    "aggregator.save.after": "a job's state is on disk, and no client knows it",
    "aggregator.journal.before": "an event of a job is not yet in its log",
    "aggregator.journal.after": "an event of a job is in its log, and no follower has seen it",
    "aggregator.prune.begun": "a pruned job is out of the queue, and its log and checkpoints are there",
    "aggregator.prune.deleted": "log and checkpoints of a pruned job are gone, and its removal is still noted",
    "optimizer.generation.before": "a generation is chosen and not yet on disk",
    "optimizer.generation.after": "a generation is on disk and not yet used",
    "optimizer.commit.before": "a step is decided, and COMMIT is not sent",
    "optimizer.commit.after": "COMMIT is queued for sending, and no weight has changed",
    "optimizer.prune.marked": "a pruned checkpoint or job has the name of a removed one, and its files are there",
    "queue.copy.mid": "a piece of a queue is copied under a temporary name",
    "queue.backup.copied": "a backup is complete under a temporary name, and not on disk",
    "queue.backup.after": "a backup has its name, and nobody knows it",
    "queue.restore.before": "a restored queue is on disk under a temporary name",
    "queue.restore.kept": "the queue to be replaced has a second name",
    "queue.restore.after": "a restored queue has its name, and nobody knows it",
    "checkpoint.before": "nothing of a checkpoint is on disk",
    "checkpoint.mid-file": "a checkpoint's file is written in part",
    "checkpoint.before-rename": "a checkpoint is on disk under a temporary name",
    "checkpoint.after-rename": "a checkpoint has its name, which a power cut may still undo",
    "files.mid-write": "a file is uploaded in part",
    "files.before-rename": "an uploaded file is on disk under a temporary name",
    "memory.write": "a part of a file has arrived, and is not in memory",
    "memory.read": "a part of a file in memory is to be sent",
    "stream.mid-message": "the first part of a data stream's message is with the transport, the others are not",
    "plane.update.mid": "one chunk of the weights is updated, and not ready to be sent",
    "plane.copied": "weights and state are copied for a checkpoint, and nothing of it is read or written",
    "shard.opened": "a shard has allocated its chunks, and the aggregator does not know it",
    "shard.arrived": "a chunk of a worker's sum is in a shard, and the aggregator does not know it",
    "shard.staged": "a shard has staged a chunk of the gradient, and the aggregator does not know it",
    "link-check.summed": "the sum of known values is made, and its receiver does not have it",
    "worker.load": "a piece of weights has arrived, and is not on the mesh",
    "worker.pass": "a micro-batch, or its backward pass through a range, is about to be computed",
    "worker.gradient-ready": "the sum of a lease is complete, and the aggregator does not know it",
    "worker.mesh-check": "the mesh is open for a check, and its sums are not made",
    "worker.check": "a micro-batch is computed again, and the aggregator does not have its checksum",
    "worker.send": "chunks of a sum are chosen to be sent, and none is",
}
"""Failpoints by name, with the state of things when a process reaches each."""

SLOW_SECONDS = 4.0

Action = Literal["kill", "error", "flip", "hang", "slow"]
_ACTIONS: Mapping[str, Action] = {
    "kill": "kill",
    "error": "error",
    "flip": "flip",
    "hang": "hang",
    "slow": "slow",
}


class _Armed:
    """Failpoints that the environment has set."""

    def __init__(self, plan: Mapping[str, tuple[Action, int]], log: Path | None) -> None:
        self._plan = plan
        self._log = log
        self._hits: Counter[str] = Counter()
        self._lock = threading.Lock()

    def hit(self, name: str, values: memoryview | None) -> None:
        with self._lock:
            self._hits[name] += 1
            action, at = self._plan.get(name, ("", 0))
            due = self._hits[name] == at
            if self._log is not None:
                line = f"{name} {os.getpid()} {self._hits[name]}{f' {action}' if due else ''}\n"
                with self._log.open("a") as file:
                    file.write(line)
        if due and action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if due and action == "hang":
            threading.Event().wait()
        if due and action == "slow":
            time.sleep(SLOW_SECONDS)
        elif due and action == "flip" and values is not None:
            values.cast("B")[0] ^= 1
        elif due:
            raise OSError(errno.EIO, f"failpoint {name}")


_armed: _Armed | None = None


def arm(environment: Mapping[str, str]) -> None:
    """Arm the failpoints that the environment sets, and disarm all others.

    Raises:
        Refused: the environment names an unknown failpoint or action.
    """
    global _armed
    text = environment.get(VARIABLE, "")
    log = Path(environment[LOG_VARIABLE]) if environment.get(LOG_VARIABLE) else None
    _armed = _Armed(parse(text), log) if text or log else None


def parse(text: str) -> dict[str, tuple[Action, int]]:
    """Return the action of each failpoint and its hit, parsed from text like `NAME=kill@3,NAME=error@1`.

    Raises:
        Refused: the text names an unknown failpoint or action.
    """
    plan: dict[str, tuple[Action, int]] = {}
    for each in filter(None, text.split(",")):
        found = re.fullmatch(r"([^=]+)=(kill|error|flip|hang|slow)@([1-9]\d{0,8})", each.strip())
        if found is None:
            raise Refused(
                f"{VARIABLE}: {each.strip()!r}: expected NAME=kill@HIT, or error, flip, hang or slow for kill, "
                "HIT counting from 1"
            )
        name = found[1]
        if name not in FAILPOINTS:
            nearest = difflib.get_close_matches(name, FAILPOINTS, n=1, cutoff=0.0)[0]
            raise Refused(f"{VARIABLE}: no failpoint {name!r}; the nearest is {nearest}")
        plan[name] = (_ACTIONS[found[2]], int(found[3]))
    return plan


def is_armed() -> bool:
    """Return whether the environment has set a failpoint or the log."""
    return _armed is not None


def hit_failpoint(name: str, values: memoryview | None = None) -> None:
    """Reach a failpoint, one of `FAILPOINTS`: log it and do what is due.

    Args:
        name: the failpoint.
        values: values there, in whose first byte `flip` changes a bit; None if there are none.

    Raises:
        OSError: the environment asks for an error at this hit, or for a wrong bit where there are no values.
    """
    if _armed is not None:
        _armed.hit(name, values)
