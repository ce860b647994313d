"""Named places where a process can be made to die or to fail, to try what that does. Off unless the environment asks.

    TIERMESH_FAILPOINTS=checkpoint.mid-file=kill@1,aggregator.save.before=error@3
    TIERMESH_FAILPOINTS_LOG=FILE

has this process kill -9 itself when it comes to the first place for the first time, and raise OSError when it comes to
the second for the third time. The log has a line `NAME PROCESS HIT` for each time that any place was come to, with the
action behind it where one was due; it is written before that is done.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from services.errors import Refused

VARIABLE = "TIERMESH_FAILPOINTS"
LOG_VARIABLE = "TIERMESH_FAILPOINTS_LOG"

FAILPOINTS: Mapping[str, str] = {
    "aggregator.epoch.before": "the aggregator has raised the epoch, in a transaction that isn't committed",
    "aggregator.epoch.after": "the raised epoch is on the disk, and nobody was told of it",
    "aggregator.save.before": "a job's state is written, in a transaction that isn't committed",
    "aggregator.save.after": "a job's state is on the disk, and nobody was told of it",
    "aggregator.journal.before": "an event of a job is not in its log yet",
    "aggregator.journal.after": "an event of a job is in its log, and no watcher has seen it",
    "optimizer.generation.before": "a generation is in a temporary file",
    "optimizer.generation.after": "a generation is on the disk, and was not given out",
    "optimizer.commit.before": "a step is decided, and COMMIT is not on its way",
    "optimizer.commit.after": "COMMIT was handed to the link, and no weight has changed",
    "optimizer.update.mid": "one chunk of the weights is updated, and not on its way",
    "optimizer.snapshot": "weights and state are copied for a checkpoint, and nothing is written",
    "checkpoint.before": "nothing of a checkpoint is on the disk",
    "checkpoint.mid-file": "a piece of a checkpoint's file is written, not all of it",
    "checkpoint.before-rename": "a checkpoint is on the disk, under a temporary name",
    "checkpoint.after-rename": "a checkpoint has its name, which a power cut may still take",
    "stream.mid-message": "the first part of a message of a data stream is with the transport, the others are not",
    "shard.opened": "a shard has made room for its chunks, and the aggregator was not told",
    "shard.write.mid": "a shard has taken a piece of a checkpoint, not all of its part",
    "shard.arrived": "a chunk of a worker's sum is in a shard, and the aggregator was not told",
    "shard.staged": "a shard has staged a chunk of the gradient, and the aggregator was not told",
    "shard.update.mid": "a shard has updated one chunk of the weights, and not made it ready to be sent",
    "shard.copied": "a shard has copied its part for a checkpoint, and nothing was read",
    "shard.read.mid": "a piece of a shard's copy was read, not all of it",
    "worker.gradient-ready": "the sum of a lease is complete, and the aggregator was not told",
    "worker.check": "a micro-batch is computed a second time, and the aggregator was not told its checksum",
    "worker.send": "chunks of a sum are chosen to be sent, and none is",
}
"""Each place, and how things stand when a process comes to it."""

Action = Literal["kill", "error"]


class _Armed:
    """What the environment asked for."""

    def __init__(self, plan: Mapping[str, tuple[Action, int]], log: Path | None) -> None:
        self._plan = plan
        self._log = log
        self._hits: Counter[str] = Counter()
        self._lock = threading.Lock()

    def hit(self, name: str) -> None:
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
        if due:
            raise OSError(errno.EIO, f"failpoint {name}")


_armed: _Armed | None = None


def arm(environment: Mapping[str, str]) -> None:
    """Take up what the environment asks for; nothing, if it doesn't.

    Raises:
        Refused: for the first thing that isn't understood.
    """
    global _armed
    text = environment.get(VARIABLE, "")
    log = Path(environment[LOG_VARIABLE]) if environment.get(LOG_VARIABLE) else None
    _armed = _Armed(parse(text), log) if text or log else None


def parse(text: str) -> dict[str, tuple[Action, int]]:
    """The action of each place, and at which hit: of `NAME=kill@3,NAME=error@1`.

    Raises:
        Refused: for the first thing that isn't understood.
    """
    plan: dict[str, tuple[Action, int]] = {}
    for each in filter(None, text.split(",")):
        found = re.fullmatch(r"([^=]+)=(kill|error)@([1-9]\d{0,8})", each.strip())
        if found is None:
            raise Refused(
                f"{VARIABLE}: {each.strip()!r}: expected NAME=kill@HIT or NAME=error@HIT, HIT counting from 1"
            )
        name = found[1]
        if name not in FAILPOINTS:
            nearest = difflib.get_close_matches(name, FAILPOINTS, n=1, cutoff=0.0)[0]
            raise Refused(f"{VARIABLE}: no failpoint {name!r}; the nearest is {nearest}")
        plan[name] = ("kill" if found[2] == "kill" else "error", int(found[3]))
    return plan


def is_armed() -> bool:
    """Whether the environment asked for anything."""
    return _armed is not None


def hit_failpoint(name: str) -> None:
    """Come to the place of that name, one of `FAILPOINTS`.

    Raises:
        OSError: asked for.
    """
    if _armed is not None:
        _armed.hit(name)
