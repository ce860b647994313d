"""Draws one step of a timeline as SVG: a row for each activity of each daemon, a bar for each event."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cli.svg import document, element, label, plain, round_ticks
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
        element("rect", width=WIDTH, height=height, fill="white"),
        label(LEFT, 16, f"Step {step}, and the forward pass of step {step + 1}", font_size=13),
        *_legend(),
    ]
    for tick in round_ticks(0.0, end - begin, 10):
        x = LEFT + scale * tick
        picture.append(element("line", x1=x, y1=TOP, x2=x, y2=height - 26, stroke="#dddddd"))
        picture.append(label(x, height - 12, f"{1e3 * tick:g} ms", text_anchor="middle"))
    for number, row in enumerate(rows):
        y = TOP + ROW * number
        if row.is_first:
            picture.append(element("line", x1=0, y1=y, x2=WIDTH, y2=y, stroke="#999999"))
        picture.append(label(LEFT - 8, y + 14, row.title, text_anchor="end"))
        for name, start, stop, word in row.bars:
            x = LEFT + scale * (max(start, begin) - begin)
            width = max(0.5, scale * (min(stop, end) - max(start, begin)))
            tip = element("title", plain(word))
            size = {"x": x, "y": y + 3, "width": width, "height": BAR}
            picture.append(element("rect", tip, **size, fill=COLOURS[name], stroke="white", stroke_width=0.3))
    for event in trace.events:
        if event.name == "COMMIT" and begin <= event.start <= end:
            x = LEFT + scale * (event.start - begin)
            picture.append(
                element(
                    "line", x1=x, y1=TOP - 4, x2=x, y2=height - 26, stroke="black", stroke_dasharray="3,2"
                )
            )
            picture.append(label(x, TOP - 6, f"COMMIT of step {event.step}", text_anchor="middle"))
    return document(WIDTH, height, picture, font_family="sans-serif", font_size=11)


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
        yield element("rect", x=x, y=24, width=10, height=10, fill=COLOURS[name])
        yield label(x + 14, 33, name)
        x += 30 + 6 * len(name)
