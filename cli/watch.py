"""`--watch`: show something again and again, in place on a terminal, until Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from cli.output import Output, clock
from cli.tables import wrap
from cli.words import spell_duration
from services.errors import Failed
from services.jobs.client import JobsClient
from services.jobs.connection import Unreachable
from services.jobs.target import AggregatorTarget
from services.printable import escape
from services.timeouts import STANDARD_TIMEOUTS

INTERVAL_SECONDS = 2.0
"""Time between two pictures."""
OUTAGE_SECONDS = STANDARD_TIMEOUTS.follow
"""Longest outage of the aggregator that a watch survives."""


@dataclass(frozen=True)
class Picture:
    """What a command shows.

    Attributes:
        lines: its text.
        values: its result as JSON values.
        last: whether nothing of it will change.
    """

    lines: list[str]
    values: dict[str, Any]
    last: bool = False


Draw = Callable[[JobsClient], Awaitable[Picture]]


def show(target: AggregatorTarget, output: Output, draw: Draw, *, again: bool) -> None:
    """Show a picture once or, with `again`, until it is the last one or Ctrl-C; its values are the result.

    Raises:
        Failed: the aggregator can't be reached, with `again` for longer than `OUTAGE_SECONDS`.
    """
    if not again:
        picture = asyncio.run(_draw_once(target, draw))
        for line in picture.lines:
            output.say(line)
    else:
        screen = _Screen(output)
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_watch(target, draw, screen))
        if screen.picture is None:
            return
        picture = screen.picture
    output.result(picture.values)


async def _draw_once(target: AggregatorTarget, draw: Draw) -> Picture:
    async with JobsClient(target) as client:
        return await draw(client)


async def _watch(target: AggregatorTarget, draw: Draw, screen: _Screen) -> None:
    heard, note = time.time(), ""
    silent = False
    async with JobsClient(target) as client:
        while True:
            try:
                screen.picture = await draw(client)
            except Unreachable as error:
                seconds = time.time() - heard
                if screen.picture is None or seconds > OUTAGE_SECONDS:
                    raise Failed(f"{error}; it has not answered for {spell_duration(seconds)}") from None
                silent = True
                note = f"no answer from the aggregator since {clock(heard)}, this is how it was; trying again"
            else:
                if silent:
                    now = time.time()
                    note = f"the aggregator answers again since {clock(now)}, after {spell_duration(now - heard)}"
                heard, silent = time.time(), False
            screen.show(note)
            if screen.picture.last and not silent:
                return
            await asyncio.sleep(INTERVAL_SECONDS)


class _Screen:
    """Draws pictures, one over the other on a terminal, else one after the other.

    Attributes:
        picture: the newest picture; None before the first.
    """

    def __init__(self, output: Output) -> None:
        self.picture: Picture | None = None
        self._output = output
        self._stream = sys.stderr if output.as_json else sys.stdout
        self._lines = 0

    def show(self, note: str) -> None:
        """Draw the picture, and a note below it."""
        assert self.picture is not None
        lines = [*self.picture.lines, *wrap(note, self._output.width)] if note else self.picture.lines
        if not self._stream.isatty():
            for line in lines:
                self._output.say(line)
            return
        size = shutil.get_terminal_size()
        # A line that the terminal would break takes two rows, which the next picture would not go up.
        shown = [escape(line)[: size.columns - 1] for line in lines]
        if len(shown) >= size.lines:
            shown = [*shown[: max(1, size.lines - 2)], f"... {len(shown) - size.lines + 2} lines more"]
        up = f"\x1b[{self._lines}F" if self._lines else ""
        self._stream.write(f"{up}\x1b[J" + "".join(f"{line}\n" for line in shown))
        self._stream.flush()
        self._lines = len(shown)
