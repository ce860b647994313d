"""Draws one step of a timeline as SVG: a row for each activity of each daemon, a bar for each event."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from cli.timeline.stages import STAGE_WAIT, PipelineTrace
from cli.timeline.trace import WAITS, Payload, StepTrace, side_by_side
from services.errors import Refused

TRACE_FILE, PICTURE_FILE = "timeline.json", "step.svg"
LEFT, RIGHT, TOP, ROW, BAR, WIDTH = 210, 20, 58, 20, 13, 1200
COLOURS = {
    "forward": "#4c78a8",
    "backward": "#f58518",
    WAITS: "#e45756",
    STAGE_WAIT: "#ff9da6",
    "from other stages": "#9ecae9",
    "weights onto the mesh": "#72b7b2",
    "gradients up": "#eeca3b",
    "weights down": "#54a24b",
    "sums to the optimizer": "#b5a01b",
    "weights from the optimizer": "#3c7a37",
    "merge": "#b279a2",
    "stage": "#9d755d",
    "update": "#79706e",
}


@dataclass
class Row:
    """A row of the picture.

    Attributes:
        title: text left of the row.
        bars: for each bar the activity, begin, end, and a text shown under the mouse pointer.
        is_first: whether it is the first row of its daemon.
    """

    title: str
    bars: list[tuple[str, float, float, str]] = field(default_factory=list)
    is_first: bool = False


def draw(trace: StepTrace, step: int) -> str:
    """Return the picture of a step as SVG: from its first forward pass to the end of the next step's.

    Args:
        trace: timelines of all daemons.
        step: number of a complete step, one of `trace.steps`.
    """
    begin = min(start for worker in trace.workers for start, _ in trace.passes(worker, "forward", step))
    end = max(stop for worker in trace.workers for _, stop in trace.passes(worker, "forward", step + 1))
    rows = list(_rows(trace, begin, end))
    height = TOP + ROW * len(rows) + 30
    scale = (WIDTH - LEFT - RIGHT) / (end - begin)
    picture = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" '
        'font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="16" font-size="13">Step {step}, and the forward pass of step {step + 1}</text>',
        *_legend(),
    ]
    for tick in _ticks(end - begin):
        x = LEFT + scale * tick
        picture.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{height - 26}" stroke="#dddddd"/>')
        picture.append(f'<text x="{x:.1f}" y="{height - 12}" text-anchor="middle">{1e3 * tick:g} ms</text>')
    for number, row in enumerate(rows):
        y = TOP + ROW * number
        if row.is_first:
            picture.append(f'<line x1="0" y1="{y}" x2="{WIDTH}" y2="{y}" stroke="#999999"/>')
        picture.append(f'<text x="{LEFT - 8}" y="{y + 14}" text-anchor="end">{escape(row.title)}</text>')
        for name, start, stop, word in row.bars:
            x = LEFT + scale * (max(start, begin) - begin)
            width = max(0.5, scale * (min(stop, end) - max(start, begin)))
            picture.append(
                f'<rect x="{x:.2f}" y="{y + 3}" width="{width:.2f}" height="{BAR}" fill="{COLOURS[name]}" '
                f'stroke="white" stroke-width="0.3"><title>{escape(word)}</title></rect>'
            )
    for event in trace.events:
        if event.name == "COMMIT" and begin <= event.start <= end:
            x = LEFT + scale * (event.start - begin)
            picture.append(
                f'<line x1="{x:.1f}" y1="{TOP - 4}" x2="{x:.1f}" y2="{height - 26}" stroke="black" '
                'stroke-dasharray="3,2"/>'
            )
            picture.append(
                f'<text x="{x:.1f}" y="{TOP - 6}" text-anchor="middle">COMMIT of step {event.step}</text>'
            )
    return "\n".join([*picture, "</svg>", ""])


def write(folder: Path, into: Path, job: str = "") -> StepTrace:
    """Merge the timelines of a folder and draw the step in the middle of them.

    Args:
        folder: folder of the timeline files.
        into: folder for `timeline.json` and `step.svg`, created if missing.
        job: the job of the step, see `StepTrace`.

    Raises:
        Refused: the folder has no timelines or no complete step, or `into` can't be written.
    """
    trace = StepTrace(folder, job)
    steps = trace.steps
    if not steps:
        raise Refused(
            f"{folder}: no complete step in the timelines; record more steps with --timeline-steps, on every daemon"
        )
    middle = steps[len(steps) // 2]
    try:
        into.mkdir(parents=True, exist_ok=True)
        (into / TRACE_FILE).write_text(json.dumps(trace.merged(), separators=(",", ":")))
        (into / PICTURE_FILE).write_text(draw(trace, middle))
    except OSError as error:
        raise Refused(
            f"{into}: can't be written ({error.strerror}); give another folder with --output"
        ) from None
    return trace


def _rows(trace: StepTrace, begin: float, end: float) -> Iterator[Row]:
    """Yield the rows that have bars, workers first."""
    rows: dict[tuple[str, str], Row] = {}

    def put(daemon: str, title: str, name: str, start: float, stop: float, word: str) -> None:
        if stop >= begin and start <= end:
            row = rows.setdefault((daemon, title), Row(f"{daemon}: {title}"))
            row.bars.append((name, start, stop, f"{word}, {1e3 * (stop - start):.2f} ms"))

    for worker in trace.workers:
        for title in (
            "computing",
            "from other stages",
            "weights onto the mesh",
            "gradients up",
            "weights down",
        ):
            rows[worker, title] = Row(f"{worker}: {title}")
    others = [name for name in trace.files if name not in trace.workers]
    for event in trace.events:
        word = ", ".join([event.name, *(f"{key} {value}" for key, value in event.args.items())])
        if event.name in ("forward", "backward", WAITS, STAGE_WAIT):
            put(event.process, "computing", event.name, event.start, event.stop, word)
        elif event.name in COLOURS:
            put(event.process, event.name, event.name, event.start, event.stop, word)
        elif (event.row, event.name) == ("to optimizer", "send"):
            title = "sums to the optimizer"
            put(event.process, title, title, event.start, event.stop, word)
    for each in side_by_side(trace.transfers):
        title = "gradients up" if each.payload is Payload.GRADIENTS else "weights down"
        put(each.worker, title, title, each.start, each.stop, f"chunk {each.chunk} of step {each.step}")
    for array in PipelineTrace(trace).transfers:
        title = "from other stages"
        put(array.receiver, title, title, array.start, array.stop, f"{array.text} of step {array.step}")
    for daemon in (*trace.workers, *others):
        first = True
        for (of, _), row in rows.items():
            if of == daemon and row.bars:
                row.is_first, first = first, False
                yield row


def _legend() -> Iterator[str]:
    x = LEFT
    for name in ("forward", "backward", WAITS, STAGE_WAIT):
        yield f'<rect x="{x}" y="24" width="10" height="10" fill="{COLOURS[name]}"/>'
        yield f'<text x="{x + 14}" y="33">{name}</text>'
        x += 30 + 6 * len(name)


def _ticks(seconds: float) -> list[float]:
    """Return at most eleven round times from 0 to `seconds`."""
    step = next(
        unit * 10**power for power in range(-5, 5) for unit in (1, 2, 5) if seconds / (unit * 10**power) <= 10
    )
    return [step * number for number in range(int(seconds / step) + 1)]
